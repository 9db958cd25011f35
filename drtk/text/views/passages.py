"""Views that show a passage, its halves, or the one after it."""

from __future__ import annotations

import numpy as np

from drtk.text.views.base import Corpus, Crop, Parts, Separator, Title, needing, piece, titled_part


def passage(
    corpus: Corpus,
    row: int,
    *,
    rng: np.random.Generator,
    room: int,
    separator: Separator | None = None,
    title: Title = "none",
    crop: Crop = "head",
) -> Parts:
    """{"": the passage}; cropped once, so that ids, words and weights are of the same part."""
    text = corpus.text(row)
    return {"": titled_part(corpus, row, text, title=title, separator=separator, room=room, crop=crop, rng=rng)}


@needing("documents")
def following(
    corpus: Corpus,
    row: int,
    *,
    rng: np.random.Generator,
    room: int,
    separator: Separator | None = None,
    title: Title = "none",
    crop: Crop = "head",
) -> Parts | None:
    """{"": the passage after this one}, i + 1 and no other (MASTER's next passage); None for the last of a document."""
    other = corpus.following(row)
    if other is None:
        return None
    return passage(corpus, other, rng=rng, room=room, separator=separator, title=title, crop=crop)


def halves(
    corpus: Corpus,
    row: int,
    *,
    rng: np.random.Generator,
    room: int,
    separator: Separator | None = None,
    title: Title = "none",
    crop: Crop = "head",
) -> Parts | None:
    """{"a": the first half of the passage, "b": the second}, b with the odd token (MASTER's released next passage).

    A passage of more than 2 * room tokens is cropped to that first, so that the halves stay neighbours. None for a single token.
    """
    whole = corpus.text(row)
    text = titled_part(corpus, row, whole, title=title, separator=separator, room=2 * room, crop=crop, rng=rng)
    middle = len(text.ids) // 2
    if not middle:
        return None
    return {"a": piece(text, 0, middle), "b": piece(text, middle, len(text.ids))}
