"""Train DeepCT and DeepImpact (methods: sections 3.4 and 3.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from drtk.data.corpus_store import CorpusStore
from drtk.errors import DrtkError, RecordError, UsageError
from drtk.expansion.config import WeightingSettings, WeightTrainingSettings
from drtk.losses.ranking import pair_loss, recall_loss
from drtk.models.generator_input import text_of
from drtk.models.term_weighter import Weigher, Weighing, save_weigher
from drtk.records import Passage
from drtk.runtime.sharding import sample_evenly
from drtk.text.expanded_text import added_texts
from drtk.text.word_pieces import WordPieceTokenizer, WordPlaces, passage_places
from drtk.text.words import function_words, question_words, stem_with
from drtk.training.arguments import Plan, planned, training_arguments
from drtk.training.example_order import Drawn, Draws, Texts
from drtk.training.examples import PackedExamples
from drtk.training.fit import DrtkTrainer, ShowProgress
from drtk.training.sampling import order_of_epoch


@dataclass(frozen=True)
class Defaults:
    """What a method's paper says, where the user does not; clip: largest norm of a gradient."""

    batch: int
    lr: float
    max_length: int
    clip: float


METHODS = {
    "deepct": Defaults(batch=16, lr=2e-5, max_length=128, clip=1.0),
    "deepimpact": Defaults(batch=32, lr=3e-6, max_length=300, clip=2.0),
}


def check_method(method: str) -> Defaults:
    """The defaults of a method that learns. Raises UsageError for one that does not."""
    if method not in METHODS:
        raise UsageError(f"--train: --method {method} learns nothing; {' and '.join(METHODS)} do")
    return METHODS[method]


_LOOKED_UP = 1000  # passages at once


@dataclass(frozen=True)
class Asked:
    """A passage and the questions it answers."""

    passage: Passage
    queries: list[str]


class AskedPassages(Dataset[Asked]):
    """The passages of every step, each with all the questions that have it among their positives.

    Each epoch takes them in an order of its own and leaves out those that fill no batch.
    """

    def __init__(
        self, examples: PackedExamples, *, queries: dict[str, str], corpus: Texts, batch: int, steps: int, seed: int
    ) -> None:
        self._texts, self._corpus, self._length, self._seed = queries, corpus, steps * batch, seed
        self._queries: dict[str, list[str]] = {}
        for at, query_id in enumerate(examples.query_ids):
            for number in examples.positives(at):
                self._queries.setdefault(examples.passage_ids[number], []).append(query_id)
        self._ids = list(self._queries)
        self.epoch_length = len(self._ids) // batch * batch
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Asked:
        epoch, place = divmod(index, self.epoch_length)
        if self._order[0] != epoch:
            self._order = (epoch, order_of_epoch(len(self._ids), epoch=epoch, seed=self._seed))
        id = self._ids[int(self._order[1][place])]
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

    def __init__(self, weigher: Weigher, tokenizer: WordPieceTokenizer, *, room: int, title: str) -> None:
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
        self, weigher: Weigher, tokenizer: WordPieceTokenizer, *, room: int, title: str, expand: Sequence[str] = ()
    ) -> None:
        self._weigher, self._tokenizer, self._room, self._title = weigher, tokenizer, room, title
        self._expand = expand

    def __call__(self, drawn: Sequence[Drawn]) -> dict[str, Tensor]:
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


def text_read(passage: Passage, *, title: str, expand: Sequence[str]) -> str:
    """All that is read of a passage: title ("none" leaves it out), text and added texts, as `word_places.passage_places` has them."""
    return " ".join([text_of(passage, title), *(text for name in expand for text in added_texts(passage, name))])


def _inputs(weigher: Weigher, places: Sequence[WordPlaces], room: int) -> dict[str, np.ndarray]:
    tokens = weigher.tokens([each.ids for each in places], room=room)
    return tokens.padded(np.arange(len(places)), pad=weigher.pad)


