"""Views of a passage and of the texts written for it."""

from __future__ import annotations

import numpy as np

from drtk.pretraining.views.base import (
    Corpus,
    Count,
    Crop,
    Parts,
    Separator,
    Title,
    cropped,
    joined,
    needing,
    piece,
    titled_part,
)


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


@needing("queries")
def query(
    corpus: Corpus,
    row: int,
    *,
    rng: np.random.Generator,
    room: int,
    separator: int | None = None,
    limit: Count | None = None,
    crop: Crop = "head",
) -> Parts | None:
    """{"": one of the first `limit` queries of the passage, each with the same chance}; None where it has none."""
    found = corpus.queries(row)[:limit]
    return {"": cropped(found[int(rng.integers(len(found)))], room, crop, rng=rng)} if found else None


@needing("queries")
def queries(
    corpus: Corpus,
    row: int,
    *,
    rng: np.random.Generator,
    room: int,
    separator: int | None = None,
    limit: Count | None = 10,
    crop: Crop = "random",
) -> Parts | None:
    """{"": the first `limit` queries with `separator` between them, cropped} (methods: section 2.3); None where there are none.

    Raises ValueError without a separator.
    """
    if separator is None:
        raise ValueError("queries are joined by a separator, whose id is needed")
    found = corpus.queries(row)[:limit]
    return {"": cropped(joined(found, separator), room, crop, rng=rng)} if found else None


@needing("continuations")
def continuation(
    corpus: Corpus,
    row: int,
    *,
    rng: np.random.Generator,
    room: int,
    separator: int | None = None,
    limit: Count | None = None,
    crop: Crop = "head",
) -> Parts:
    """{"": one of the first `limit` continuations}; the passage itself where they are empty (MASTER's released code)."""
    found = corpus.continuations(row)[:limit]
    text = found[int(rng.integers(len(found)))] if found else corpus.text(row)._replace(weights=None)
    return {"": cropped(text, room, crop, rng=rng)}
