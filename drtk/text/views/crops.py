"""Parts of a passage that should find each other: independent cropping and the inverse cloze task (methods: section 5.12)."""

from __future__ import annotations

from math import ceil, floor

import numpy as np

from drtk.errors import UsageError
from drtk.text.tokenised import Text
from drtk.text.views.base import (
    Corpus,
    Crop,
    Parts,
    Separator,
    Share,
    Title,
    cropped,
    joined,
    needing,
    piece,
    titled_part,
)

_ROUNDING = 1e-9  # a share of a count that is whole but for the last bit of a float counts as whole


def crop(
    corpus: Corpus,
    row: int,
    *,
    rng: np.random.Generator,
    room: int,
    separator: int | None = None,
    shortest: Share = 0.05,
    longest: Share = 0.5,
) -> Parts:
    """{"": a part of the passage of `shortest` to `longest` of its tokens, one at least; every length and place alike."""
    return {"": _part(corpus.text(row), room, shortest, longest, rng=rng)}


def crop_pair(
    corpus: Corpus,
    row: int,
    *,
    rng: np.random.Generator,
    room: int,
    separator: int | None = None,
    shortest: Share = 0.05,
    longest: Share = 0.5,
) -> Parts:
    """{"a", "b"}: two such parts, drawn independently; they may overlap."""
    text = corpus.text(row)
    return {name: _part(text, room, shortest, longest, rng=rng) for name in ("a", "b")}


@needing("sentences")
def ict(
    corpus: Corpus,
    row: int,
    *,
    rng: np.random.Generator,
    room: int,
    separator: Separator | None = None,
    remove: Share = 0.9,
    title: Title = "none",
    crop: Crop = "head",
) -> Parts | None:
    """{"query": one sentence, each with the same chance, "context": the passage, without it with the chance `remove`}.

    None for a passage of one sentence. A title goes before the context.
    """
    sentences = corpus.sentences(row)
    if len(sentences) < 2:
        return None
    text = corpus.text(row)
    begin, end = sentences[int(rng.integers(len(sentences)))]
    rest = text
    if rng.random() < remove:
        rest = joined([piece(text, 0, begin), piece(text, end, len(text.ids))])
    return {
        "query": cropped(piece(text, begin, end), room, crop, rng=rng),
        "context": titled_part(corpus, row, rest, title=title, separator=separator, room=room, crop=crop, rng=rng),
    }


def _part(text: Text, room: int, shortest: float, longest: float, *, rng: np.random.Generator) -> Text:
    if shortest > longest:
        raise UsageError(f"view 'crop': shortest = {shortest} is above longest = {longest}")
    count = len(text.ids)
    low = max(1, ceil(shortest * count - _ROUNDING))
    high = max(low, floor(longest * count + _ROUNDING))
    length = min(int(rng.integers(low, high + 1)), room)
    begin = int(rng.integers(count - length + 1))
    return piece(text, begin, begin + length)
