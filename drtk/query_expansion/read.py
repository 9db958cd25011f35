"""Read answers from passages with Fusion-in-Decoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drtk.data.checks import PASSAGES, TEXTLESS, Texts, iter_known_hits, skip_faulty
from drtk.data.jsonl import dump
from drtk.data.trec import Order, QueryHits
from drtk.errors import DrtkError, MismatchError
from drtk.models.device import choose_device
from drtk.models.model_folder import locate
from drtk.models.seq2seq import Decoding, GenerationModel, load_generation_model
from drtk.query_expansion.config import ReadSettings
from drtk.records import Passage
from drtk.runtime.filter_job import Done
from drtk.runtime.inputs import Intake
from drtk.runtime.progress import warn
from drtk.runtime.runners import BatchFunction
from drtk.runtime.streams import name_of
from drtk.text.batching import Tokens, batches_by_length

_SPARSE = 0.75  # finished questions are taken out once so few of those in the batch are still being answered


class Answer(NamedTuple):
    """Tokens of an answer without the one that ends it, and the log-probability of all of them, the end included."""

    tokens: list[int]
    score: float


@torch.inference_mode()
def encoded(
    writer: GenerationModel, tokens: Tokens, groups: Sequence[np.ndarray], *, budget: int
) -> tuple[Tensor, Tensor]:
    """The encodings of each question's passages, one after the other.

    groups: for each question the rows of its passages in `tokens`, at least one; budget: tokens encoded at once
    returns: (questions, positions, hidden), 0 where a question has fewer; the mask (questions, positions), 1 where it has not
    """
    model: Any = writer.model
    lengths = [int(tokens.lengths[group].sum()) for group in groups]
    width = max(lengths)
    rows = np.concatenate(groups)
    begins = np.concatenate(
        [at * width + np.cumsum(tokens.lengths[group]) - tokens.lengths[group] for at, group in enumerate(groups)]
    )
    hidden: Tensor | None = None
    for chosen in batches_by_length(tokens.lengths[rows], budget=budget):
        batch = tokens.pad(rows[chosen], pad=writer.pad)
        ids, mask = (torch.from_numpy(batch[name]).to(model.device) for name in ("input_ids", "attention_mask"))
        found = model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state  # (passages, tokens, hidden)
        if hidden is None:
            hidden = found.new_zeros((len(groups) * width, found.shape[-1]))
        places = [np.arange(begins[row], begins[row] + tokens.lengths[rows[row]]) for row in chosen]
        hidden[torch.from_numpy(np.concatenate(places)).to(model.device)] = found[mask.bool()]
    if hidden is None:
        raise ValueError("a question without a passage")
    seen = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
    return hidden.view(len(groups), width, -1), seen.long().to(model.device)


@torch.inference_mode()
def answered(writer: GenerationModel, hidden: Tensor, mask: Tensor, *, longest: int) -> list[Answer]:
    """The greedy answer to each question, at most `longest` tokens of it.

    hidden, mask: as `encoded` gives them
    """
    decoding = Decoding(writer, None, mask, hidden=hidden)
    answers = [Answer([], 0.0) for _ in hidden]
    rows = list(range(len(answers)))  # the question that each row of the batch belongs to
    ends = set(writer.ends)
    for step in range(longest):
        chances, tokens = decoding.logits.float().log_softmax(dim=-1).max(dim=-1)  # (rows,)
        open_ = []
        for place, (token, chance) in enumerate(zip(tokens.tolist(), chances.tolist(), strict=True)):
            row = rows[place]
            if row < 0:
                continue
            ended = token in ends
            known, score = answers[row]
            answers[row] = Answer(known if ended else [*known, token], score + chance)
            if ended:
                rows[place] = -1
            else:
                open_.append(place)
        if not open_ or step + 1 == longest:
            break
        if len(open_) < _SPARSE * len(rows):
            kept = torch.tensor(open_, device=tokens.device)
            decoding.keep(kept)
            rows, tokens = [rows[place] for place in open_], tokens[kept]
        decoding.step(tokens)
    return answers


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
    known = iter_known_hits(run, queries=queries, corpus=corpus, depth=depth, intake=intake, order=order)
    for hits in skip_faulty(known, run, intake):
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
        self._writer = load_generation_model(
            locate(model), tokenizer_at=None if tokenizer is None else locate(tokenizer)
        )
        if not self._writer.is_encoder_decoder:
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
