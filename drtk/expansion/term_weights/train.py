"""Train DeepCT and DeepImpact (docs/methods/term-weights.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from drtk.data.corpus_store import CorpusStore
from drtk.errors import DrtkError, RecordError
from drtk.expansion.config import WeightingSettings, WeightTrainingConfig
from drtk.losses.ranking import pairwise_softmax_loss, term_recall_loss
from drtk.models.term_weighter import TermWeightModel, TermWeightPredictor, save_term_weighter
from drtk.records import Passage
from drtk.runtime.sharding import sample_evenly
from drtk.text.expanded_text import get_added_texts
from drtk.text.word_pieces import WordPieceTokenizer, WordPositions, locate_passage_words
from drtk.text.words import extract_question_words, load_function_words, make_stemmer
from drtk.training.arguments import Schedule, build_training_arguments, plan_schedule
from drtk.training.dataset import CorpusTexts, SampledExample, SampledExamples
from drtk.training.examples import PackedExamples, TrainingData
from drtk.training.fit import fit
from drtk.training.sampling import EpochDataset

# Longest input in tokens, and largest norm of a gradient, as in the papers.
MAX_LENGTH = {"deepct": 128, "deepimpact": 300}
MAX_GRADIENT = {"deepct": 1.0, "deepimpact": 2.0}
_BATCH = 1000  # passages that are looked up together
_SAMPLE = 2000  # training passages in which the largest impact is searched


class PassageQuestions(NamedTuple):
    """A passage and the questions it answers."""

    passage: Passage
    queries: list[str]


class PassageQuestionsByNumber:
    """The positives of all examples by number, each with all the questions it answers."""

    def __init__(self, examples: PackedExamples, *, queries: dict[str, str], corpus: CorpusTexts) -> None:
        self._texts, self._corpus = queries, corpus
        self._queries: dict[str, list[str]] = {}
        for at, query_id in enumerate(examples.query_ids):
            for number in examples.positives(at):
                self._queries.setdefault(examples.passage_ids[number], []).append(query_id)
        self._ids = list(self._queries)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, number: int) -> PassageQuestions:
        id = self._ids[number]
        (passage,) = self._corpus.get_many([id])
        return PassageQuestions(passage, [self._texts[query] for query in dict.fromkeys(self._queries[id])])


def compute_recall(words: Iterable[str], queries: Sequence[str], *, stem: Callable[[str], str]) -> list[float]:
    """Return for each word the share of the queries with a word of the same stem; 0 for function words."""
    stems = [{stem(word) for word in extract_question_words(query)} for query in queries]
    excluded = load_function_words()
    shares: dict[str, float] = {}
    for word in words:
        if word not in shares:
            stemmed = stem(word)
            shares[word] = 0.0 if word in excluded else sum(stemmed in query for query in stems) / len(stems)
    return [shares[word] for word in words]


class _PassageCollator:
    """Tokenize passages. room: word pieces of an input; expand: fields whose texts are read after a passage"""

    def __init__(
        self,
        weigher: TermWeightModel,
        tokenizer: WordPieceTokenizer,
        *,
        room: int,
        title: str,
        expand: Sequence[str] = (),
    ) -> None:
        self._weigher, self._tokenizer, self._room, self._title = weigher, tokenizer, room, title
        self._expand = expand
        self._before = len(weigher.first)  # special tokens

    def _inputs(self, places: Sequence[WordPositions]) -> dict[str, np.ndarray]:
        tokens = self._weigher.add_special_tokens([each.ids for each in places], limit=self._room)
        return tokens.pad(np.arange(len(places)), pad=self._weigher.pad)


class RecallCollator(_PassageCollator):
    """Batches for DeepCT: the model's inputs, and `recall` and `first`, (passages, tokens)."""

    def __call__(self, items: Sequence[PassageQuestions]) -> dict[str, Tensor]:
        """Return the inputs of a step."""
        stem = make_stemmer("porter")
        places = locate_passage_words([item.passage for item in items], self._tokenizer, "pieces", title=self._title)
        batch = self._inputs(places)
        recall = np.zeros(batch["input_ids"].shape, dtype=np.float32)
        first = np.zeros_like(recall)
        for row, (item, each) in enumerate(zip(items, places, strict=True)):
            columns = [self._before + head for head in each.heads if head < self._room]
            recall[row, columns] = compute_recall(each.words[: len(columns)], item.queries, stem=stem)
            first[row, columns] = 1
        return _to_tensors(batch | {"recall": recall, "first": first})


