"""A batch of examples as tensors: what the objectives look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drtk.pretraining.composition import Composition, Recover
from drtk.pretraining.example_builder import Slotted
from drtk.text.rng import generator


@dataclass
class SlotBatch:
    """One slot of a batch; (batch, tokens) unless said otherwise, padded at the end.

    clean, given: int64 ids; attention: 1 at tokens, 0 at padding; content, hidden: bool
    present: (batch,) bool, False for examples without such a view
    edited: int64, -1 in rows whose tokens were replaced instead, or None; noise: float32 in [0, 1), or None; visible: (batch, tokens, tokens) bool, or None
    types: int64 token types, or None where all are 0
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
        """The same on another device."""
        found: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            found[item.name] = None if value is None else value.to(device, non_blocking=True)
        return SlotBatch(**found)


Batch = dict[str, SlotBatch]


class Collator:
    """Slotted examples to batches.

    pad: id of the padding token; fixed: slots that are padded to a length whatever they hold (mean over it, methods 5.10);
    visible: slots a two-stream reader looks at, with the share of tokens a position may see
    """

    def __init__(
        self,
        *,
        pad: int,
        fixed: Mapping[str, int] | None = None,
        visible: Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> None:
        self._pad, self._fixed, self._visible, self._seed = pad, fixed or {}, visible or {}, seed

    def __call__(self, examples: Sequence[Mapping[str, Slotted]], keys: Sequence[tuple[Any, ...]]) -> Batch:
        """One batch; `keys` tell the examples apart, for what is drawn here."""
        return {name: self._slot(name, [each[name] for each in examples], keys) for name in examples[0]}

    def _slot(self, name: str, slots: Sequence[Slotted], keys: Sequence[tuple[Any, ...]]) -> SlotBatch:
        width = max(self._fixed.get(name, 0), max(len(each.given) for each in slots))
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
        found: dict[str, Any] = {
            "clean": clean,
            "given": given,
            "attention": attention,
            "content": content,
            "hidden": hidden,
            "present": np.array([each.present for each in slots]),
            "edited": edited,
            "noise": noise,
            "types": types,
            "visible": self._visibility(name, attention, keys) if name in self._visible else None,
        }
        tensors: dict[str, Any] = {
            key: None if array is None else torch.from_numpy(array) for key, array in found.items()
        }
        return SlotBatch(**tensors)

    def _visibility(self, name: str, attention: np.ndarray, keys: Sequence[tuple[Any, ...]]) -> np.ndarray:
        """Who sees whom: position 0, and a share of the others drawn for each position, never itself (methods, 5.7)."""
        batch, width = attention.shape
        visible = np.zeros((batch, width, width), bool)
        for row, key in enumerate(keys):
            size = int(attention[row].sum())
            draw = generator(*key, "visible", name).random((size, size)) < self._visible[name]
            np.fill_diagonal(draw, val=False)
            draw[:, 0] = True
            visible[row, :size, :size] = draw
        visible[:, :, 0] = True  # padding looks somewhere, so that no softmax is of nothing
        return visible


def collator_of(composition: Composition, *, pad: int, max_length: int, seed: int) -> Collator:
    """The collator a composition needs."""
    fixed: dict[str, int] = {}
    visible: dict[str, float] = {}
    for objective in composition.objectives:
        if not isinstance(objective, Recover):
            continue
        for name in objective.slot:
            if objective.reduction == "mean_all":
                fixed[name] = composition.slots[name].max_length or max_length
            reader = composition.readers[objective.reader]
            if reader.use == "two-stream":
                visible[name] = float(reader.options.get("visible", 0.5))
    return Collator(pad=pad, fixed=fixed, visible=visible, seed=seed)
