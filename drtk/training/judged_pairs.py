"""Pairs of a query and a passage that are right or wrong by themselves: what binary cross-entropy is trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from drtk.records import Passage
from drtk.training.draws import Texts
from drtk.training.examples import PackedExamples
from drtk.training.sampling import order_of_epoch


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
