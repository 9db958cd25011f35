"""Write and find checkpoints, and keep the best weights during training."""

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
from drtk.models.checkpoint import report_write_errors
from drtk.runtime.atomic import sync, write_bytes, write_json
from drtk.runtime.integrity import read_json
from drtk.runtime.progress import log as say
from drtk.runtime.progress import warn
from drtk.training.distributed import get_rank, wait_for_all

WEIGHTS, COMPLETE = "model.safetensors", "complete"


def save_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write a model's state as safetensors; a tensor with several names (tied embeddings) once, under the first."""
    distinct: dict[tuple[int, torch.Size, torch.device], str] = {}
    for name, value in weights.items():
        distinct.setdefault((value.data_ptr() if value.numel() else id(value), value.shape, value.device), name)
    with report_write_errors(path.parent):
        save_file({name: weights[name].contiguous() for name in distinct.values()}, path)


def load_weights(model: nn.Module, path: Path) -> None:
    """Load the state that `save_weights` wrote. Raises DrtkError if it is that of another model."""
    weights, state = load_file(path), model.state_dict()
    places = {state[name].data_ptr() for name in weights if name in state}
    differing = [name for name in weights if name not in state]
    differing += [name for name, value in state.items() if name not in weights and value.data_ptr() not in places]
    if differing:
        raise DrtkError(f"{path}: holds the weights of another model: '{differing[0]}' is in one of them only")
    model.load_state_dict(weights, strict=False)


def find_last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint, None if there is none. Deletes incomplete ones."""
    wait_for_all()  # rank zero may have emptied the folder
    complete = list_complete_checkpoints(folder)
    wait_for_all()
    if get_rank() == 0:
        for path in folder.glob("checkpoint-*"):
            if path not in complete:
                shutil.rmtree(path)
    return complete[0] if complete else None


def list_complete_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints that were written completely, the newest first."""
    checkpoints = sorted(folder.glob("checkpoint-*"), key=parse_checkpoint_step, reverse=True)
    return [path for path in checkpoints if (path / COMPLETE).exists()]


def parse_checkpoint_step(checkpoint: Path | None) -> int:
    """Return the number of steps before a checkpoint; 0 for None."""
    return 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])


def truncate_log(log: Path, *, step: int) -> None:
    """Remove the entries after `step` and incomplete lines from a log; resumed training writes them again."""
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


class TrainingEvaluator:
    """An evaluation during training, whose state is part of each checkpoint; this one has none.

    every: steps between two evaluations; there is one after the last step too
    """

    every: int

    @property
    def enough(self) -> bool:
        """Whether training should stop."""
        return False

    def measure(self, step: int) -> dict[str, float]:
        """Return figures for the log. All processes call it and get the same figures."""
        raise NotImplementedError

    def save(self, checkpoint: Path) -> None:
        """Add the state to the folder of a checkpoint."""

    def restore(self, checkpoint: Path | None) -> None:
        """Restore the state of a checkpoint; None: start anew."""


@dataclass
class BestEvaluation:
    """The best evaluation: its step and value; `since` counts the evaluations after it."""

    step: int
    value: float
    since: int = 0


