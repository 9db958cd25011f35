"""Training checkpoints, and selection of the best weights by evaluation during training."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from drtk.errors import DrtkError
from drtk.models.checkpoint import report_write_errors
from drtk.runtime.atomic import sync, write_bytes, write_json
from drtk.runtime.integrity import read_object
from drtk.runtime.progress import log as log_message
from drtk.runtime.progress import warn
from drtk.training.config import TrainingConfig
from drtk.training.distributed import get_rank, wait_for_all

WEIGHTS, COMPLETE = "model.safetensors", "complete"


def save_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write a state dict as safetensors; a tensor with several names (tied embeddings) is written once."""
    distinct: dict[tuple[int, torch.Size, torch.device], str] = {}
    for name, value in weights.items():
        distinct.setdefault((value.data_ptr() if value.numel() else id(value), value.shape, value.device), name)
    with report_write_errors(path.parent):
        save_file({name: weights[name].contiguous() for name in distinct.values()}, path)


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a file of `save_weights` into a model, in place. Raises DrtkError if names or shapes of the weights differ."""
    weights, state = load_file(path), model.state_dict()
    pointers = {state[name].data_ptr() for name in weights if name in state}
    differing = [name for name, value in weights.items() if name not in state or state[name].shape != value.shape]
    differing += [name for name, value in state.items() if name not in weights and value.data_ptr() not in pointers]
    if differing:
        raise DrtkError(f"{path}: contains the weights of another model ({differing[0]}); use `force` to start over")
    model.load_state_dict(weights, strict=False)


def find_last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint in a folder; None if there is none. Every process must call it."""
    wait_for_all()  # rank zero may just have deleted checkpoints
    return next(iter(list_complete_checkpoints(folder)), None)


def delete_incomplete_checkpoints(folder: Path) -> None:
    """Delete the incomplete checkpoints in a folder."""
    complete = list_complete_checkpoints(folder)
    for path in folder.glob("checkpoint-*"):
        if path not in complete:
            shutil.rmtree(path)


