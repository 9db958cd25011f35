"""Sampling of examples and negatives, which depends on (seed, epoch, example) only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from drtk.text.rng import create_generator

Item = TypeVar("Item")


def sample_negatives(
    negatives: Sequence[Item],
    count: int,
    *,
    method: Literal["window", "replacement", "shuffle"],
    epoch: int,
    seed: int,
    key: str,
) -> list[Item]:
    """Return `count` negatives for an epoch (docs/methods/hard-negatives.md).

    method: "window": `count` consecutive negatives from index (epoch + seed) * count, where the list wraps around (SimLM);
        "replacement": the same, but sampled with replacement if there are fewer than `count` (Tevatron);
        "shuffle": the first of a new permutation in each epoch, repeated if there are fewer than `count` (DPR)
    negatives: not empty, unless `count` is 0    key: seed of random numbers, different for each example
    """
    if method == "window" or count == 0 or (method == "replacement" and len(negatives) >= count):
        first = (epoch + seed) * count
        return [negatives[(first + step) % len(negatives)] for step in range(count)]
    rng = create_generator(seed, epoch, key, "negatives")
    if method == "replacement":
        return [negatives[int(index)] for index in rng.integers(len(negatives), size=count)]
    order = rng.permutation(len(negatives))
    return [negatives[int(order[rank % len(order)])] for rank in range(count)]


def shuffle_epoch(num_examples: int, *, epoch: int, seed: int) -> np.ndarray:
    """Return a permutation of the example indices, (num_examples,), that depends on (seed, epoch) only."""
    return np.random.default_rng((seed, epoch)).permutation(num_examples)


def derive_step_seed(seed: int, step: int, rank: int) -> int:
    """Return a 63-bit seed of the random numbers, such as dropout, of a step in the process `rank`."""
    return int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0] >> np.uint64(1))


class EpochDataset:
    """Dataset of the items of all training steps in order: item k belongs to step k // batch.

    Each epoch shuffles the items and drops the last, incomplete batch.

    batch: items per step, over all processes    steps: number of steps
    """

    def __init__(self, items: Any, *, batch: int, steps: int, seed: int) -> None:
        self.items, self.seed = items, seed
        self._count, self._batch, self._length = len(items), batch, steps * batch
        self._per_epoch = self._count // batch * batch
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        epoch, position = divmod(index, self._per_epoch)
        if self._order[0] != epoch:
            self._order = (epoch, shuffle_epoch(self._count, epoch=epoch, seed=self.seed))
        return self.load(int(self._order[1][position]), epoch, index // self._batch)

    def load(self, index: int, epoch: int, step: int) -> Any:
        """Return the item at `index`. Subclasses may return different items in each epoch or step."""
        return self.items[index]
