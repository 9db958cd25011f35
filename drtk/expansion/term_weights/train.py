"""Train DeepCT and DeepImpact (methods: sections 3.4 and 3.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drtk.data.corpus_store import CorpusStore
from drtk.errors import DrtkError, RecordError
from drtk.expansion.config import WeightingSettings, WeightTrainingConfig
from drtk.expansion.term_weights.base import MAX_LENGTH
from drtk.losses.ranking import pair_loss, recall_loss
from drtk.models.term_weighter import TermWeightModel, TermWeightPredictor, save_term_weighter
from drtk.records import Passage
from drtk.runtime.sharding import sample_evenly
from drtk.text.expanded_text import added_texts
from drtk.text.word_pieces import WordPieceTokenizer, WordPlaces, passage_places
from drtk.text.words import function_words, question_words, stem_with
from drtk.training.arguments import Schedule, plan_schedule, training_arguments
from drtk.training.dataset import SampledExample, SampledExamples, Texts
from drtk.training.examples import PackedExamples, TrainingData
from drtk.training.fit import fit
from drtk.training.sampling import EpochDataset

# Largest norm of a gradient, as in the papers.
MAX_GRADIENT = {"deepct": 1.0, "deepimpact": 2.0}
_LOOKED_UP = 1000  # passages at once


@dataclass(frozen=True)
class Asked:
    """A passage and the questions it answers."""

    passage: Passage
    queries: list[str]


class AskedPassages:
    """The positives of all examples by number, each with all the questions it answers."""

    def __init__(self, examples: PackedExamples, *, queries: dict[str, str], corpus: Texts) -> None:
        self._texts, self._corpus = queries, corpus
        self._queries: dict[str, list[str]] = {}
        for at, query_id in enumerate(examples.query_ids):
            for number in examples.positives(at):
                self._queries.setdefault(examples.passage_ids[number], []).append(query_id)
        self._ids = list(self._queries)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, number: int) -> Asked:
        id = self._ids[number]
        (passage,) = self._corpus.many([id])
        return Asked(passage, [self._texts[query] for query in dict.fromkeys(self._queries[id])])


def recall_of(words: Iterable[str], queries: Sequence[str], *, stem: Callable[[str], str]) -> list[float]:
    """For each word of a passage the share of its queries that have a word of the same stem; 0 for function words."""
    asked = [{stem(word) for word in question_words(query)} for query in queries]
    left_out = function_words()
    shares: dict[str, float] = {}
    for word in words:
        if word not in shares:
            stemmed = stem(word)
            shares[word] = 0.0 if word in left_out else sum(stemmed in query for query in asked) / len(asked)
    return [shares[word] for word in words]


class Recalling:
    """Collates passages for DeepCT: `recall` and `first`, (passages, tokens), beside the model's inputs."""

    def __init__(self, weigher: TermWeightModel, tokenizer: WordPieceTokenizer, *, room: int, title: str) -> None:
        self._weigher, self._tokenizer, self._room, self._title = weigher, tokenizer, room, title
        self._stem = stem_with("porter")

    def __call__(self, asked: Sequence[Asked]) -> dict[str, Tensor]:
        """The inputs of a step."""
        places = passage_places([item.passage for item in asked], self._tokenizer, "pieces", title=self._title)
        batch = _inputs(self._weigher, places, self._room)
        recall = np.zeros(batch["input_ids"].shape, dtype=np.float32)
        first = np.zeros_like(recall)
        before = len(self._weigher.first)
        for row, (item, each) in enumerate(zip(asked, places, strict=True)):
            heads = [head for head in each.heads if head < self._room]
            shares = recall_of(each.words[: len(heads)], item.queries, stem=self._stem)
            columns = [before + head for head in heads]
            recall[row, columns], first[row, columns] = shares, 1
        return _tensors(batch | {"recall": recall, "first": first})