def list_complete_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, newest first."""
    checkpoints = sorted(folder.glob("checkpoint-*"), key=parse_checkpoint_step, reverse=True)
    return [path for path in checkpoints if (path / COMPLETE).exists()]


def parse_checkpoint_step(checkpoint: Path | None) -> int:
    """Return the step in the name of a checkpoint, such as checkpoint-500; 0 for None."""
    return 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])


def truncate_log(log: Path, *, step: int) -> None:
    """Remove entries after `step`, and incomplete lines, from a log file of JSON lines; create a missing file."""
    lines = []
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else []:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int) and entry["step"] <= step:
            lines.append(line + "\n")
    write_bytes(log, "".join(lines).encode())


_BEST_WEIGHTS, _STATE = "best.safetensors", "best.json"


class Metrics(dict[str, float]):
    """Metrics by name.

    intervals: 95% confidence intervals of metrics that are means over queries, (low, high) by name
    """

    def __init__(self, values: Mapping[str, float], intervals: Mapping[str, tuple[float, float]] | None = None) -> None:
        super().__init__(values)
        self.intervals = dict(intervals or {})


class TrainingEvaluator:
    """Evaluator during training. Subclasses select weights; the state of the evaluator is part of each checkpoint.

    evaluate: function that returns metrics by name, equal in all processes; every process calls it
    every: number of steps between evaluations; the last step is always evaluated
    """

    def __init__(self, evaluate: Callable[[], dict[str, float]], *, every: int) -> None:
        self._evaluate, self.every = evaluate, every

    @property
    def should_stop(self) -> bool:
        """Whether training should stop."""
        return False

    def evaluate(self, step: int) -> dict[str, float]:
        """Return the metrics by name. step: number of training steps so far"""
        return self._evaluate()

    def save(self, checkpoint: Path) -> None:
        """Save the state of the evaluator into the folder of a checkpoint."""

    def restore(self, checkpoint: Path | None) -> None:
        """Restore the state of the evaluator from the folder of a checkpoint; None: reset the state."""


@dataclass
class BestEvaluation:
    """Step and value of the best evaluation, its confidence interval, and the number of evaluations since (`since`)."""

    step: int
    value: float
    since: int = 0
    interval: Sequence[float] | None = None


class ModelSelection(TrainingEvaluator):
    """Best-checkpoint selection: evaluate periodically and keep the best weights; of equal values, the first wins.

    Each training checkpoint contains the best weights up to its step, so resumed training starts from the same state.
    """

    def __init__(
        self,
        model: nn.Module,
        evaluate: Callable[[], dict[str, float]],
        folder: Path,
        *,
        metric: str,
        config: TrainingConfig,
        lower_is_better: bool | None = None,
    ) -> None:
        """Select the weights of `model` by a metric.

        evaluate: as in TrainingEvaluator    folder: folder for the best weights
        metric: name of the metric to select by
        config: for `eval_steps` and, for early stopping, `patience`
        lower_is_better: None: True for a metric whose name ends in "loss", else False
        """
        super().__init__(evaluate, every=config.eval_steps)
        self._lower_is_better = metric.endswith("loss") if lower_is_better is None else lower_is_better
        self.best: BestEvaluation | None = None
        self.metric = metric
        self._model, self._folder = model, folder
        self._patience = config.patience

    @property
    def should_stop(self) -> bool:
        """Whether `patience` evaluations without improvement have passed."""
        return self._patience is not None and self.best is not None and self.best.since >= self._patience

    def evaluate(self, step: int) -> dict[str, float]:
        """Evaluate, keep the weights if they are the best so far, and return the metrics."""
        metrics = self._evaluate()
        value, best = metrics[self.metric], self.best
        if best is None or (value < best.value if self._lower_is_better else value > best.value):
            intervals = metrics.intervals if isinstance(metrics, Metrics) else {}
            self.best = BestEvaluation(step, value, interval=intervals.get(self.metric))
            self._save_best_weights()
            log_message(f"step {step:,}: {self.metric} {value:z.4f}, the best so far")
        else:
            best.since += 1
            log_message(
                f"step {step:,}: {self.metric} {value:z.4f}; the best is {best.value:z.4f} at step {best.step:,}"
            )
        return metrics

    def _save_best_weights(self) -> None:
        if get_rank() == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            part = self._folder / f"{_BEST_WEIGHTS}.part"  # not in place: a checkpoint may hard-link the current file
            save_weights(self._model.state_dict(), part)
            sync(part)
            os.replace(part, self._folder / _BEST_WEIGHTS)

    def save(self, checkpoint: Path) -> None:
        """Save the best evaluation and the best weights into a checkpoint; the weights are a hard link if possible."""
        if self.best is not None:
            _link_or_copy(self._folder / _BEST_WEIGHTS, checkpoint / _BEST_WEIGHTS)
            write_json(checkpoint / _STATE, vars(self.best))

    def restore(self, checkpoint: Path | None) -> None:
        """Restore the best evaluation and weights from a checkpoint; None, or one without them: discard both."""
        saved = checkpoint if checkpoint is not None and (checkpoint / _STATE).exists() else None
        self.best = None
        if saved is not None:
            state = read_object(saved / _STATE, step=int, value=int | float, since=int | None, interval=list | None)
            self.best = BestEvaluation(state["step"], state["value"], state.get("since") or 0, state.get("interval"))
        if get_rank() == 0:
            (self._folder / _BEST_WEIGHTS).unlink(missing_ok=True)
            if saved is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                _link_or_copy(saved / _BEST_WEIGHTS, self._folder / _BEST_WEIGHTS)
        wait_for_all()

    def save_best(self, model: nn.Module, save: Callable[..., None]) -> dict[str, Any]:
        """Load the best weights into `model` and call `save()`; return the best evaluation.

        Returns {"step": step, name of the metric: value}, and "interval" if the metric has a confidence interval.
        """
        assert self.best is not None, "nothing was evaluated"
        load_weights(model, self._folder / _BEST_WEIGHTS)
        if self.best.step == 0:
            warn(
                f"no evaluation improved on the initial {self.metric} of {self.best.value:z.4f}; saving the weights of "
                "the start model"
            )
        save()
        interval = {} if self.best.interval is None else {"interval": [*self.best.interval]}
        return {"step": self.best.step, self.metric: self.best.value, **interval}


def _link_or_copy(path: Path, target: Path) -> None:
    target.unlink(missing_ok=True)  # a checkpoint may be written twice
    try:
        os.link(path, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, target)


def get_selection_folder(folder: Path, name: str) -> Path:
    """Return the folder for the best weights of the selector `name`. folder: a checkpoint, or the folder of checkpoints"""
    return folder / f"best-{name}"


class ModelSelections(TrainingEvaluator):
    """Several checkpoint selectors that evaluate at the same steps, each with its own best weights."""

    def __init__(self, selections: Mapping[str, ModelSelection]) -> None:
        """selections: selectors by name; they need different metrics, and the folders of `get_selection_folder`"""
        self._selections = dict(selections)
        self.every = min(selection.every for selection in self._selections.values())

    @property
    def should_stop(self) -> bool:
        """Whether all selectors should stop."""
        return all(selection.should_stop for selection in self._selections.values())

    def evaluate(self, step: int) -> dict[str, float]:
        """Run the evaluation of every selector, and return the metrics of all selectors by name."""
        metrics: dict[str, float] = {}
        for selection in self._selections.values():
            metrics |= selection.evaluate(step)
        return metrics

    def save(self, checkpoint: Path) -> None:
        """Save the state and best weights of all selectors into a checkpoint."""
        for name, selection in self._selections.items():
            folder = get_selection_folder(checkpoint, name)
            folder.mkdir(exist_ok=True)
            selection.save(folder)

    def restore(self, checkpoint: Path | None) -> None:
        """Restore the state and best weights of all selectors from a checkpoint; None: reset them."""
        for name, selection in self._selections.items():
            selection.restore(None if checkpoint is None else get_selection_folder(checkpoint, name))

    def save_best(self, model: nn.Module, save: Callable[..., None]) -> dict[str, Any]:
        """For each selector, load the best weights into `model` and call `save(name)`; return results by selector name.

        The results are those of `ModelSelection.save_best`.
        """
        selections = self._selections.items()
        return {name: selection.save_best(model, partial(save, name)) for name, selection in selections}
