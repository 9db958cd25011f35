"""Collate examples into batches of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drtk.pretraining.composition import Composition
from drtk.pretraining.example_builder import SlotExample
from drtk.text.rng import generator


class Example(NamedTuple):
    """The slots of an example at one step. key: seed, epoch and id."""

    key: tuple[Any, ...]
    slots: Mapping[str, SlotExample]


@dataclass
class SlotBatch:
    """One slot of a batch; (batch, tokens) unless noted, padded on the right.

    clean, given: int64 ids; attention: 1 at tokens, 0 at padding; content, hidden: bool
    present: (batch,) bool, False for examples without such a text
    edited: int64, -1 in rows whose tokens were replaced, or None; noise: float32 in [0, 1), or None
    visible: (batch, tokens, tokens) bool, or None; types: int64 token types, or None if all are 0
    """

    clean: Tensor
    given: Tensor
    attention: Tensor
    content: Tensor
    hidden: Tensor
    present: Tensor
    edited: Tensor | None = None
    noise: Tensor | None = None
    visible: Tensor | None = None
    types: Tensor | None = None

    def to(self, device: torch.device) -> SlotBatch:
        """Copy to a device."""
        tensors = {item.name: getattr(self, item.name) for item in fields(self)}
        moved: dict[str, Any] = {
            name: None if each is None else each.to(device, non_blocking=True) for name, each in tensors.items()
        }
        return SlotBatch(**moved)

    def select(self, rows: Tensor, *, width: int) -> SlotBatch:
        """Return some rows of it, cut to `width` tokens."""
        tensors = {item.name: getattr(self, item.name) for item in fields(self)}
        selected: dict[str, Any] = {
            name: None if each is None else each[rows][(slice(None), *[slice(width)] * (each.dim() - 1))]
            for name, each in tensors.items()
        }
        return SlotBatch(**selected)


Batch = dict[str, SlotBatch]


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Copy a batch to a device."""
    return {name: slot.to(device) for name, slot in batch.items()}


class Collator:
    """Collate a device's share of a batch into parts of at most `micro` examples of similar length.

    A slot with reduction `mean_all` is padded to its maximum length, because its mean is over that length (methods 5.10).
    A slot of a two-stream reader gets a random visibility matrix (methods 5.7).
    """

    def __init__(self, composition: Composition, *, pad: int, max_length: int, seed: int, micro: int) -> None:
        self._pad, self._seed, self.micro = pad, seed, micro
        self.fixed: dict[str, int] = {}  # widths
        self._visible: dict[str, float] = {}
        for objective in composition.recovers:
            reader = composition.readers[objective.reader]
            for name in objective.slot:
                if objective.reduction == "mean_all":
                    self.fixed[name] = composition.slots[name].max_length or max_length
                if reader.use == "two-stream":
                    self._visible[name] = float(reader.options.get("visible", 0.5))

    def __call__(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Return {"parts": batches, "ids": the ids of the examples in each}; the longest part comes first."""
        if self.micro < len(examples):
            examples = sorted(examples, key=_num_tokens, reverse=True)
        groups = [examples[start : start + self.micro] for start in range(0, len(examples), self.micro)]
        return {
            "parts": [self.collate(group) for group in groups],
            "ids": [[str(each.key[-1]) for each in group] for group in groups],
        }

    def collate(self, examples: Sequence[Example]) -> Batch:
        """Collate examples into one batch."""
        keys = [each.key for each in examples]
        return {name: self._slot(name, [each.slots[name] for each in examples], keys) for name in examples[0].slots}

    def split(self, batch: Batch, ids: Sequence[str], micro: int) -> list[tuple[Batch, list[str]]]:
        """Split a batch into parts of at most `micro` examples, as `__call__` does, and the ids with it."""
        tokens = torch.stack([slot.attention.sum(dim=1) for slot in batch.values()]).sum(dim=0)
        parts = []
        for rows in tokens.argsort(descending=True, stable=True).split(micro):
            part = {}
            for name, slot in batch.items():
                longest = int(slot.attention[rows].sum(dim=1).max())
                part[name] = slot.select(rows, width=max(longest, self.fixed.get(name, 0)))
            parts.append((part, [ids[row] for row in rows.tolist()]))
        return parts

    def _slot(self, name: str, slots: Sequence[SlotExample], keys: Sequence[tuple[Any, ...]]) -> SlotBatch:
        width = max(self.fixed.get(name, 0), max(len(each.given) for each in slots))
        shape = (len(slots), width)
        clean, given = np.full(shape, self._pad, np.int64), np.full(shape, self._pad, np.int64)
        attention, content, hidden = np.zeros(shape, np.int64), np.zeros(shape, bool), np.zeros(shape, bool)
        edited = np.zeros(shape, np.int64) if any(each.edited is not None for each in slots) else None
        noise = np.zeros(shape, np.float32) if any(each.noise is not None for each in slots) else None
        types = np.zeros(shape, np.int64) if any(each.types is not None for each in slots) else None
        for row, each in enumerate(slots):
            size = len(each.given)
            clean[row, :size], given[row, :size], attention[row, :size] = each.clean, each.given, 1
            content[row, :size], hidden[row, :size] = each.content, each.hidden
            if edited is not None:
                if each.edited is None:
                    edited[row] = -1
                else:
                    edited[row, :size] = each.edited
            if noise is not None and each.noise is not None:
                noise[row, :size] = each.noise
            if types is not None and each.types is not None:
                types[row, :size] = each.types
        present = np.array([each.present for each in slots])
        visible = self._sample_visible(name, attention, keys) if name in self._visible else None
        arrays = (clean, given, attention, content, hidden, present, edited, noise, visible, types)
        tensors: list[Any] = [None if array is None else torch.from_numpy(array) for array in arrays]
        return SlotBatch(*tensors)

    def _sample_visible(self, name: str, attention: np.ndarray, keys: Sequence[tuple[Any, ...]]) -> np.ndarray:
        """Let each position see position 0 and a random share of the others, never itself."""
        batch, width = attention.shape
        visible = np.zeros((batch, width, width), bool)
        for row, key in enumerate(keys):
            size = int(attention[row].sum())
            seen = generator(*key, "visible", name).random((size, size)) < self._visible[name]
            np.fill_diagonal(seen, val=False)
            seen[:, 0] = True
            visible[row, :size, :size] = seen
        visible[:, :, 0] = True  # padding sees something, so that no softmax is empty
        return visible


def _num_tokens(example: Example) -> int:
    return sum(len(slot.given) for slot in example.slots.values())
