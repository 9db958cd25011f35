"""Several selections of one training: the best weights for each of several measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from drtk.training.selection import Selection


def folder_of(folder: Path, name: str) -> Path:
    """Where, in the folder of checkpoints or in a checkpoint, the selection of this name keeps its weights."""
    return folder / f"best-{name}"


class Selections:
    """Measures with each of several selections at the same steps; every one keeps its own best weights (drtk.training.trainer.Probe).

    What all of them know travels with each checkpoint, as that of one does. Patience is at an end when that of all is.
    """

    def __init__(self, each: Mapping[str, Selection]) -> None:
        """each: by name; their measures have different names, and `folder_of` is where they keep weights"""
        self._each = dict(each)
        self.every = min(one.every for one in self._each.values())

    @property
    def enough(self) -> bool:
        """Whether the patience of all is at an end."""
        return all(one.enough for one in self._each.values())

    def measure(self, step: int) -> dict[str, float]:
        """The numbers of all measurements; the weights are kept for those whose best it is."""
        found: dict[str, float] = {}
        for one in self._each.values():
            found |= one.measure(step)
        return found

    def save(self, checkpoint: Path) -> None:
        """Put what is known into a checkpoint."""
        for name, one in self._each.items():
            folder = folder_of(checkpoint, name)
            folder.mkdir(exist_ok=True)
            one.save(folder)

    def restore(self, checkpoint: Path | None) -> None:
        """Know what the checkpoint knew; nothing without one."""
        for name, one in self._each.items():
            one.restore(None if checkpoint is None else folder_of(checkpoint, name))

    def conclude(self, model: nn.Module, save: Callable[..., None]) -> dict[str, Any]:
        """Give the model the best weights of each, one after the other, to be saved by `save(name)`; their steps and measures by name."""
        found = {}
        for name, one in self._each.items():
            found[name] = one.conclude(model, lambda name=name: save(name))  # type: ignore[misc]
        return found