def _tensors(arrays: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


LOG = "log.jsonl"
_LOOKED_AT = 2000  # training passages among which the largest impact is sought


def plan(examples: PackedExamples, method: str, training: WeightTrainingSettings, *, source: str = "examples") -> Plan:
    """How long training on the examples of the file `source` lasts. Raises DrtkError where the data fill no batch."""
    batch = training.batch or METHODS[method].batch
    count, what = len(examples), "examples"
    if method == "deepct":
        count, what = len({number for at in range(count) for number in examples.positives(at)}), "passages"
    return planned(count, batch=batch, epochs=training.epochs, steps=training.steps, what=what, source=source)


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
    examples: PackedExamples,
    folder: Path,
    *,
    weigher: Weigher,
    queries: dict[str, str],
    corpus: Texts,
    settings: WeightingSettings,
    training: WeightTrainingSettings,
    seed: int = 42,
    device: str = "auto",
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train, write the model into `folder` (rank zero); counts of the run, and what meta.json shall say of the model.

    folder: where checkpoints (taken away at the end), log.jsonl and the model go; where it holds a whole checkpoint,
            training goes on from there
    Raises MismatchError for a length that the model cannot read, DrtkError where the loss ceases to be a number.
    """
    method = weigher.method
    defaults = METHODS[method]
    schedule = plan(examples, method, training)
    batch = training.batch or defaults.batch
    length = settings.max_length or min(defaults.max_length, weigher.longest)
    checkpoints = folder / "checkpoints"
    clip = (
        []
        if any(item.startswith("max_grad_norm=") for item in training.trainer)
        else [f"max_grad_norm={defaults.clip}"]
    )
    arguments = training_arguments(
        checkpoints,
        steps=schedule.steps,
        batch=schedule.batch,
        lr=defaults.lr if training.lr is None else training.lr,
        warmup=training.warmup,
        weight_decay=training.weight_decay,
        seed=seed,
        device=device,
        precision=training.precision,
        log_every=training.log_every,
        save_every=training.save_every,
        others=[*clip, *training.trainer],
    )
    tokenizer = WordPieceTokenizer(str(weigher.folder))
    room = weigher.room(length)
    collate: Callable[[Sequence[Any]], dict[str, Tensor]]
    if method == "deepct":
        data: Dataset[Any] = AskedPassages(
            examples, queries=queries, corpus=corpus, batch=batch, steps=schedule.steps, seed=seed
        )
        collate = Recalling(weigher, tokenizer, room=room, title=settings.title or "join")
    else:
        data = Draws(
            examples, queries=queries, corpus=corpus, batch=batch, steps=schedule.steps, negatives=1, seed=seed
        )
        collate = Pairing(weigher, tokenizer, room=room, title=settings.title or "join", expand=settings.expand)
    trainer = DrtkTrainer(
        objective=recall_objective if method == "deepct" else pair_objective,
        log=folder / LOG,
        steps_per_epoch=schedule.steps_per_epoch,
        model=weigher.module.train(),
        args=arguments,
        train_dataset=data,
        data_collator=collate,
        callbacks=[ShowProgress("termweight", schedule.steps)],
    )
    facts: dict[str, Any] = {"method": method, "title": settings.title or "join", "trained_length": length}
    if method == "deepimpact":
        facts |= {"expand": list(settings.expand)}

    def save() -> None:
        if method == "deepimpact":
            facts["largest"] = largest_impact(
                weigher, tokenizer, examples, corpus, settings=settings, length=length, device=device
            )
        weigher.module.cpu().float().eval()
        save_weigher(weigher, folder)

    return trainer.finish(save), facts


def largest_impact(
    weigher: Weigher,
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
    run = Weighing(weigher, device=device, dtype="float32", max_length=length)
    left_out = function_words()
    largest = 0.0
    for begin in range(0, len(ids), 256):
        passages = corpus.many(ids[begin : begin + 256])
        places = passage_places(passages, tokenizer, "basic", title=settings.title or "join", expand=settings.expand)
        for each, values in zip(places, run([each.ids for each in places]), strict=True):
            heads = [head for word, head in each.first().items() if word not in left_out]
            largest = max([largest, *map(float, values[heads])])
    if largest <= 0:
        raise DrtkError("every impact is 0 after training: another --seed or a lower --lr may help")
    return largest
