"""The best weights seen while a model is trained, kept on disk and across crashes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from drtk.errors import DrtkError
from drtk.io.atomic import sync, write_json
from drtk.io.json_files import read_json
from drtk.io.progress import log as say
from drtk.io.progress import warn
from drtk.training.checkpoints import load_weights, save_weights
from drtk.training.distributed import rank, wait_for_all

_WEIGHTS, _STATE = "best.safetensors", "best.json"


@dataclass
class Best:
    """A measurement: its step and value; `since`, how many came after it without being better."""

    step: int
    value: float
    since: int = 0


class Selection:
    """Measures now and then, and keeps the weights of the best measurement (drtk.training.trainer.Probe).

    Of equal ones the first is the best. What is kept travels with each checkpoint, so that resumed training knows what
    had been measured up to there, and nothing of what came later.
    """

    def __init__(
        self,
        model: nn.Module,
        look: Callable[[], dict[str, float]],
        folder: Path,
        *,
        by: str,
        every: int,
        patience: int | None = None,
        lower: bool | None = None,
    ) -> None:
        """look: the numbers of a measurement; by: the one that decides; lower: whether less is better; None: if it is a loss
        folder: takes the weights"""
        self.every = every
        self._lower = by.endswith("loss") if lower is None else lower
        self.best: Best | None = None
        self.by = by
        self._model, self._look, self._folder, self._patience = model, look, folder, patience

    @property
    def enough(self) -> bool:
        """Whether `patience` is at an end."""
        return self._patience is not None and self.best is not None and self.best.since >= self._patience

    def measure(self, step: int) -> dict[str, float]:
        """The numbers of a measurement; the weights are kept if it is the best so far."""
        found = self._look()
        value = found[self.by]
        best = self.best
        if best is None or (value < best.value if self._lower else value > best.value):
            self.best = Best(step, value)
            self._keep()
            say(f"step {step:,}: {self.by} {value:z.4f}, the best so far")
        else:
            best.since += 1
            how = "as good" if value == best.value else "better"
            say(f"step {step:,}: {self.by} {value:z.4f}; that of step {best.step:,} was {how}")
        return found

    def _keep(self) -> None:
        if rank() == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            part = self._folder / f"{_WEIGHTS}.part"  # a checkpoint may hold the present file: it must not change
            save_weights(self._model.state_dict(), part)
            sync(part)
            os.replace(part, self._folder / _WEIGHTS)

    def save(self, checkpoint: Path) -> None:
        """Put what is known into a checkpoint; the weights as a second name of the same file where that can be."""
        if self.best is not None:
            _share(self._folder / _WEIGHTS, checkpoint / _WEIGHTS)
            write_json(checkpoint / _STATE, vars(self.best))

    def restore(self, checkpoint: Path | None) -> None:
        """Know what the checkpoint knew; nothing without one."""
        known = checkpoint is not None and (checkpoint / _STATE).exists()
        self.best = _read_best(checkpoint / _STATE) if checkpoint is not None and known else None
        if rank() == 0:
            (self._folder / _WEIGHTS).unlink(missing_ok=True)
            if checkpoint is not None and known:
                self._folder.mkdir(parents=True, exist_ok=True)
                _share(checkpoint / _WEIGHTS, self._folder / _WEIGHTS)
        wait_for_all()

    def put_back(self, model: nn.Module) -> Best:
        """Give the model the best weights. Raises ValueError where nothing was measured."""
        if self.best is None:
            raise ValueError("nothing was measured")
        load_weights(model, self._folder / _WEIGHTS)
        if self.best.step == 0:
            warn(
                f"no {self.by} was better than the {self.best.value:z.4f} before the first step: the weights are those it began with"
            )
        return self.best

    def conclude(self, model: nn.Module, save: Callable[..., None]) -> dict[str, Any]:
        """Give the model the best weights, let `save` write it, and return their step and measure."""
        best = self.put_back(model)
        save()
        return {"step": best.step, self.by: best.value}


def _read_best(path: Path) -> Best:
    """Read the best evaluation of a checkpoint. Raises DrtkError for a damaged file."""
    content = read_json(path)
    known: dict[str, Any] = {"since": 0} | (content if isinstance(content, dict) else {})
    kinds = {"step": (int,), "value": (int, float), "since": (int,)}
    if known.keys() != kinds.keys() or any(type(known[name]) not in kinds[name] for name in kinds):
        raise DrtkError(f"{path}: is not the record of a best evaluation; --force without --resume begins again")
    return Best(**known)


def _share(path: Path, other: Path) -> None:
    """`other` holds what `path` holds."""
    other.unlink(missing_ok=True)  # a checkpoint may be written a second time
    try:
        os.link(path, other)
    except OSError:  # a file system without links
        shutil.copyfile(path, other)
