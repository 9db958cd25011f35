"""Views of a passage, its successor, and the queries and continuations written for it."""

from __future__ import annotations

import numpy as np

from drtk.pretraining.config import Count
from drtk.pretraining.views.base import (
    Corpus,
    Crop,
    Parts,
    Separator,
    Title,
    add_title_and_crop,
    crop_text,
    join_texts,
    needs_fields,
    slice_text,
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
    """Return {"": the passage}."""
    text = corpus.text(row)
    return {"": add_title_and_crop(corpus, row, text, title=title, separator=separator, room=room, crop=crop, rng=rng)}


@needs_fields("documents")
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
    """Return {"": the passage after this one} (MASTER); None for the last of a document."""
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
    """Return {"a": the first half of the passage, "b": the second, with the odd token}; None for a single token.

    A longer passage is cropped to 2 * room tokens first. MASTER's released code takes b for the next passage.
    """
    whole = corpus.text(row)
    text = add_title_and_crop(corpus, row, whole, title=title, separator=separator, room=2 * room, crop=crop, rng=rng)
    middle = len(text.ids) // 2
    if not middle:
        return None
    return {"a": slice_text(text, 0, middle), "b": slice_text(text, middle, len(text.ids))}


@needs_fields("queries")
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
    """Return {"": one of the first `limit` queries, sampled uniformly}; None for a passage without queries."""
    texts = corpus.queries(row)[:limit]
    return {"": crop_text(texts[int(rng.integers(len(texts)))], room, crop, rng=rng)} if texts else None


@needs_fields("queries")
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
    """Return {"": the first `limit` queries joined by `separator`, cropped} (methods: section 2.3); None without queries."""
    texts = corpus.queries(row)[:limit]
    return {"": crop_text(join_texts(texts, separator), room, crop, rng=rng)} if texts else None


@needs_fields("continuations")
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
    """Return {"": one of the first `limit` continuations}; the passage itself if all are empty (MASTER's released code)."""
    texts = corpus.continuations(row)[:limit]
    text = texts[int(rng.integers(len(texts)))] if texts else corpus.text(row)._replace(weights=None)
    return {"": crop_text(text, room, crop, rng=rng)}