class PairCollator(_PassageCollator):
    """Batches for DeepImpact of a positive and a negative per example: inputs, and `asked`, (2 * examples, tokens).

    asked: 1 at the first piece of the first occurrence of a word of the question
    Raises RecordError for added texts of a wrong type.
    """

    def __call__(self, items: Sequence[SampledExample]) -> dict[str, Tensor]:
        """Return the inputs of a step; a positive's row is followed by its negative's."""
        places = [
            each
            for item in items
            for each in locate_passage_words(
                item.passages, self._tokenizer, "basic", title=self._title, expand=self._expand
            )
        ]
        batch = self._inputs(places)
        asked = np.zeros(batch["input_ids"].shape, dtype=np.float32)
        for row, each in enumerate(places):
            first = each.find_first_heads()
            for word in extract_question_words(items[row // 2].query):
                head = first.get(word, self._room)
                if head < self._room:
                    asked[row, self._before + head] = 1
        return _to_tensors(batch | {"asked": asked})


def _to_tensors(arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def check_added_texts(ids: Sequence[str], corpus: CorpusStore, fields: Sequence[str]) -> None:
    """Raise RecordError (file:line) for the first passage with a field of `fields` that holds no texts."""
    for begin in range(0, len(ids) if fields else 0, _BATCH):
        for passage in corpus.get_many(ids[begin : begin + _BATCH]):
            try:
                for name in fields:
                    get_added_texts(passage, name)
            except ValueError as error:
                raise RecordError(corpus.locate(passage.id), f"passage '{passage.id}': {error}") from error


def plan(
    examples: PackedExamples, method: str, training: WeightTrainingConfig, *, source: str = "examples"
) -> Schedule:
    """Return the schedule for the examples of the file `source`. Raises what `plan_schedule` raises."""
    if method == "deepimpact":
        return plan_schedule(len(examples), training, source=source)
    passages = {number for at in range(len(examples)) for number in examples.positives(at)}
    return plan_schedule(len(passages), training, what="passages", source=source)


def make_recall_objective(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return {"recall": ()}, DeepCT's loss of a batch."""
    inputs = dict(inputs)
    recall, first = inputs.pop("recall"), inputs.pop("first")
    return {"recall": term_recall_loss(model(**inputs), recall, first)}


def make_pair_objective(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return {"pairs": ()}, DeepImpact's loss of a batch with alternating rows of positives and negatives."""
    inputs = dict(inputs)
    asked = inputs.pop("asked")  # (2 * pairs, tokens)
    scores = (model(**inputs) * asked).sum(dim=1)
    return {"pairs": pairwise_softmax_loss(scores[0::2], scores[1::2])}


def train_weigher(
    data: TrainingData,
    folder: Path,
    *,
    weigher: TermWeightModel,
    settings: WeightingSettings,
    training: WeightTrainingConfig,
    seed: int = 42,
    device: str = "auto",
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train, write the model into `folder` (rank zero); return counts of the run, and entries for the model's meta.json.

    folder: for checkpoints (deleted at the end), log.jsonl and the model; training continues from a checkpoint in it
    training: as `WeightTrainingConfig.resolve` returns it
    Raises MismatchError for a length that the model cannot read, and what `drtk.training.fit.fit` raises.
    """
    method = weigher.method
    schedule = plan(data.examples, method, training, source=data.source)
    length = settings.max_length or min(MAX_LENGTH[method], weigher.max_length)
    title = settings.title or "join"
    clip = [f"max_grad_norm={MAX_GRADIENT[method]}"]
    arguments = build_training_arguments(training, schedule, folder, seed=seed, device=device, defaults=clip)
    tokenizer = WordPieceTokenizer(str(weigher.folder))
    reading: dict[str, Any] = {"room": weigher.count_content_tokens(length), "title": title, "expand": settings.expand}
    texts: dict[str, Any] = {"queries": data.queries, "corpus": data.corpus}
    steps: dict[str, Any] = {"batch": training.batch_size, "steps": schedule.steps, "seed": seed}
    dataset: EpochDataset[Any]
    collate: Callable[[Sequence[Any]], dict[str, Tensor]]
    if method == "deepct":
        dataset = EpochDataset(PassageQuestionsByNumber(data.examples, **texts), **steps)
        collate = RecallCollator(weigher, tokenizer, **reading)
    else:
        dataset = SampledExamples(data.examples, **texts, negatives=1, **steps)
        collate = PairCollator(weigher, tokenizer, **reading)
    facts: dict[str, Any] = {"method": method, "title": title, "trained_length": length}
    if method == "deepimpact":
        facts |= {"expand": list(settings.expand)}

    def save() -> None:
        if method == "deepimpact":
            facts["largest"] = find_largest_impact(
                weigher, tokenizer, data.examples, data.corpus, settings=settings, length=length, device=device
            )
        weigher.module.cpu().float().eval()
        save_term_weighter(weigher, folder)

    counts = fit(
        weigher.module.train(),
        dataset,
        collate,
        objective=make_recall_objective if method == "deepct" else make_pair_objective,
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
    corpus: CorpusTexts,
    *,
    settings: WeightingSettings,
    length: int,
    device: str,
) -> float:
    """Return the largest impact of a word, without function words, in at most 2,000 of the examples' passages."""
    ids = [*sample_evenly(examples.passage_ids, _SAMPLE, of=len(examples.passage_ids))]
    run = TermWeightPredictor(weigher, device=device, dtype="float32", max_length=length)
    excluded = load_function_words()
    largest = 0.0
    for begin in range(0, len(ids), 256):
        passages = corpus.get_many(ids[begin : begin + 256])
        places = locate_passage_words(
            passages, tokenizer, "basic", title=settings.title or "join", expand=settings.expand
        )
        for each, values in zip(places, run([each.ids for each in places]), strict=True):
            heads = [head for word, head in each.find_first_heads().items() if word not in excluded]
            largest = max([largest, *map(float, values[heads])])
    if largest <= 0:
        raise DrtkError("every impact is 0 after training: try another `seed` or a lower `learning_rate`")
    return largest
