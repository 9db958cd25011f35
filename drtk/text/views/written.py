"""Views that show what was written to a passage: queries (query-as-context, MASTER) and continuations (MASTER)."""

from __future__ import annotations

import numpy as np

from drtk.text.views.base import Corpus, Count, Crop, Parts, cropped, joined, needing


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
