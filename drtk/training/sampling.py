"""Which examples, positives and negatives a step sees: functions of (seed, epoch, example) and of nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

import numpy as np

from drtk.text.rng import generator

Item = TypeVar("Item")


def negatives_of_epoch(negatives: Sequence[Item], count: int, *, epoch: int, seed: int) -> list[Item]:
    """The window of `count` negatives for an epoch: it slides over the list by its own width and wraps around.

    offset = (epoch + seed) * count mod len (methods, section 6.5). Raises ValueError for an empty list.
    """
    if count == 0:
        return []
    if not negatives:
        raise ValueError("there are no negatives to draw from")
    offset = (epoch + seed) * count % len(negatives)
    return [negatives[(offset + step) % len(negatives)] for step in range(count)]


def drawn_negatives(
    negatives: Sequence[Item],
    count: int,
    *,
    how: Literal["window", "replacement", "shuffle"],
    epoch: int,
    seed: int,
    key: str,
) -> list[Item]:
    """`count` negatives for an epoch (methods, section 6.5); `key` tells the example apart, for what is drawn.

    window: `negatives_of_epoch`, whose window goes round a list that is too short (SimLM)
    replacement: the same, but a list that is too short is drawn from with replacement (Tevatron)
    shuffle: the first of the list in an order of the epoch's own, which goes on from the start where it is too short (DPR)
    Raises ValueError for an empty list.
    """
    if how == "window" or count == 0 or (how == "replacement" and len(negatives) >= count):
        return negatives_of_epoch(negatives, count, epoch=epoch, seed=seed)
    if not negatives:
        raise ValueError("there are no negatives to draw from")
    rng = generator(seed, epoch, key, "negatives")
    if how == "replacement":
        return [negatives[int(place)] for place in rng.integers(len(negatives), size=count)]
    order = rng.permutation(len(negatives))
    return [negatives[int(order[place % len(order)])] for place in range(count)]


def positive_of_epoch(positives: Sequence[Item], *, epoch: int, seed: int) -> Item:
    """The positive for an epoch: they take turns."""
    return positives[(epoch + seed) % len(positives)]


def order_of_epoch(examples: int, *, epoch: int, seed: int) -> np.ndarray:
    """A permutation of the examples, (examples,), that depends on (seed, epoch) alone."""
    return np.random.default_rng((seed, epoch)).permutation(examples)


def seed_of_step(seed: int, step: int, rank: int) -> int:
    """A seed for the draws of one step in one process (dropout), unlike those of other steps: a 63-bit number."""
    return int(np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0] >> np.uint64(1))