class Pairing:
    """Collates a positive and a negative of each example for DeepImpact: `asked`, (2 * examples, tokens), beside the inputs.

    asked: 1 at the first piece of the first occurrence of a word that the question has
    Raises RecordError for added texts that are none.
    """

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

    def __call__(self, drawn: Sequence[SampledExample]) -> dict[str, Tensor]:
        """The inputs of a step; a positive's row is followed by its negative's."""
        places = [
            each
            for item in drawn
            for each in passage_places(item.passages, self._tokenizer, "basic", title=self._title, expand=self._expand)
        ]
        batch = _inputs(self._weigher, places, self._room)
        asked = np.zeros(batch["input_ids"].shape, dtype=np.float32)
        before = len(self._weigher.first)
        for row, each in enumerate(places):
            first = each.first()
            for word in question_words(drawn[row // 2].query):
                head = first.get(word, self._room)
                if head < self._room:
                    asked[row, before + head] = 1
        return _tensors(batch | {"asked": asked})


def check_added_texts(ids: Sequence[str], corpus: CorpusStore, fields: Sequence[str]) -> None:
    """Raise RecordError (file:line) for the first passage of whose `fields` one holds no texts: before hours of training."""
    for begin in range(0, len(ids) if fields else 0, _LOOKED_UP):
        for passage in corpus.many(ids[begin : begin + _LOOKED_UP]):
            try:
                for name in fields:
                    added_texts(passage, name)
            except ValueError as error:
                raise RecordError(corpus.place(passage.id), f"passage '{passage.id}': {error}") from error


def _inputs(weigher: TermWeightModel, places: Sequence[WordPlaces], room: int) -> dict[str, np.ndarray]:
    tokens = weigher.tokens([each.ids for each in places], room=room)
    return tokens.padded(np.arange(len(places)), pad=weigher.pad)


def _tensors(arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


_LOOKED_AT = 2000  # training passages among which the largest impact is sought


def plan(
    examples: PackedExamples, method: str, training: WeightTrainingConfig, *, source: str = "examples"
) -> Schedule:
    """Return the schedule for the examples of the file `source`. Raises what `plan_schedule` raises."""
    config = training.resolve(method)
    if method == "deepimpact":
        return plan_schedule(len(examples), config, source=source)
    passages = {number for at in range(len(examples)) for number in examples.positives(at)}
    return plan_schedule(len(passages), config, what="passages", source=source)


def recall_objective(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """{"recall": ()}: DeepCT's loss of a batch."""
    inputs = dict(inputs)
    recall, first = inputs.pop("recall"), inputs.pop("first")
    return {"recall": recall_loss(model(**inputs), recall, first)}


def pair_objective(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """{"pairs": ()}: DeepImpact's loss of a batch whose rows are a positive and a negative by turns."""
    inputs = dict(inputs)
    asked = inputs.pop("asked")  # (2 * pairs, tokens), 1 where a word begins that the question has
    scores = (model(**inputs) * asked).sum(dim=1)
    return {"pairs": pair_loss(scores[0::2], scores[1::2])}


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
    Raises MismatchError for a length that the model cannot read, and what `drtk.training.fit.fit` raises.
    """
    method = weigher.method
    schedule = plan(data.examples, method, training, source=data.source)
    config = training.resolve(method)
    length = settings.max_length or min(MAX_LENGTH[method], weigher.longest)
    title = settings.title or "join"
    clip = [f"max_grad_norm={MAX_GRADIENT[method]}"]
    arguments = training_arguments(config, schedule, folder, seed=seed, device=device, defaults=clip)
    tokenizer = WordPieceTokenizer(str(weigher.folder))
    room = weigher.room(length)
    collate: Callable[[Sequence[Any]], dict[str, Tensor]]
    steps: dict[str, Any] = {"batch": config.batch, "steps": schedule.steps, "seed": seed}
    dataset: EpochDataset[Any]
    if method == "deepct":
        dataset = EpochDataset(AskedPassages(data.examples, queries=data.queries, corpus=data.corpus), **steps)
        collate = Recalling(weigher, tokenizer, room=room, title=title)
    else:
        dataset = SampledExamples(data.examples, queries=data.queries, corpus=data.corpus, negatives=1, **steps)
        collate = Pairing(weigher, tokenizer, room=room, title=title, expand=settings.expand)
    facts: dict[str, Any] = {"method": method, "title": title, "trained_length": length}
    if method == "deepimpact":
        facts |= {"expand": list(settings.expand)}

    def save() -> None:
        if method == "deepimpact":
            facts["largest"] = largest_impact(
                weigher, tokenizer, data.examples, data.corpus, settings=settings, length=length, device=device
            )
        weigher.module.cpu().float().eval()
        save_term_weighter(weigher, folder)

    counts = fit(
        weigher.module.train(),
        dataset,
        collate,
        objective=recall_objective if method == "deepct" else pair_objective,
        arguments=arguments,
        schedule=schedule,
        folder=folder,
        name="termweight",
        save=save,
    )
    return counts, facts


def largest_impact(
    weigher: TermWeightModel,
    tokenizer: WordPieceTokenizer,
    examples: PackedExamples,
    corpus: Texts,
    *,
    settings: WeightingSettings,
    length: int,
    device: str,
) -> float:
    """The largest impact of a word, function words apart, in at most 2,000 of the examples' passages, evenly spread."""
    ids = [*sample_evenly(examples.passage_ids, _LOOKED_AT, of=len(examples.passage_ids))]
    run = TermWeightPredictor(weigher, device=device, dtype="float32", max_length=length)
    left_out = function_words()
    largest = 0.0
    for begin in range(0, len(ids), 256):
        passages = corpus.many(ids[begin : begin + 256])
        places = passage_places(passages, tokenizer, "basic", title=settings.title or "join", expand=settings.expand)
        for each, values in zip(places, run([each.ids for each in places]), strict=True):
            heads = [head for word, head in each.first().items() if word not in left_out]
            largest = max([largest, *map(float, values[heads])])
    if largest <= 0:
        raise DrtkError("every impact is 0 after training: another `seed` or a lower `lr` may help")
    return largest
