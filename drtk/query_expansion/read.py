"""Read answers from passages with Fusion-in-Decoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drtk.data.checks import PASSAGES, WITHOUT_TEXT, PassageLookup, iter_known_hits, skip_unknown_ids
from drtk.data.jsonl import dump
from drtk.data.trec import Order
from drtk.errors import DrtkError, MismatchError
from drtk.models.device import choose_device
from drtk.models.model_folder import locate
from drtk.models.seq2seq import DecodingState, GenerationModel, load_generation_model
from drtk.query_expansion.config import ReadSettings
from drtk.records import Passage
from drtk.runtime.filter_job import WindowResult
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import warn
from drtk.runtime.runners import BatchFunction
from drtk.runtime.streams import name_of
from drtk.text.batching import TokenizedTexts, iter_batches_by_length

_SPARSE = 0.75  # finished questions leave the batch once fewer than this share of it is unfinished


class Answer(NamedTuple):
    """Tokens of an answer without the end token, and the log-probability of all, the end token included."""

    tokens: list[int]
    score: float


@torch.inference_mode()
def encode_passages(
    writer: GenerationModel, tokens: TokenizedTexts, groups: Sequence[np.ndarray], *, budget: int
) -> tuple[Tensor, Tensor]:
    """Return the concatenated encodings of each question's passages, (questions, positions, hidden), and their mask.

    groups: for each question the rows of its passages in `tokens`, at least one; budget: tokens encoded at once
    """
    model: Any = writer.model
    lengths = [int(tokens.lengths[group].sum()) for group in groups]
    width = max(lengths)
    rows = np.concatenate(groups)
    begins = np.concatenate(
        [at * width + np.cumsum(tokens.lengths[group]) - tokens.lengths[group] for at, group in enumerate(groups)]
    )
    hidden: Tensor | None = None
    for chosen in iter_batches_by_length(tokens.lengths[rows], budget=budget):
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
def decode_answers(writer: GenerationModel, hidden: Tensor, mask: Tensor, *, longest: int) -> list[Answer]:
    """Return the greedy answer to each question, at most `longest` tokens. hidden, mask: of `encode_passages`"""
    decoding = DecodingState(writer, None, mask, hidden=hidden)
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
            decoding.select_rows(kept)
            rows, tokens = [rows[place] for place in open_], tokens[kept]
        decoding.append(tokens)
    return answers


_CPU_TOKENS, _GPU_TOKENS = 1 << 15, 1 << 17  # answered from at once
_CPU_ENCODED, _GPU_ENCODED = 1 << 12, 1 << 16  # encoded at once


@dataclass(frozen=True, slots=True)
class ReaderQuestion:
    """A question and the reader's input for each of its passages, best first; `textless` of them have no text."""

    query_id: str
    inputs: list[str]
    textless: int = 0


def format_reader_input(question: str, passage: Passage) -> str:
    """Return `question: q title: t context: p` (docs/methods/fid.md).

    Without a title the word `title:` stays, as in the public code: readers were never trained without it.
    """
    return " ".join(f"question: {question} title: {passage.title} context: {passage.text}".split())


def iter_reader_questions(
    run: str, *, queries: Mapping[str, str], corpus: PassageLookup, depth: int, order: Order, tracker: InputTracker
) -> Iterator[ReaderQuestion]:
    """Yield the questions of a run in its order, with their first `depth` passages.

    Warns once if ranks and scores disagree on the first passages: the public reader sorts by score.
    Raises RecordError (file:line, and how many more) for ids that queries or corpus lack, unless `tracker`
    skips them.
    """
    warned = False
    known = iter_known_hits(run, queries=queries, corpus=corpus, depth=depth, tracker=tracker, order=order)
    for hits in skip_unknown_ids(known, run, tracker):
        ids = hits.to_ranked_ids(order)[:depth]
        if not warned and hits.to_ranked_ids("rank")[:depth] != hits.to_ranked_ids("score")[:depth]:
            warned = True
            other = "score" if order == "rank" else "rank"
            warn(
                f"{name_of(run)}:{hits.lines[0]}: of query '{hits.query_id}', ranks and scores give different orders; "
                f"passages are read by {order} (`order` {other} uses the other, as does drtk eval)"
            )
        question = queries[hits.query_id]
        passages = corpus.get_many(ids)
        inputs = [format_reader_input(question, passage) for passage in passages]
        yield ReaderQuestion(hits.query_id, inputs, sum(not passage.text.strip() for passage in passages))


