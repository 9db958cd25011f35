"""Train DeepCT and DeepImpact (docs/methods/term-weights.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from drtk.data.corpus_store import CorpusStore
from drtk.errors import DrtkError, RecordError
from drtk.expansion.config import WeightingSettings, WeightTrainingConfig
from drtk.expansion.term_weights.learned import compute_impacts
from drtk.losses.ranking import pairwise_softmax_loss, term_recall_loss
from drtk.models.term_weighter import TermWeightModel, TermWeightPredictor, save_term_weight_model
from drtk.records import Passage
from drtk.runtime.sharding import sample_evenly
from drtk.text.expanded_text import get_added_texts
from drtk.text.word_pieces import WordPieceTokenizer, WordPositions, locate_passage_words
from drtk.text.words import extract_question_words, load_stop_words_with_parts, make_stemmer
from drtk.training.arguments import Schedule, build_training_arguments, plan_schedule
from drtk.training.dataset import SampledExample, SampledExamples
from drtk.training.examples import PackedExamples, TrainingData
from drtk.training.fit import fit
from drtk.training.sampling import EpochDataset

# Maximum input length in tokens and maximum gradient norm, as in the papers or their released code.
MAX_LENGTH = {"deepct": 128, "deepimpact": 300}
MAX_GRADIENT_NORM = {"deepct": 1.0, "deepimpact": 2.0}
_BATCH = 1000  # passages read together
_SAMPLE = 2000  # training passages from which the largest impact is computed


class PassageQuestions(NamedTuple):
    """A positive passage and its questions."""

    passage: Passage
    queries: list[str]


class PassageQuestionsDataset:
    """Dataset of the distinct positives of all examples, each with all its questions."""

    def __init__(self, examples: PackedExamples, *, queries: dict[str, str], corpus: CorpusStore) -> None:
        self._texts, self._corpus = queries, corpus
        self._queries: dict[str, list[str]] = {}
        for example, query_id in enumerate(examples.query_ids):
            for index in examples.get_positives(example):
                self._queries.setdefault(examples.passage_ids[index], []).append(query_id)
        self._ids = list(self._queries)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> PassageQuestions:
        id = self._ids[index]
        (passage,) = self._corpus.get_many([id])
        return PassageQuestions(passage, [self._texts[query] for query in dict.fromkeys(self._queries[id])])


def compute_term_recall(words: Iterable[str], queries: Sequence[str], *, stem: Callable[[str], str]) -> list[float]:
    """Return the term recall of each word: the share of queries that contain a word with the same stem; 0 for stop words."""
    query_stems = [{stem(word) for word in extract_question_words(query)} for query in queries]
    excluded = load_stop_words_with_parts()
    recall: dict[str, float] = {}
    for word in words:
        if word not in recall:
            word_stem = stem(word)
            num_queries = sum(word_stem in stems for stems in query_stems)
            recall[word] = 0.0 if word in excluded else num_queries / len(query_stems)
    return [recall[word] for word in words]


def collate_recall(
    items: Sequence[PassageQuestions], *, weigher: TermWeightModel, tokenizer: WordPieceTokenizer, room: int, title: str
) -> dict[str, Tensor]:
    """Return the inputs of a step of DeepCT: the model inputs and two tensors (passages, tokens).

    "first" is 1 at the first word piece of each word, else 0; "recall" has the term recall of the word at these pieces.
    room: maximum number of word pieces in an input, without special tokens
    """
    stem = make_stemmer("porter")
    passages = locate_passage_words([item.passage for item in items], tokenizer, "pieces", title=title)
    batch = _pad_passages(weigher, passages, room)
    recall = np.zeros(batch["input_ids"].shape, dtype=np.float32)
    first = np.zeros_like(recall)
    for row, (item, positions) in enumerate(zip(items, passages, strict=True)):
        columns = [len(weigher.first) + head for head in positions.heads if head < room]
        recall[row, columns] = compute_term_recall(positions.words[: len(columns)], item.queries, stem=stem)
        first[row, columns] = 1
    return _convert_to_tensors(batch | {"recall": recall, "first": first})


def collate_pairs(
    items: Sequence[SampledExample],
    *,
    weigher: TermWeightModel,
    tokenizer: WordPieceTokenizer,
    room: int,
    title: str,
    expand: Sequence[str] = (),
) -> dict[str, Tensor]:
    """Return the inputs of a step of DeepImpact, whose rows alternate between positives and negatives of the examples.

    The tensor "in_question", (2 * examples, tokens), is 1 at the first word piece of the first occurrence of each question
    word, else 0.
    room: maximum number of word pieces in an input    expand: names of fields whose texts are appended to the passage
    Raises RecordError for invalid expansion fields.
    """
    passages = [
        positions
        for item in items
        for positions in locate_passage_words(item.passages, tokenizer, "basic", title=title, expand=expand)
    ]
    batch = _pad_passages(weigher, passages, room)
    in_question = np.zeros(batch["input_ids"].shape, dtype=np.float32)
    for row, positions in enumerate(passages):
        first_heads = positions.find_first_heads()
        for word in extract_question_words(items[row // 2].query):
            head = first_heads.get(word, room)
            if head < room:
                in_question[row, len(weigher.first) + head] = 1
    return _convert_to_tensors(batch | {"in_question": in_question})


def _pad_passages(weigher: TermWeightModel, passages: Sequence[WordPositions], room: int) -> dict[str, np.ndarray]:
    tokens = weigher.add_special_tokens([positions.ids for positions in passages], limit=room)
    return tokens.pad(np.arange(len(passages)), pad=weigher.pad)


def _convert_to_tensors(arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def check_added_texts(ids: Sequence[str], corpus: CorpusStore, fields: Sequence[str]) -> None:
    """Raise RecordError for the first passage with an invalid expansion field."""
    for start in range(0, len(ids) if fields else 0, _BATCH):
        for passage in corpus.get_many(ids[start : start + _BATCH]):
            try:
                for name in fields:
                    get_added_texts(passage, name)
            except ValueError as error:
                raise RecordError(f"{corpus.path}: passage '{passage.id}'", str(error)) from error


def plan_training(
    examples: PackedExamples, method: str, training: WeightTrainingConfig, *, source: str = "examples"
) -> Schedule:
    """Return the training schedule. Raises the errors of `plan_schedule`.

    source: name of the file of examples, for error messages
    """
    if method == "deepimpact":
        return plan_schedule(len(examples), training, source=source)
    passages = {number for example in range(len(examples)) for number in examples.get_positives(example)}
    return plan_schedule(len(passages), training, unit="passages", source=source)


def compute_deepct_loss(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return {"recall": loss}, the scalar DeepCT loss of a batch. inputs: output of `collate_recall`. Source: Dai and Callan 2019"""
    inputs = dict(inputs)
    recall, first = inputs.pop("recall"), inputs.pop("first")
    return {"recall": term_recall_loss(model(**inputs), recall, first)}


