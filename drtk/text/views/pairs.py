"""Two texts of one document (methods: section 1.3)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from drtk.text import relations
from drtk.text.tokenised import Text
from drtk.text.views.base import Corpus, Crop, Parts, Separator, Title, joined, needing, piece, titled_part

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
        drawn = relations.span_pair(len(members), rng=rng)
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
        other = relations.random_other(position, len(members), rng=rng)
        return (None if other is None else int(members[other])), None
    if len(run) < 2:
        return None, None
    if spans == "nearby":
        other = relations.nearby(place, len(run), rng=rng)
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
    taken = relations.overlap(0 if step > 0 else len(near) - 1, lengths, room, rng=rng)
    texts = {passage: corpus.text(near[passage]) for passage in {passage for passage, _ in taken}}
    return joined([piece(texts[passage], *sentences[passage][sentence]) for passage, sentence in taken])
