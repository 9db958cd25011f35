"""Keep checkpoints and the best weights during training."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from drtk.errors import DrtkError
from drtk.models.checkpoint import writing_weights
from drtk.runtime.atomic import sync, write_bytes, write_json
from drtk.runtime.integrity import read_json
from drtk.runtime.progress import log as say
from drtk.runtime.progress import warn
from drtk.training.distributed import rank, wait_for_all

WEIGHTS, COMPLETE = "model.safetensors", "complete"
KEPT = 2  # checkpoints: the newest may be half written by a crash, or ruined, which only the step after it shows


def save_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write a model's state as safetensors: a tensor that has several names (tied embeddings) once, under the first."""
    distinct: dict[tuple[int, torch.Size, torch.device], str] = {}
    for name, value in weights.items():
        distinct.setdefault((value.data_ptr() if value.numel() else id(value), value.shape, value.device), name)
    with writing_weights(path.parent):
        save_file({name: weights[name].contiguous() for name in distinct.values()}, path)


def load_weights(model: nn.Module, path: Path) -> None:
    """Put the state that `save_weights` wrote back into the model. Raises DrtkError where it is another model's."""
    found, state = load_file(path), model.state_dict()
    places = {state[name].data_ptr() for name in found if name in state}
    strange = [name for name in found if name not in state]
    strange += [name for name, value in state.items() if name not in found and value.data_ptr() not in places]
    if strange:
        raise DrtkError(f"{path}: holds the weights of another model: '{strange[0]}' is in one of them alone")
    model.load_state_dict(found, strict=False)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end, None where there is none. Half written ones are taken away."""
    wait_for_all()  # rank zero may have emptied the folder
    whole = whole_checkpoints(folder)
    wait_for_all()
    if rank() == 0:
        for path in folder.glob("checkpoint-*"):
            if path not in whole:
                shutil.rmtree(path)
    return whole[0] if whole else None


def whole_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints that were written to their end, the newest first."""
    found = sorted(folder.glob("checkpoint-*"), key=step_of, reverse=True)
    return [path for path in found if (path / COMPLETE).exists()]


def step_of(checkpoint: Path | None) -> int:
    """The step after which a checkpoint was made; 0 for none."""
    return 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])


def cut_log(log: Path, *, step: int) -> None:
    """Take the entries after `step` out of a log, and a line torn by a crash: resumed training writes them again."""
    kept = []
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else []:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int) and entry["step"] <= step:
            kept.append(line + "\n")
    write_bytes(log, "".join(kept).encode())


_WEIGHTS, _STATE = "best.safetensors", "best.json"


@dataclass
class Best:
    """A measurement: its step and value; `since`, how many came after it without being better."""

    step: int
    value: float
    since: int = 0


class Selection:
    """Measures now and then, and keeps the weights of the best measurement (drtk.training.fit.Probe).

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


def folder_of(folder: Path, name: str) -> Path:
    """Where, in the folder of checkpoints or in a checkpoint, the selection of this name keeps its weights."""
    return folder / f"best-{name}"


class Selections:
    """Measures with each of several selections at the same steps; every one keeps its own best weights (drtk.training.fit.Probe).

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