def compute_deepimpact_loss(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return {"pairs": loss}, the scalar DeepImpact loss of a batch. Source: Mallia 2021

    inputs: model inputs and "in_question" (1 at words of the query), (2 * pairs, tokens): positive, negative, positive …
    """
    inputs = dict(inputs)
    in_question = inputs.pop("in_question")
    scores = (model(**inputs) * in_question).sum(dim=1)
    return {"pairs": pairwise_softmax_loss(scores[0::2], scores[1::2])}


def train_term_weighter(
    data: TrainingData,
    folder: Path,
    *,
    weigher: TermWeightModel,
    settings: WeightingSettings,
    training: WeightTrainingConfig,
    seed: int = 42,
    device: str = "auto",
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train a term weighting model, and write it into `folder` (on rank 0).

    folder: folder for the model, log.jsonl, and checkpoints (deleted at the end); training resumes from the last
        checkpoint, if any
    training: result of `WeightTrainingConfig.resolve`
    Returns counts for the manifest of the run, and entries for the model's manifest.
    Raises MismatchError for a length above the model's maximum, DrtkError if all impacts are 0 (deepimpact), and the
    errors of `plan_training` and `drtk.training.fit.fit`.
    """
    method = weigher.method
    schedule = plan_training(data.examples, method, training, source=data.source)
    length = settings.max_length or min(MAX_LENGTH[method], weigher.max_length)
    title = settings.title or "join"
    defaults = [f"max_grad_norm={MAX_GRADIENT_NORM[method]}"]
    arguments = build_training_arguments(training, schedule, folder, seed=seed, device=device, defaults=defaults)
    tokenizer = WordPieceTokenizer(str(weigher.folder))
    room = weigher.get_max_word_pieces(length)
    inputs: dict[str, Any] = {"weigher": weigher, "tokenizer": tokenizer, "room": room, "title": title}
    steps: dict[str, Any] = {"batch": training.batch_size, "steps": schedule.steps, "seed": seed}
    dataset: EpochDataset
    collate: Callable[[Sequence[Any]], dict[str, Tensor]]
    if method == "deepct":
        passages = PassageQuestionsDataset(data.examples, queries=data.queries, corpus=data.corpus)
        dataset = EpochDataset(passages, **steps)
        collate = partial(collate_recall, **inputs)
    else:
        dataset = SampledExamples(data, negatives=1, **steps)
        collate = partial(collate_pairs, **inputs, expand=settings.expand)
    facts: dict[str, Any] = {"method": method, "title": title, "trained_length": length}
    if method == "deepimpact":
        facts |= {"expand": list(settings.expand)}

    def save() -> None:
        if method == "deepimpact":
            facts["largest"] = find_largest_impact(
                weigher, tokenizer, data.examples, data.corpus, settings=settings, length=length, device=device
            )
        weigher.module.cpu().float().eval()
        save_term_weight_model(weigher, folder)

    counts = fit(
        weigher.module.train(),
        dataset,
        collate,
        objective=compute_deepct_loss if method == "deepct" else compute_deepimpact_loss,
        arguments=arguments,
        schedule=schedule,
        folder=folder,
        name="termweight",
        save=save,
    )
    return counts, facts


def find_largest_impact(
    weigher: TermWeightModel,
    tokenizer: WordPieceTokenizer,
    examples: PackedExamples,
    corpus: CorpusStore,
    *,
    settings: WeightingSettings,
    length: int,
    device: str,
) -> float:
    """Return the largest impact of a word in a sample of the training passages, without stop words.

    Raises DrtkError if all impacts are 0.
    """
    ids = [*sample_evenly(examples.passage_ids, _SAMPLE, total=len(examples.passage_ids))]
    predict = TermWeightPredictor(weigher, device=device, dtype="float32", max_length=length)
    largest = 0.0
    for start in range(0, len(ids), 256):
        passages = locate_passage_words(
            corpus.get_many(ids[start : start + 256]),
            tokenizer,
            "basic",
            title=settings.title or "join",
            expand=settings.expand,
        )
        for positions, values in zip(passages, predict([positions.ids for positions in passages]), strict=True):
            largest = max([largest, *compute_impacts(positions, values).values()])
    if largest <= 0:
        raise DrtkError("all impacts are 0 after training; use another `seed` or a lower `learning_rate`")
    return largest
