"""Views (functions that select a text of a corpus row): the passage, its spans, queries, continuations and neighbors."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor
from typing import Literal

import numpy as np

from drtk.errors import UsageError
from drtk.pretraining.config import Count, Share
from drtk.pretraining.views.base import Crop, Title, ViewInput, ViewTexts, join_texts, needs_fields, slice_text
from drtk.text.token_dataset import Text

MAX_DISTANCE = 100  # between a passage and a random other passage of its document, in passages
Spans = Literal["random", "nearby", "overlap", "mixed", "distinct"]
MIXED: tuple[Spans, ...] = ("random", "nearby", "overlap")
_ROUNDING = 1e-9  # tolerance when a share of a count is rounded


def passage_view(view: ViewInput, *, title: Title = "none", crop: Crop = "head") -> ViewTexts:
    """Return the passage."""
    return {"": view.build_passage(view.row, title, crop)}


@needs_fields("documents")
def next_passage_view(view: ViewInput, *, title: Title = "none", crop: Crop = "head") -> ViewTexts | None:
    """Return the next passage of the document (MASTER); None for the last passage of a document."""
    other = view.corpus.get_next_passage(view.row)
    return None if other is None else {"": view.build_passage(other, title, crop)}


def halves_view(view: ViewInput, *, title: Title = "none", crop: Crop = "head") -> ViewTexts | None:
    """Return the first half of the passage as "a" and the second half as "b"; None for a passage of one token.

    The passage is first cropped to 2 * max_tokens tokens. MASTER's released code uses "b" as the next passage.
    """
    text = view.build_passage(view.row, title, crop, max_tokens=2 * view.max_tokens)
    middle = len(text.ids) // 2
    if not middle:
        return None
    return {"a": slice_text(text, 0, middle), "b": slice_text(text, middle, len(text.ids))}


@needs_fields("queries")
def query_view(view: ViewInput, *, limit: Count | None = None, crop: Crop = "head") -> ViewTexts | None:
    """Return a random query among the first `limit` queries; None for a passage without queries."""
    text = view.choose(view.corpus.get_queries(view.row)[:limit])
    return None if text is None else {"": view.crop(text, crop)}


@needs_fields("queries")
def queries_view(view: ViewInput, *, limit: Count | None = 10, crop: Crop = "random") -> ViewTexts | None:
    """Return the first `limit` queries, joined by the separator and cropped (docs/methods/doc2query.md); None without queries."""
    texts = view.corpus.get_queries(view.row)[:limit]
    return {"": view.crop(join_texts(texts, view.separator), crop)} if texts else None


@needs_fields("continuations")
def continuation_view(view: ViewInput, *, limit: Count | None = None, crop: Crop = "head") -> ViewTexts:
    """Return a random continuation among the first `limit`, or the passage if it has none (MASTER's released code)."""
    text = view.choose(view.corpus.get_continuations(view.row)[:limit])
    return {"": view.crop(view.corpus.get_text(view.row)._replace(weights=None) if text is None else text, crop)}


@needs_fields("documents", spans={"overlap": "sentences", "mixed": "sentences"})
def passage_pair_view(
    view: ViewInput, *, spans: Spans = "random", title: Title = "none", crop: Crop = "head"
) -> ViewTexts | None:
    """Return the passage as "a" and another passage of its document as "b"; None for a document of one passage.

    spans: how "b" is chosen (CoT-MAE): "random": at most 100 passages away; "nearby": the previous or next passage;
        "overlap": a text that overlaps with "a"; "mixed": one of these three, sampled at random;
        "distinct": the row is a document, and "a" and "b" are two random passages of the document (coCondenser)
    """
    corpus, own, text = view.corpus, view.row, None
    members = corpus.get_document_passages(own if spans == "distinct" else corpus.get_document(own))
    if len(members) < 2:
        return None
    run, place = (members, 0) if spans == "distinct" else corpus.get_consecutive_passages(own)
    if spans == "mixed":
        spans = view.choose(MIXED if len(run) > 1 else MIXED[:1])
    other: int | None
    if spans == "distinct":
        own, other = map(int, members[view.rng.choice(len(members), size=2, replace=False)])
    elif spans == "random":
        other = int(members[sample_other(int(np.flatnonzero(members == own)[0]), len(members), rng=view.rng)])
    elif spans == "nearby":
        other = view.choose([int(run[at]) for at in (place - 1, place + 1) if 0 <= at < len(run)])
    else:
        other = own if len(run) > 1 else None  # the overlapping text gets the title of a
        text = _build_overlapping_text(view, run, place) if len(run) > 1 else None
    if other is None:
        return None
    return {"a": view.build_passage(own, title, crop), "b": view.build_passage(other, title, crop, text=text)}


def crop_view(view: ViewInput, *, shortest: Share = 0.05, longest: Share = 0.5) -> ViewTexts:
    """Return a span of the passage with uniform random start and uniform random length.

    shortest, longest: bounds of the length, as shares of the passage length
    """
    if shortest > longest:
        raise UsageError(f"view 'crop': shortest = {shortest} exceeds longest = {longest}; use a smaller value")
    text = view.corpus.get_text(view.row)
    count = len(text.ids)
    low = max(1, ceil(shortest * count - _ROUNDING))
    high = max(low, floor(longest * count + _ROUNDING))
    length = min(int(view.rng.integers(low, high + 1)), view.max_tokens)
    begin = int(view.rng.integers(count - length + 1))
    return {"": slice_text(text, begin, begin + length)}


def crop_pair_view(view: ViewInput, *, shortest: Share = 0.05, longest: Share = 0.5) -> ViewTexts:
    """Return two independent random spans as "a" and "b" (see `crop_view`)."""
    return {name: crop_view(view, shortest=shortest, longest=longest)[""] for name in ("a", "b")}


@needs_fields("sentences")
def ict_view(view: ViewInput, *, remove: Share = 0.9, title: Title = "none", crop: Crop = "head") -> ViewTexts | None:
    """Return a random sentence as "query" and the passage as "context" (inverse cloze task); None for a single sentence.

    remove: probability that the sentence is removed from the context    title: format of the context's title
    """
    sentences = view.corpus.get_sentence_spans(view.row)
    if len(sentences) < 2:
        return None
    text = view.corpus.get_text(view.row)
    begin, end = view.choose(sentences)
    context = text
    if view.rng.random() < remove:
        context = join_texts([slice_text(text, 0, begin), slice_text(text, end, len(text.ids))])
    sentence = view.crop(slice_text(text, begin, end), crop)
    return {"query": sentence, "context": view.build_passage(view.row, title, crop, text=context)}


def sample_other(position: int, count: int, *, rng: np.random.Generator) -> int:
    """Sample the index of another of `count` passages, at most MAX_DISTANCE away from `position` (CoT-MAE)."""
    first, last = max(0, position - MAX_DISTANCE), min(count, position + MAX_DISTANCE + 1)
    others = [other for other in range(first, last) if other != position]
    return others[int(rng.integers(len(others)))]


def sample_overlap(
    position: int, lengths: Sequence[Sequence[int]], max_length: int, *, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """Sample a text that overlaps with passage `position`, as sorted (passage, sentence) indices (CoT-MAE).

    The text begins r sentences before the end of the passage, with r from 1 to half of its sentences, and has at most
    `max_length` tokens. For the last passage, the text ends after the first r sentences and begins in earlier passages.

    lengths: sentence lengths of each passage, in tokens
    """
    num_sentences = len(lengths[position])
    shared = int(rng.integers(1, max(1, num_sentences // 2) + 1))
    flat = [(passage, sentence) for passage, sizes in enumerate(lengths) for sentence in range(len(sizes))]
    if position + 1 < len(lengths):
        order = flat[flat.index((position, num_sentences - shared)) :]
    else:
        order = flat[flat.index((position, shared - 1)) :: -1]
    selected: list[tuple[int, int]] = []
    size = 0
    for passage, sentence in order:
        size += lengths[passage][sentence]
        if size > max_length and selected:
            break
        selected.append((passage, sentence))
    return sorted(selected)


def _build_overlapping_text(view: ViewInput, passages: np.ndarray, index: int) -> Text:
    """Return a text that overlaps with passage `passages[index]`: at most `max_tokens` tokens, or a single longer sentence."""
    corpus, step = view.corpus, -1 if index == len(passages) - 1 else 1
    near = [int(passages[index])]  # the passage, and the passages after it (or before the last) that the text can reach
    size = 0
    for at in range(index + step, len(passages) if step > 0 else -1, step):
        near.append(int(passages[at]))
        size += corpus.get_sentence_spans(near[-1])[-1][1]
        if size > view.max_tokens:
            break
    near = near[::step]
    sentences = [corpus.get_sentence_spans(row) for row in near]
    lengths = [[end - begin for begin, end in inside] for inside in sentences]
    taken = sample_overlap(0 if step > 0 else len(near) - 1, lengths, view.max_tokens, rng=view.rng)
    texts = {passage: corpus.get_text(near[passage]) for passage in {passage for passage, _ in taken}}
    return join_texts([slice_text(texts[passage], *sentences[passage][sentence]) for passage, sentence in taken])
