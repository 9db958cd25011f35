"""Collate pre-training examples into batches of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drtk.pretraining.composition import Composition
from drtk.pretraining.example_builder import TokenizedSlot
from drtk.text.rng import create_generator


class PretrainingExample(NamedTuple):
    """A training example: its tokenized slots by name. key: (seed, epoch, id), from which random numbers are derived"""

    key: tuple[Any, ...]
    slots: Mapping[str, TokenizedSlot]


@dataclass
class SlotBatch:
    """One slot of a batch. Tensors are (batch, tokens), padded on the right, unless noted.

    clean: int64, original ids    given: int64, input ids
    attention: 1 at tokens, 0 at padding
    content: bool, False at special tokens    hidden: bool, True at masked positions
    present: (batch,) bool, False for examples without a text for this slot
    edited: int64, 1 at inserted tokens and after deletions, -1 in rows with replaced tokens; None: no edits
    noise: float32, random numbers in [0, 1) for the generator; None if the generator is not used
    visible: (batch, tokens, tokens) bool, the tokens that each token attends to; None: all
    types: int64, token types; None: all 0
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

    def map(self, change: Callable[[Tensor], Tensor]) -> SlotBatch:
        """Return a SlotBatch with `change` applied to every tensor."""
        tensors: dict[str, Any] = {
            name: None if tensor is None else change(tensor) for name, tensor in vars(self).items()
        }
        return SlotBatch(**tensors)


Batch = dict[str, SlotBatch]


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return a copy of a batch on a device."""
    return {name: slot.map(lambda tensor: tensor.to(device, non_blocking=True)) for name, slot in batch.items()}


class PretrainingCollator:
    """Collator that splits the batch of a device into micro-batches of at most `micro` examples of similar length.

    Slots with reduction `mean_all` are padded to their maximum length, because the mean includes padding
    (docs/methods/diffcse.md). Slots of a two-stream decoder get random attention masks (docs/methods/retromae.md).
    """

    def __init__(self, composition: Composition, *, pad: int, max_length: int, seed: int, micro: int) -> None:
        self._pad, self._seed, self.micro = pad, seed, micro
        self.fixed: dict[str, int] = {}  # padded lengths of the slots that are padded to a fixed length
        self._visible: dict[str, float] = {}
        for objective in composition.token_objectives:
            reader = composition.readers[objective.reader]
            for name in objective.slot:
                if objective.reduction == "mean_all":
                    self.fixed[name] = composition.slots[name].max_length or max_length
                if reader.use == "two-stream":
                    self._visible[name] = float(reader.options.get("visible", 0.5))

    def __call__(self, examples: Sequence[PretrainingExample]) -> dict[str, Any]:
        """Return {"parts": micro-batches, longest first, "ids": the example ids of each micro-batch}."""
        if self.micro < len(examples):
            examples = sorted(
                examples, key=lambda example: sum(len(slot.given) for slot in example.slots.values()), reverse=True
            )
        groups = [examples[start : start + self.micro] for start in range(0, len(examples), self.micro)]
        return {
            "parts": [self.collate(group) for group in groups],
            "ids": [[str(example.key[-1]) for example in group] for group in groups],
        }

    def collate(self, examples: Sequence[PretrainingExample]) -> Batch:
        """Return one batch of all examples."""
        keys = [example.key for example in examples]
        return {
            name: self._collate_slot(name, [example.slots[name] for example in examples], keys)
            for name in examples[0].slots
        }

    def _collate_slot(self, name: str, slots: Sequence[TokenizedSlot], keys: Sequence[tuple[Any, ...]]) -> SlotBatch:
        width = max(self.fixed.get(name, 0), max(len(slot.given) for slot in slots))

        def pad(rows: Sequence[np.ndarray | None], kind: type, fill: int = 0, missing: int = 0) -> np.ndarray | None:
            """Return the padded rows, (batch, width), or None if all rows are None.

            fill: value of padding    missing: value of rows that are None
            """
            if all(row is None for row in rows):
                return None
            padded: np.ndarray = np.full((len(rows), width), fill, kind)
            for at, row in enumerate(rows):
                padded[at, : width if row is None else len(row)] = missing if row is None else row
            return padded

        attention = pad([np.ones(len(slot.given)) for slot in slots], np.int64)
        arrays = {
            "clean": pad([slot.clean for slot in slots], np.int64, self._pad),
            "given": pad([slot.given for slot in slots], np.int64, self._pad),
            "attention": attention,
            "content": pad([slot.content for slot in slots], bool),
            "hidden": pad([slot.hidden for slot in slots], bool),
            "present": np.array([slot.present for slot in slots]),
            "edited": pad([slot.edited for slot in slots], np.int64, missing=-1),
            "noise": pad([slot.noise for slot in slots], np.float32),
            "visible": self._sample_visible(name, attention, keys) if name in self._visible else None,
            "types": pad([slot.types for slot in slots], np.int64),
        }
        tensors: dict[str, Any] = {
            key: None if array is None else torch.from_numpy(array) for key, array in arrays.items()
        }
        return SlotBatch(**tensors)

    def _sample_visible(self, name: str, attention: Any, keys: Sequence[tuple[Any, ...]]) -> np.ndarray:
        """Return random attention masks, (batch, tokens, tokens) bool.

        Each position attends to position 0 and to a random share of the other positions, but not to itself.
        """
        batch, width = attention.shape
        visible = np.zeros((batch, width, width), bool)
        for row, key in enumerate(keys):
            size = int(attention[row].sum())
            seen = create_generator(*key, "visible", name).random((size, size)) < self._visible[name]
            np.fill_diagonal(seen, val=False)
            seen[:, 0] = True
            visible[row, :size, :size] = seen
        visible[:, :, 0] = True  # also for padding, so that no softmax is empty
        return visible
