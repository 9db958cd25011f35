"""Answers read out of retrieved passages by Fusion-in-Decoder: the batch function behind `drtk read`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import numpy as np
import torch

from drtk.errors import DrtkError, MismatchError
from drtk.io.filtering import Done
from drtk.io.intake import Intake
from drtk.io.jsonl import dump
from drtk.io.known_hits import Texts, forgiven, known_hits
from drtk.io.progress import warn
from drtk.io.streams import name_of
from drtk.io.textless import PASSAGES, TEXTLESS
from drtk.io.trec import Order, QueryHits
from drtk.models.device import choose_device
from drtk.models.fid import Answer, answered, encoded
from drtk.models.hub import locate
from drtk.models.seq2seq import load_writer
from drtk.records import Passage
from drtk.runners.base import BatchFunction
from drtk.settings.reading import ReadSettings
from drtk.text.batching import Tokens, batches_by_length

_CPU_TOKENS, _GPU_TOKENS = 1 << 15, 1 << 17  # answered from at once
_CPU_ENCODED, _GPU_ENCODED = 1 << 12, 1 << 16  # encoded at once


@dataclass(frozen=True, slots=True)
class Question:
    """A question as a reader sees it: an input for each of its passages, best first; `textless` of them have no text."""

    query_id: str
    inputs: list[str]
    textless: int = 0


def reader_input(question: str, passage: Passage) -> str:
    """What is read of a passage: `question: q title: t context: p` (methods, section 7.11).

    Without a title its word stays, as in the public code: readers never saw an input without it.
    """
    return " ".join(f"question: {question} title: {passage.title} context: {passage.text}".split())


def questions_read(
    run: str, *, queries: Mapping[str, str], corpus: Texts, depth: int, order: Order, intake: Intake
) -> Iterator[Question]:
    """The questions of a run in its order, with their first `depth` passages; one in memory at a time.

    Warns once where ranks and scores disagree on which passages come first: readers that sort by score, as the public one does,
    would see others. Raises RecordError (file:line, and how many more) for ids that queries or corpus lack, unless `intake`
    forgives them.
    """
    told = False
    known = known_hits(run, queries=queries, corpus=corpus, depth=depth, intake=intake, order=order)
    for hits in forgiven(known, run, intake):
        ids = hits.ranked_ids(order)[:depth]
        if not told and _disputed(hits, depth):
            told = True
            other = "score" if order == "rank" else "rank"
            warn(
                f"{name_of(run)}:{hits.lines[0]}: of query '{hits.query_id}', ranks and scores tell another order; "
                f"passages are read by {order} (--order {other} for the other, which drtk eval has too)"
            )
        question = queries[hits.query_id]
        passages = corpus.many(ids)
        inputs = [reader_input(question, passage) for passage in passages]
        yield Question(hits.query_id, inputs, sum(not passage.text.strip() for passage in passages))


def _disputed(hits: QueryHits, depth: int) -> bool:
    return hits.ranked_ids("rank")[:depth] != hits.ranked_ids("score")[:depth]


class Prepared(NamedTuple):
    """A window of questions; the tokens of all their inputs; and for each question the rows of its own."""

    questions: list[Question]
    tokens: Tokens
    groups: list[np.ndarray]


class Read(BatchFunction):
    """Questions to predictions: the greedy answer, and its log-probability as the score.

    tokenizer: where it is, for a model folder without one
    Raises MismatchError for a model that does not read one text and write another, or lacks weights or a tokenizer.
    """

    def __init__(self, model: str, tokenizer: str | None, settings: ReadSettings, device: str) -> None:
        self._model, self._settings, self._device = model, settings, choose_device(device)
        self._writer = load_writer(locate(model), tokenizer_at=None if tokenizer is None else locate(tokenizer))
        if not self._writer.two_sided:
            raise MismatchError(
                f"{model}: goes on with a text; a model that reads one and writes another is needed (T5)"
            )
        on_cpu = self._device.type == "cpu"
        self._dtype = _dtype(settings.dtype, on_cpu=on_cpu)
        self._writer.model.to(self._device, self._dtype)
        self._budget = settings.batch_tokens or (_CPU_TOKENS if on_cpu else _GPU_TOKENS)
        self._encoded = min(self._budget, _CPU_ENCODED if on_cpu else _GPU_ENCODED)
        self._room = min(settings.max_length, self._writer.longest)

    def prepare(self, records: list[Question]) -> Prepared:
        """The questions' inputs as tokens."""
        texts = [text for question in records for text in question.inputs]
        found = self._writer.tokenizer(
            texts, truncation=True, max_length=self._room, padding=False, return_attention_mask=False
        )
        ends = np.cumsum([len(question.inputs) for question in records])
        groups = [np.arange(end - len(each.inputs), end) for each, end in zip(records, ends, strict=True)]
        return Prepared(records, Tokens.of(found["input_ids"], None), groups)

    def __call__(self, prepared: Prepared) -> Done:
        """The window's predictions, in order, as JSON lines. Raises DrtkError where a score is no number, or memory too small."""
        questions, tokens, groups = prepared
        lengths = np.array([tokens.lengths[group].sum() for group in groups])
        answers: dict[int, Answer] = {}
        for rows in batches_by_length(lengths, budget=self._budget):
            answers |= zip(rows.tolist(), self._answers(tokens, [groups[row] for row in rows]), strict=True)
        written = self._writer.tokenizer.batch_decode(
            [answers[row].tokens for row in range(len(questions))], skip_special_tokens=True
        )
        lines = [
            dump({"query_id": each.query_id, "answer": " ".join(text.split()), "score": round(answers[row].score, 6)})
            for row, (each, text) in enumerate(zip(questions, written, strict=True))
        ]
        counts = {PASSAGES: len(tokens), TEXTLESS: sum(question.textless for question in questions)}
        return Done(lines, {name: count for name, count in counts.items() if count})

    def _answers(self, tokens: Tokens, groups: list[np.ndarray]) -> list[Answer]:
        try:
            hidden, mask = encoded(self._writer, tokens, groups, budget=self._encoded)
            found = answered(self._writer, hidden, mask, longest=self._settings.max_new_tokens)
        except torch.OutOfMemoryError as error:
            total = sum(int(tokens.lengths[group].sum()) for group in groups)
            raise DrtkError(
                f"{self._device}: out of memory at {total:,} tokens of {len(groups)} questions; lower --batch-tokens, "
                "then --depth"
            ) from error
        if not all(isfinite(answer.score) for answer in found):  # T5 overflows in float16
            raise DrtkError(f"{self._model}: gave a score that is no finite number, computing in {self._dtype}")
        return found


def _dtype(name: str, *, on_cpu: bool) -> torch.dtype:
    if name == "auto":
        return torch.float32 if on_cpu else torch.bfloat16
    found: torch.dtype = getattr(torch, name)
    return found
