"""Views with two texts of one document."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor
from typing import Literal

import numpy as np

from drtk.errors import UsageError
from drtk.pretraining.views.base import (
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
from drtk.text.token_dataset import Text

REACH = 100  # passages to either side among which a random one is drawn


def following(position: int, count: int) -> int | None:
    """The next passage; None for the last (MASTER's next passage)."""
    return position + 1 if position + 1 < count else None


def nearby(position: int, count: int, *, rng: np.random.Generator) -> int | None:
    """One of the neighbours, each with the same chance; None in a document of one passage (CoT-MAE)."""
    return _one_of([other for other in (position - 1, position + 1) if 0 <= other < count], rng)


def random_other(position: int, count: int, *, rng: np.random.Generator) -> int | None:
    """Another passage of the document, at most REACH away (CoT-MAE); None in a document of one passage."""
    first, last = max(0, position - REACH), min(count, position + REACH + 1)
    return _one_of([other for other in range(first, last) if other != position], rng)


def span_pair(count: int, *, rng: np.random.Generator) -> tuple[int, int] | None:
    """Two different passages, drawn without replacement (coCondenser); None in a document of one passage."""
    if count < 2:
        return None
    first, second = rng.choice(count, size=2, replace=False)
    return int(first), int(second)


def overlap(
    position: int, lengths: Sequence[Sequence[int]], cap: int, *, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """A passage that shares its first sentences with the last ones of another (CoT-MAE), as (passage, sentence) in reading order.

    lengths: for each passage of the document, the lengths of its sentences, in the units of `cap`.
    It begins r sentences before the end of passage `position`, r from 1 to half of its sentences, and goes on until the next
    sentence would exceed `cap`. For the last passage it goes backwards: its first r sentences, and what stands before them.
    """
    own = len(lengths[position])
    if own == 0:
        return []
    shared = int(rng.integers(1, max(1, own // 2) + 1))
    flat = [(passage, sentence) for passage, inside in enumerate(lengths) for sentence in range(len(inside))]
    if position + 1 < len(lengths):
        order = flat[flat.index((position, own - shared)) :]
    else:
        order = flat[flat.index((position, shared - 1)) :: -1]
    taken: list[tuple[int, int]] = []
    size = 0
    for passage, sentence in order:
        size += lengths[passage][sentence]
        if size > cap and len(taken) >= 1:
            break
        taken.append((passage, sentence))
    return sorted(taken)


def _one_of(choices: list[int], rng: np.random.Generator) -> int | None:
    return choices[int(rng.integers(len(choices)))] if choices else None


Spans = Literal["random", "nearby", "overlap", "mixed", "distinct"]
MIXED: tuple[Spans, ...] = ("random", "nearby", "overlap")


@needing("documents", spans={"overlap": "sentences", "mixed": "sentences"})
def pair(
    corpus: Corpus,
    row: int,
    *,
    rng: np.random.Generator,
    room: int,
    separator: Separator | None = None,
    spans: Spans = "random",
    title: Title = "none",
    crop: Crop = "head",
) -> Parts | None:
    """{"a": the passage, "b": one that belongs with it}; None in a document of one passage.

    spans: random (another within 100), nearby (the one before or after), overlap (shares a's last sentences and goes on), mixed
    (one of the three, of those there are; CoT-MAE), or distinct: `row` is a document, a and b are two of its passages, drawn
    without replacement (coCondenser).
    """
    if spans == "distinct":
        members = corpus.span(row)
        drawn = span_pair(len(members), rng=rng)
        if drawn is None:
            return None
        own, text = int(members[drawn[0]]), None
        other: int | None = int(members[drawn[1]])
    else:
        own = row
        other, text = _partner(corpus, row, spans, room, rng=rng)
    if other is None:
        return None
    texts = {"a": (own, corpus.text(own)), "b": (other, corpus.text(other) if text is None else text)}
    return {
        name: titled_part(corpus, *each, title=title, separator=separator, room=room, crop=crop, rng=rng)
        for name, each in texts.items()
    }


def _partner(
    corpus: Corpus, row: int, spans: Spans, room: int, *, rng: np.random.Generator
) -> tuple[int | None, Text | None]:
    """The passage that belongs with `row`, and its text where that is not the passage's own; (None, None) where none does."""
    members = corpus.span(corpus.document(row))
    if len(members) < 2:
        return None, None
    run, place = corpus.run(row)
    if spans == "mixed":
        there = MIXED if len(run) > 1 else MIXED[:1]
        spans = there[int(rng.integers(len(there)))]
    if spans == "random":
        position = int(np.flatnonzero(members == row)[0])
        other = random_other(position, len(members), rng=rng)
        return (None if other is None else int(members[other])), None
    if len(run) < 2:
        return None, None
    if spans == "nearby":
        other = nearby(place, len(run), rng=rng)
        return (None if other is None else int(run[other])), None
    return row, _overlapping(corpus, run, place, room, rng=rng)


def _overlapping(corpus: Corpus, run: np.ndarray, place: int, room: int, *, rng: np.random.Generator) -> Text:
    """The text of at most `room` pieces, one sentence at least, that shares sentences with the passage at `place` of `run`."""
    step = -1 if place == len(run) - 1 else 1
    near = [int(run[place])]  # the passage and as many after (of the last: before) it as the text can reach into
    size = 0
    for at in range(place + step, len(run) if step > 0 else -1, step):
        near.append(int(run[at]))
        size += corpus.sentences(near[-1])[-1][1]
        if size > room:
            break
    near = near[::step]
    sentences = [corpus.sentences(row) for row in near]
    lengths = [[end - begin for begin, end in inside] for inside in sentences]
    taken = overlap(0 if step > 0 else len(near) - 1, lengths, room, rng=rng)
    texts = {passage: corpus.text(near[passage]) for passage in {passage for passage, _ in taken}}
    return joined([piece(texts[passage], *sentences[passage][sentence]) for passage, sentence in taken])


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