class ReaderBatch(NamedTuple):
    """A window of questions, the tokens of their inputs, and for each question the rows of its own."""

    questions: list[ReaderQuestion]
    tokens: TokenizedTexts
    groups: list[np.ndarray]


class AnswerReader(BatchFunction):
    """Answer questions: the greedy answer, with its log-probability as the score.

    tokenizer: its folder, for a model folder without one
    Raises MismatchError for a model that is no encoder-decoder, or lacks weights or a tokenizer.
    """

    def __init__(self, model: str, tokenizer: str | None, settings: ReadSettings, device: str) -> None:
        self._model, self._settings, self._device = model, settings, choose_device(device)
        self._writer = load_generation_model(
            locate(model), tokenizer_folder=None if tokenizer is None else locate(tokenizer)
        )
        if not self._writer.is_encoder_decoder:
            raise MismatchError(f"{model}: is a decoder-only model; an encoder-decoder (T5) is needed")
        on_cpu = self._device.type == "cpu"
        dtype = ("float32" if on_cpu else "bfloat16") if settings.precision == "auto" else settings.precision
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._writer.model.to(self._device, self._dtype)
        self._budget = settings.batch_tokens or (_CPU_TOKENS if on_cpu else _GPU_TOKENS)
        self._encoded = min(self._budget, _CPU_ENCODED if on_cpu else _GPU_ENCODED)
        self._room = min(settings.max_length, self._writer.max_length)

    def prepare(self, records: list[ReaderQuestion]) -> ReaderBatch:
        """Tokenize the questions' inputs."""
        texts = [text for question in records for text in question.inputs]
        found = self._writer.tokenizer(
            texts, truncation=True, max_length=self._room, padding=False, return_attention_mask=False
        )
        ends = np.cumsum([len(question.inputs) for question in records])
        groups = [np.arange(end - len(each.inputs), end) for each, end in zip(records, ends, strict=True)]
        return ReaderBatch(records, TokenizedTexts.from_lists(found["input_ids"], None), groups)

    def __call__(self, prepared: ReaderBatch) -> WindowResult:
        """Return the predictions, in order, as JSON lines. Raises DrtkError for a non-finite score or a lack of memory."""
        questions, tokens, groups = prepared
        lengths = np.array([tokens.lengths[group].sum() for group in groups])
        answers: dict[int, Answer] = {}
        for rows in iter_batches_by_length(lengths, budget=self._budget):
            answers |= zip(rows.tolist(), self._answers(tokens, [groups[row] for row in rows]), strict=True)
        written = self._writer.tokenizer.batch_decode(
            [answers[row].tokens for row in range(len(questions))], skip_special_tokens=True
        )
        lines = [
            dump({"query_id": each.query_id, "answer": " ".join(text.split()), "score": round(answers[row].score, 6)})
            for row, (each, text) in enumerate(zip(questions, written, strict=True))
        ]
        counts = {PASSAGES: len(tokens), WITHOUT_TEXT: sum(question.textless for question in questions)}
        return WindowResult(lines, {name: count for name, count in counts.items() if count})

    def _answers(self, tokens: TokenizedTexts, groups: list[np.ndarray]) -> list[Answer]:
        try:
            hidden, mask = encode_passages(self._writer, tokens, groups, budget=self._encoded)
            answers = decode_answers(self._writer, hidden, mask, longest=self._settings.max_new_tokens)
        except torch.OutOfMemoryError as error:
            total = sum(int(tokens.lengths[group].sum()) for group in groups)
            raise DrtkError(
                f"{self._device}: out of memory at {total:,} tokens of {len(groups)} questions; lower `batch_tokens`, "
                "then `depth`"
            ) from error
        if not all(isfinite(answer.score) for answer in answers):  # T5 overflows in float16
            raise DrtkError(f"{self._model}: gave a non-finite score, computing in {self._dtype}")
        return answers
