"""The training examples of every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from drtk.data.checks import PASSAGES, TEXTLESS, count_texts, describe_textless, warn_of_textless
from drtk.errors import DrtkError
from drtk.records import Passage
from drtk.runtime.sharding import sample_evenly
from drtk.text.batching import Tokenizing, Tokens
from drtk.training.examples import PackedExamples
from drtk.training.sampling import drawn_negatives, order_of_epoch, positive_of_epoch

Key = tuple[Any, ...]


class Texts(Protocol):
    """Where passages are looked up; io.store.CorpusStore is one."""

    def many(self, ids: Sequence[str]) -> list[Passage]: ...


@dataclass(frozen=True)
class Drawn:
    """An example as one step sees it: the query, and numbers and texts of a positive and the negatives after it.

    answers: numbers of all passages labelled as positives, where they are wanted; scores: a teacher's, in the order of
    `numbers`, where they are; key: tells the example and the epoch apart
    """

    query: str
    numbers: list[int]
    passages: list[Passage]
    answers: Sequence[int] = ()
    scores: Sequence[float] = ()
    key: Key = field(default=())


class Draws(torch.utils.data.Dataset[Drawn]):
    """The examples of every step, in the order in which they are seen: item k is of step k // batch.

    Each epoch takes the examples in an order of its own and leaves out those that fill no batch.
    draw: how negatives are taken from their list (drtk.training.sampling.drawn_negatives); positive: they take turns, or
    the first is the one; answers: tell all positives of a query; scores: give a teacher's scores
    """

    def __init__(
        self,
        examples: PackedExamples,
        *,
        queries: dict[str, str],
        corpus: Texts,
        batch: int,
        steps: int,
        negatives: int,
        seed: int,
        draw: Literal["window", "replacement", "shuffle"] = "window",
        positive: Literal["rotate", "first"] = "rotate",
        answers: bool = False,
        scores: bool = False,
    ) -> None:
        self._examples, self._queries, self._corpus = examples, queries, corpus
        self._length, self._negatives, self._seed = steps * batch, negatives, seed
        self._draw, self._positive, self._scores = draw, positive, scores
        self._answers = examples.answers() if answers else None
        self.epoch_length = len(examples) // batch * batch
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Drawn:
        epoch, place = divmod(index, self.epoch_length)
        if self._order[0] != epoch:
            self._order = (epoch, order_of_epoch(len(self._examples), epoch=epoch, seed=self._seed))
        example = int(self._order[1][place])
        query_id = self._examples.query_ids[example]
        key = (self._seed, epoch, query_id, example)
        right, wrong = self._places(example, epoch, key)
        positives, negatives = self._examples.positives(example), self._examples.negatives(example)
        numbers = [positives[right], *(negatives[place] for place in wrong)]
        scores: list[float] = []
        if self._scores:
            found = self._examples.negative_scores(example)
            scores = [self._examples.positive_scores(example)[right], *(found[place] for place in wrong)]
        return Drawn(
            self._queries[query_id],
            numbers,
            self._corpus.many([self._examples.passage_ids[number] for number in numbers]),
            answers=() if self._answers is None else self._answers[query_id],
            scores=scores,
            key=key,
        )

    def _places(self, example: int, epoch: int, key: Key) -> tuple[int, list[int]]:
        """Which of the example's positives, and which of its negatives."""
        positives = range(len(self._examples.positives(example)))
        right = 0 if self._positive == "first" else positive_of_epoch(positives, epoch=epoch, seed=self._seed)
        negatives = range(len(self._examples.negatives(example)))
        named = f"{key[2]}\0{example}"
        return right, drawn_negatives(
            negatives, self._negatives, how=self._draw, epoch=epoch, seed=self._seed, key=named
        )


