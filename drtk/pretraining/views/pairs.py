"""Views with two texts of one document."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor
from typing import Literal

import numpy as np

from drtk.errors import UsageError
from drtk.pretraining.config import Share
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
from drtk.text.token_dataset import Text

REACH = 100  # passages to either side among which a random partner is sampled
Spans = Literal["random", "nearby", "overlap", "mixed", "distinct"]
MIXED: tuple[Spans, ...] = ("random", "nearby", "overlap")
_ROUNDING = 1e-9  # tolerance when a share of a count is rounded


@needs_fields("documents", spans={"overlap": "sentences", "mixed": "sentences"})
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
    """Return {"a": the passage, "b": another of its document}; None in a document of one passage.

    spans: random (another within 100), nearby (the one before or after), overlap (shares a's last sentences), mixed (one
    of the three; CoT-MAE), or distinct: `row` is a document, a and b are two of its passages, sampled without
    replacement (coCondenser).
    """
    if spans == "distinct":
        members = corpus.span(row)
        if len(members) < 2:
            return None
        own, other = map(int, members[rng.choice(len(members), size=2, replace=False)])
        partner: tuple[int, Text] | None = other, corpus.text(other)
    else:
        own, partner = row, _partner(corpus, row, spans, room, rng=rng)
    if partner is None:
        return None
    texts = {"a": (own, corpus.text(own)), "b": partner}
    return {
        name: add_title_and_crop(corpus, *each, title=title, separator=separator, room=room, crop=crop, rng=rng)
        for name, each in texts.items()
    }


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
    """Return {"": a part of the passage of `shortest` to `longest` of its tokens}; length and start are uniform."""
    return {"": _random_part(corpus.text(row), room, shortest, longest, rng=rng)}


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
    """Return {"a", "b"}: two such parts, sampled independently; they may overlap."""
    text = corpus.text(row)
    return {name: _random_part(text, room, shortest, longest, rng=rng) for name in ("a", "b")}


@needs_fields("sentences")
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
    """Return {"query": a random sentence, "context": the passage}; None for a passage of one sentence.

    The sentence is removed from the context with probability `remove`. A title goes before the context.
    """
    sentences = corpus.sentences(row)
    if len(sentences) < 2:
        return None
    text = corpus.text(row)
    begin, end = sentences[int(rng.integers(len(sentences)))]
    rest = text
    if rng.random() < remove:
        rest = join_texts([slice_text(text, 0, begin), slice_text(text, end, len(text.ids))])
    return {
        "query": crop_text(slice_text(text, begin, end), room, crop, rng=rng),
        "context": add_title_and_crop(
            corpus, row, rest, title=title, separator=separator, room=room, crop=crop, rng=rng
        ),
    }


def random_other(position: int, count: int, *, rng: np.random.Generator) -> int | None:
    """Return another of `count` passages, at most REACH away (CoT-MAE); None if there is one passage."""
    first, last = max(0, position - REACH), min(count, position + REACH + 1)
    return _choose([other for other in range(first, last) if other != position], rng)


def nearby(position: int, count: int, *, rng: np.random.Generator) -> int | None:
    """Return the passage before or after (CoT-MAE); None if there is one passage."""
    return _choose([other for other in (position - 1, position + 1) if 0 <= other < count], rng)


def overlap(
    position: int, lengths: Sequence[Sequence[int]], cap: int, *, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """Return a text that overlaps with passage `position` (CoT-MAE), as sorted (passage, sentence) pairs.

    lengths: the lengths of the sentences of each passage, in units of `cap`
    The text begins r sentences before the end of the passage, r from 1 to half of its sentences, and ends before the
    sentence that would exceed `cap`. For the last passage it runs backwards from the passage's first r sentences.
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


def _choose(choices: list[int], rng: np.random.Generator) -> int | None:
    return choices[int(rng.integers(len(choices)))] if choices else None


def _partner(corpus: Corpus, row: int, spans: Spans, room: int, *, rng: np.random.Generator) -> tuple[int, Text] | None:
    """Return the partner of a passage and its text; None if there is none.

    The row of an overlapping text is that of the passage itself, whose title it gets.
    """
    members = corpus.span(corpus.document(row))
    if len(members) < 2:
        return None
    run, place = corpus.run(row)
    if spans == "mixed":
        available = MIXED if len(run) > 1 else MIXED[:1]
        spans = available[int(rng.integers(len(available)))]
    if spans == "overlap":
        return None if len(run) < 2 else (row, _overlapping(corpus, run, place, room, rng=rng))
    if spans == "random":
        other = random_other(int(np.flatnonzero(members == row)[0]), len(members), rng=rng)
        members_of = members
    else:
        other, members_of = nearby(place, len(run), rng=rng), run
    if other is None:
        return None
    other = int(members_of[other])
    return other, corpus.text(other)


def _overlapping(corpus: Corpus, run: np.ndarray, place: int, room: int, *, rng: np.random.Generator) -> Text:
    """Return a text of at most `room` tokens, or of one sentence, that overlaps with the passage `run[place]`."""
    step = -1 if place == len(run) - 1 else 1
    near = [int(run[place])]  # the passage and as many after it (before it, if it is the last) as the text can reach
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
    return join_texts([slice_text(texts[passage], *sentences[passage][sentence]) for passage, sentence in taken])


def _random_part(text: Text, room: int, shortest: float, longest: float, *, rng: np.random.Generator) -> Text:
    if shortest > longest:
        raise UsageError(f"view 'crop': shortest = {shortest} is above longest = {longest}")
    count = len(text.ids)
    low = max(1, ceil(shortest * count - _ROUNDING))
    high = max(low, floor(longest * count + _ROUNDING))
    length = min(int(rng.integers(low, high + 1)), room)
    begin = int(rng.integers(count - length + 1))
    return slice_text(text, begin, begin + length)
