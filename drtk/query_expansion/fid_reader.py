"""Read answers from passages with Fusion-in-Decoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drtk.data.checks import PASSAGES, WITHOUT_TEXT, iter_known_hits
from drtk.data.corpus_store import CorpusStore
from drtk.data.rows import dump
from drtk.data.trec import Order
from drtk.errors import DrtkError, MismatchError
from drtk.models.device import choose_device, choose_dtype, move_model, report_out_of_memory
from drtk.models.model_folder import resolve_model_folder
from drtk.models.seq2seq import DecodingState, GenerationModel, load_generation_model
from drtk.query_expansion.config import ReadSettings
from drtk.records import Passage
from drtk.runtime.filter_job import BatchResult
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import warn
from drtk.runtime.runners import BatchFunction
from drtk.runtime.streams import get_source_name
from drtk.text.batching import TokenizedTexts, iter_batches_by_length, tokenize_texts

_MIN_UNFINISHED = 0.75  # finished questions are removed from the batch below this share of unfinished questions


class Answer(NamedTuple):
    """Token ids of an answer without EOS, and the log-probability of the sequence including EOS, if generated."""

    tokens: list[int]
    score: float


@torch.inference_mode()
def encode_passages(
    model: GenerationModel, tokens: TokenizedTexts, groups: Sequence[np.ndarray], *, budget: int
) -> tuple[Tensor, Tensor]:
    """Encode the passages of each question separately, and concatenate their hidden states (Fusion-in-Decoder).

    groups: for each question, the rows of its inputs in `tokens`, at least one
    budget: maximum number of tokens per encoder batch
    Returns hidden states (questions, positions, hidden) and their attention mask (questions, positions).
    """
    t5: Any = model.model
    lengths = [int(tokens.lengths[group].sum()) for group in groups]
    width = max(lengths)
    rows = np.concatenate(groups)
    starts = np.concatenate(
        [
            number * width + np.cumsum(tokens.lengths[group]) - tokens.lengths[group]
            for number, group in enumerate(groups)
        ]
    )
    hidden: Tensor | None = None
    for batch_rows in iter_batches_by_length(tokens.lengths[rows], budget=budget):
        batch = tokens.pad(rows[batch_rows], pad=model.pad)
        ids, mask = (torch.from_numpy(batch[name]).to(t5.device) for name in ("input_ids", "attention_mask"))
        states = t5.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state  # (passages, tokens, hidden)
        if hidden is None:
            hidden = states.new_zeros((len(groups) * width, states.shape[-1]))
        positions = [np.arange(starts[row], starts[row] + tokens.lengths[rows[row]]) for row in batch_rows]
        hidden[torch.from_numpy(np.concatenate(positions)).to(t5.device)] = states[mask.bool()]
    if hidden is None:
        raise ValueError("`groups`: no question has a passage; give at least one row per question")
    mask = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
    return hidden.view(len(groups), width, -1), mask.long().to(t5.device)


@torch.inference_mode()
def decode_answers(model: GenerationModel, hidden: Tensor, mask: Tensor, *, max_new_tokens: int) -> list[Answer]:
    """Decode the answer to each question greedily. hidden, mask: results of `encode_passages`"""
    decoding = DecodingState(model, None, mask, hidden=hidden)
    answers = [Answer([], 0.0) for _ in hidden]
    questions = list(range(len(answers)))  # question index of each row of the batch; -1 if the answer is finished
    end_tokens = set(model.ends)
    for step in range(max_new_tokens):
        log_probs, tokens = decoding.logits.float().log_softmax(dim=-1).max(dim=-1)  # (rows,)
        unfinished = []
        for row, (token, log_prob) in enumerate(zip(tokens.tolist(), log_probs.tolist(), strict=True)):
            question = questions[row]
            if question < 0:
                continue
            is_end = token in end_tokens
            answer, score = answers[question]
            answers[question] = Answer(answer if is_end else [*answer, token], score + log_prob)
            if is_end:
                questions[row] = -1
            else:
                unfinished.append(row)
        if not unfinished or step + 1 == max_new_tokens:
            break
        if len(unfinished) < _MIN_UNFINISHED * len(questions):
            rows = torch.tensor(unfinished, device=tokens.device)
            decoding.select_rows(rows)
            questions, tokens = [questions[row] for row in unfinished], tokens[rows]
        decoding.append(tokens)
    return answers


_CPU_TOKENS, _GPU_TOKENS = 1 << 15, 1 << 17  # input tokens of questions answered at once
_CPU_ENCODED, _GPU_ENCODED = 1 << 12, 1 << 16  # tokens encoded at once


@dataclass(frozen=True, slots=True)
class ReaderQuestion:
    """A question and one reader input per passage, best passage first.

    textless: number of passages without text
    """

    query_id: str
    inputs: list[str]
    textless: int = 0


def format_reader_input(question: str, passage: Passage) -> str:
    """Return `question: q title: t context: p`, the input format of Fusion-in-Decoder (docs/methods/fid.md).

    `title:` is also written for passages without a title, as in the released code.
    """
    return " ".join(f"question: {question} title: {passage.title} context: {passage.text}".split())


def iter_reader_questions(
    run: str, *, queries: Mapping[str, str], corpus: CorpusStore, depth: int, order: Order, tracker: InputTracker
) -> Iterator[ReaderQuestion]:
    """Yield the questions of a run with the inputs of their top `depth` passages.

    order: sort passages by "rank" or "score"; logs a warning if the orders differ, because the released code uses scores
    Raises RecordError (file:line) for unknown ids, unless `tracker` skips them.
    """
    warned = False
    for hits in iter_known_hits(run, queries=queries, corpus=corpus, depth=depth, tracker=tracker, order=order):
        ids = hits.to_ranked_ids(order)[:depth]
        if not warned and hits.to_ranked_ids("rank")[:depth] != hits.to_ranked_ids("score")[:depth]:
            warned = True
            other = "score" if order == "rank" else "rank"
            warn(
                f"{get_source_name(run)}:{hits.lines[0]}: ranks and scores of query '{hits.query_id}' are in different orders; "
                f"passages are sorted by {order} (use `order={other}` to sort by {other})"
            )
        question = queries[hits.query_id]
        passages = corpus.get_many(ids)
        inputs = [format_reader_input(question, passage) for passage in passages]
        yield ReaderQuestion(hits.query_id, inputs, sum(not passage.text.strip() for passage in passages))


# A batch of questions, the tokens of all their inputs, and for each question the rows of its inputs.
ReaderBatch = tuple[list[ReaderQuestion], TokenizedTexts, list[np.ndarray]]


class AnswerReader(BatchFunction):
    """Batch function that answers questions by greedy decoding; the score of an answer is its log-probability.

    tokenizer: folder or hub name of the tokenizer, for a model folder without a tokenizer
    Raises MismatchError for a model that is not an encoder-decoder, or lacks weights or a tokenizer.
    """

    def __init__(self, model: str, tokenizer: str | None, settings: ReadSettings, device: str) -> None:
        self._model, self._settings, self._device = model, settings, choose_device(device)
        self._reader = load_generation_model(
            resolve_model_folder(model), tokenizer_folder=None if tokenizer is None else resolve_model_folder(tokenizer)
        )
        if not self._reader.is_encoder_decoder:
            raise MismatchError(f"{model}: is a decoder-only model; give an encoder-decoder such as T5")
        on_cpu = self._device.type == "cpu"
        self._dtype = choose_dtype(settings.precision, self._device, half="bfloat16")
        move_model(self._reader.model, self._device, self._dtype)
        self._budget = settings.batch_tokens or (_CPU_TOKENS if on_cpu else _GPU_TOKENS)
        self._encoder_budget = min(self._budget, _CPU_ENCODED if on_cpu else _GPU_ENCODED)
        self._room = min(settings.max_length, self._reader.max_length)

    def prepare(self, records: list[ReaderQuestion]) -> ReaderBatch:
        """Tokenize the inputs of the questions."""
        texts = [text for question in records for text in question.inputs]
        tokens = tokenize_texts(self._reader.tokenizer, texts, max_length=self._room)
        ends = np.cumsum([len(question.inputs) for question in records])
        groups = [np.arange(end - len(question.inputs), end) for question, end in zip(records, ends, strict=True)]
        return records, tokens, groups

    def __call__(self, batch: ReaderBatch) -> BatchResult:
        """Return the answers, in order, as JSON lines. Raises DrtkError if out of memory, or for a non-finite score."""
        questions, tokens, groups = batch
        lengths = np.array([tokens.lengths[group].sum() for group in groups])
        answers: dict[int, Answer] = {}
        for rows in iter_batches_by_length(lengths, budget=self._budget):
            answers |= zip(rows.tolist(), self._generate_answers(tokens, [groups[row] for row in rows]), strict=True)
        texts = self._reader.tokenizer.batch_decode(
            [answers[row].tokens for row in range(len(questions))], skip_special_tokens=True
        )
        lines = []
        for row, (question, text) in enumerate(zip(questions, texts, strict=True)):
            answer = {"answer": " ".join(text.split()), "score": round(answers[row].score, 6)}
            lines.append(dump({"query_id": question.query_id} | answer))
        counts = {PASSAGES: len(tokens), WITHOUT_TEXT: sum(question.textless for question in questions)}
        return BatchResult(lines, {name: count for name, count in counts.items() if count})

    def _generate_answers(self, tokens: TokenizedTexts, groups: list[np.ndarray]) -> list[Answer]:
        total = sum(int(tokens.lengths[group].sum()) for group in groups)
        with report_out_of_memory(self._device, "lower `batch_tokens`, then `depth`", num_tokens=total):
            hidden, mask = encode_passages(self._reader, tokens, groups, budget=self._encoder_budget)
            answers = decode_answers(self._reader, hidden, mask, max_new_tokens=self._settings.max_new_tokens)
        if not all(isfinite(answer.score) for answer in answers):  # T5 overflows in float16
            raise DrtkError(
                f"{self._model}: a score is NaN or infinite in {self._dtype}; use `precision=float32` or check the model's weights"
            )
        return answers