def collate(drawn: Sequence[Drawn], *, query: Tokenizing, passage: Tokenizing, aux: Any = None) -> dict[str, Tensor]:
    """The inputs of a step: those of BiEncoder, `passage_numbers` (queries * n,), and what is asked for besides.

    `answers`: (queries, most answers), -1 where there are fewer; `teacher`: (queries, n) scores
    aux: adds tensors of a further task, given tokens and keys of a role (drtk.pretraining.auxiliary.Corrupting)
    """
    texts: dict[str, tuple[Tokenizing, list[Any]]] = {
        "query": (query, [item.query for item in drawn]),
        "passage": (passage, [text for item in drawn for text in item.passages]),
    }
    batch = {"passage_numbers": torch.tensor([number for item in drawn for number in item.numbers])}
    if any(len(item.answers) for item in drawn):
        most = max(len(item.answers) for item in drawn)
        batch["answers"] = torch.tensor([[*item.answers, *[-1] * (most - len(item.answers))] for item in drawn])
    if any(len(item.scores) for item in drawn):
        batch["teacher"] = torch.tensor([list(item.scores) for item in drawn], dtype=torch.float32)
    for role, (tokenizing, items) in texts.items():
        tokens: Tokens = tokenizing(items)
        padded = tokens.padded(np.arange(len(items)), pad=tokenizing.pad, left=tokenizing.left)
        batch |= {f"{role}_{name}": torch.from_numpy(array) for name, array in padded.items()}
        if aux is not None:
            places = range(1) if role == "query" else range(len(drawn[0].numbers))
            keys = [(*item.key, place) for item in drawn for place in places]
            batch |= {f"aux_{role}_{name}": torch.from_numpy(array) for name, array in aux(role, padded, keys).items()}
    return batch


@dataclass(frozen=True)
class JudgedPair:
    """A query with a passage, and whether it is a positive."""

    query: str
    passage: Passage
    right: bool


class JudgedPairs(torch.utils.data.Dataset[JudgedPair]):
    """The pairs of every step, in the order in which they are seen: item k is of step k // batch.

    An epoch takes each positive and each negative of each example once, in an order of its own, and leaves out those that
    fill no batch.
    """

    def __init__(
        self,
        examples: PackedExamples,
        *,
        queries: Mapping[str, str],
        corpus: Texts,
        batch: int,
        steps: int,
        seed: int,
    ) -> None:
        self._examples, self._queries, self._corpus = examples, queries, corpus
        self._length, self._seed = steps * batch, seed
        self._ends = _ends(examples)
        self._epoch_length = pair_count(examples) // batch * batch
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> JudgedPair:
        epoch, place = divmod(index, self._epoch_length)
        if self._order[0] != epoch:
            self._order = (epoch, order_of_epoch(int(self._ends[-1]), epoch=epoch, seed=self._seed))
        pair = int(self._order[1][place])
        example = int(self._ends.searchsorted(pair, side="right"))
        place = pair - int(self._ends[example - 1] if example else 0)
        positives = self._examples.positives(example)
        right = place < len(positives)
        number = positives[place] if right else self._examples.negatives(example)[place - len(positives)]
        [passage] = self._corpus.many([self._examples.passage_ids[number]])
        return JudgedPair(self._queries[self._examples.query_ids[example]], passage, right)


def pair_count(examples: PackedExamples) -> int:
    """How many pairs the examples hold."""
    return int(_ends(examples)[-1]) if len(examples) else 0


def _ends(examples: PackedExamples) -> np.ndarray:
    """(examples,): the number of pairs up to the end of each example."""
    sizes = (len(examples.positives(at)) + len(examples.negatives(at)) for at in range(len(examples)))
    return np.fromiter(accumulate(sizes), dtype=np.int64, count=len(examples))


_MOST = 100_000  # passages that are looked up, a matter of seconds; of more so many, evenly spread
_AT_ONCE = 1000


def check_readable(ids: Sequence[str], corpus: Texts, *, called: str, read: Callable[[Passage], str]) -> None:
    """Look the passages up: warn, with numbers, where some have no text.

    called: the name of the corpus in complaints; read: what a model is given of a passage, its title too maybe
    Raises DrtkError where there is nothing to read in any of them.
    """
    counts: Counter[str] = Counter()
    unread = 0
    chosen = list(sample_evenly(ids, _MOST, of=len(ids)))
    for begin in range(0, len(chosen), _AT_ONCE):
        passages = corpus.many(chosen[begin : begin + _AT_ONCE])
        counts.update(count_texts(passages))
        unread += sum(not read(passage).strip() for passage in passages)
    if told := describe_textless({PASSAGES: counts[PASSAGES], TEXTLESS: unread}, called):
        raise DrtkError(told)
    warn_of_textless(counts, called)