class ModelSelection(TrainingEvaluator):
    """Evaluate periodically and keep the weights of the best evaluation, the first of equals.

    Each checkpoint contains the best weights up to its step, so that resumed training forgets later evaluations.
    """

    def __init__(
        self,
        model: nn.Module,
        evaluate: Callable[[], dict[str, float]],
        folder: Path,
        *,
        by: str,
        every: int,
        patience: int | None = None,
        lower: bool | None = None,
    ) -> None:
        """evaluate: returns figures by name, `by` among them; lower: whether less is better, None: if `by` is a loss
        folder: for the weights; patience: evaluations without improvement before training stops
        """
        self.every = every
        self._lower = by.endswith("loss") if lower is None else lower
        self.best: BestEvaluation | None = None
        self.by = by
        self._model, self._evaluate, self._folder, self._patience = model, evaluate, folder, patience

    @property
    def enough(self) -> bool:
        """Whether training should stop."""
        return self._patience is not None and self.best is not None and self.best.since >= self._patience

    def measure(self, step: int) -> dict[str, float]:
        """Evaluate, keep the weights if they are the best so far, and return the figures."""
        figures = self._evaluate()
        value, best = figures[self.by], self.best
        if best is None or (value < best.value if self._lower else value > best.value):
            self.best = BestEvaluation(step, value)
            self._keep_weights()
            say(f"step {step:,}: {self.by} {value:z.4f}, the best so far")
        else:
            best.since += 1
            how = "as good" if value == best.value else "better"
            say(f"step {step:,}: {self.by} {value:z.4f}; that of step {best.step:,} was {how}")
        return figures

    def _keep_weights(self) -> None:
        if get_rank() == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            part = self._folder / f"{_WEIGHTS}.part"  # not in place: a checkpoint may be a link to the present file
            save_weights(self._model.state_dict(), part)
            sync(part)
            os.replace(part, self._folder / _WEIGHTS)

    def save(self, checkpoint: Path) -> None:
        """Add the state and the best weights to a checkpoint, as a hard link if possible."""
        if self.best is not None:
            _link(self._folder / _WEIGHTS, checkpoint / _WEIGHTS)
            write_json(checkpoint / _STATE, vars(self.best))

    def restore(self, checkpoint: Path | None) -> None:
        """Restore the state and weights of a checkpoint; None: none."""
        saved = checkpoint if checkpoint is not None and (checkpoint / _STATE).exists() else None
        self.best = None if saved is None else _read_best(saved / _STATE)
        if get_rank() == 0:
            (self._folder / _WEIGHTS).unlink(missing_ok=True)
            if saved is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                _link(saved / _WEIGHTS, self._folder / _WEIGHTS)
        wait_for_all()

    def conclude(self, model: nn.Module, save: Callable[..., None]) -> dict[str, Any]:
        """Load the best weights into the model, `save` it, and return the step and value of the best evaluation."""
        assert self.best is not None, "nothing was evaluated"
        load_weights(model, self._folder / _WEIGHTS)
        if self.best.step == 0:
            warn(
                f"no {self.by} was better than the {self.best.value:z.4f} before the first step: the weights are those of the "
                "start model"
            )
        save()
        return {"step": self.best.step, self.by: self.best.value}


def _read_best(path: Path) -> BestEvaluation:
    """Read the best evaluation of a checkpoint. Raises DrtkError for a damaged file."""
    content = read_json(path)
    known: dict[str, Any] = {"since": 0} | (content if isinstance(content, dict) else {})
    kinds = {"step": (int,), "value": (int, float), "since": (int,)}
    if known.keys() != kinds.keys() or any(type(known[name]) not in kinds[name] for name in kinds):
        raise DrtkError(f"{path}: is not the record of a best evaluation; `force` without `resume` starts over")
    return BestEvaluation(**known)


def _link(path: Path, other: Path) -> None:
    other.unlink(missing_ok=True)  # a checkpoint may be written twice
    try:
        os.link(path, other)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, other)


def get_selection_folder(folder: Path, name: str) -> Path:
    """Return the folder, below that of the checkpoints or a checkpoint, in which a selection keeps its weights."""
    return folder / f"best-{name}"


class ModelSelections(TrainingEvaluator):
    """Evaluate with several selections at the same steps; each keeps its own best weights."""

    def __init__(self, each: Mapping[str, ModelSelection]) -> None:
        """each: by name; their measures have different names, and `get_selection_folder` gives their folders"""
        self._each = dict(each)
        self.every = min(one.every for one in self._each.values())

    @property
    def enough(self) -> bool:
        """Whether training should stop: the patience of all selections is exhausted."""
        return all(one.enough for one in self._each.values())

    def measure(self, step: int) -> dict[str, float]:
        """Return the figures of all evaluations."""
        figures: dict[str, float] = {}
        for one in self._each.values():
            figures |= one.measure(step)
        return figures

    def save(self, checkpoint: Path) -> None:
        """Add the state and weights of all selections to a checkpoint."""
        for name, one in self._each.items():
            folder = get_selection_folder(checkpoint, name)
            folder.mkdir(exist_ok=True)
            one.save(folder)

    def restore(self, checkpoint: Path | None) -> None:
        """Restore the state and weights of a checkpoint; None: none."""
        for name, one in self._each.items():
            one.restore(None if checkpoint is None else get_selection_folder(checkpoint, name))

    def conclude(self, model: nn.Module, save: Callable[..., None]) -> dict[str, Any]:
        """For each name load its best weights and `save(name)`; return steps and values by name."""
        return {name: one.conclude(model, lambda name=name: save(name)) for name, one in self._each.items()}  # type: ignore[misc]
