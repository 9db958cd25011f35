"""The examples of every pre-training step, in the order in which they are seen, and how they become parts of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from drtk.objectives.batch import Batch, Collator
from drtk.text.slots import SlotBuilder, Slotted
from drtk.training.sampling import order_of_epoch

Key = tuple[Any, ...]


class Seen(NamedTuple):
    """An example as one step sees it; `key` tells it apart: seed, epoch, id."""

    key: Key
    slots: Mapping[str, Slotted]


class Rows(torch.utils.data.Dataset[Seen]):
    """The examples of all steps: item k is of step k // batch. Each epoch has an order of its own and leaves out what fills no batch.

    rows: which rows of the corpus there are, (rows,)
    """

    def __init__(self, builder: SlotBuilder, rows: np.ndarray, ids: Any, *, batch: int, steps: int, seed: int) -> None:
        self._builder, self._rows, self._ids = builder, rows, ids
        self._batch, self._length, self._seed = batch, steps * batch, seed
        self.epoch_length = len(rows) // batch * batch
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Seen:
        epoch, place = divmod(index, self.epoch_length)
        if self._order[0] != epoch:
            self._order = (epoch, order_of_epoch(len(self._rows), epoch=epoch, seed=self._seed))
        row = int(self._rows[self._order[1][place]])
        slots = self._builder(row, epoch=epoch, step=index // self._batch)
        return Seen((self._seed, epoch, self._ids(row)), slots)


class Parts:
    """A device's share of a batch in parts that fit into memory, of like length, so that there is little padding.

    micro: examples in a part
    """

    def __init__(self, collator: Collator, *, micro: int) -> None:
        self._collator, self._micro = collator, micro

    def __call__(self, seen: Sequence[Seen]) -> dict[str, Any]:
        """{"parts": batches, "ids": for each the ids of its examples}; the longest part first."""
        if self._micro < len(seen):
            seen = sorted(seen, key=_tokens, reverse=True)
        groups = [seen[start : start + self._micro] for start in range(0, len(seen), self._micro)]
        return {
            "parts": [self.batch(group) for group in groups],
            "ids": [[str(each.key[-1]) for each in group] for group in groups],
        }

    def batch(self, seen: Sequence[Seen]) -> Batch:
        """One part."""
        return self._collator([each.slots for each in seen], [each.key for each in seen])


def _tokens(seen: Seen) -> int:
    return sum(len(slot.given) for slot in seen.slots.values())
