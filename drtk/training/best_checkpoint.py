"""Training checkpoints, and selection of the best weights by evaluation during training."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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

    def __init__(self, values: Mapping[str, float], intervals: Mapping[str, tuple[float, float]]) -> None:
        super().__init__(values)
        self.intervals = intervals


@dataclass
class BestEvaluation:
    """Step and value of the best evaluation, its confidence interval, and the number of evaluations since (`since`)."""

    step: int
    value: float
    since: int = 0
    interval: Sequence[float] | None = None


class ModelSelection:
    """Periodic evaluation that keeps the weights with the best value of each metric; of equal values, the first wins.

    Each training checkpoint contains the best weights up to its step, so resumed training starts from the same state.
    """

    def __init__(
        self,
        model: nn.Module,
        evaluate: Callable[[], dict[str, float]],
        folder: Path,
        *,
        metric: str | Mapping[str, str],
        config: TrainingConfig,
        lower_is_better: bool | None = None,
    ) -> None:
        """Select the weights of `model`.

        evaluate: function that returns metrics by name, equal in all processes; every process calls it
        folder: folder for the best weights
        metric: name of the metric to select by; for several, names of metrics by name of the selected model; {}: select none
        config: for `eval_steps` and, for early stopping, `patience`
        lower_is_better: None: True for a metric whose name ends in "loss", else False
        """
        self.metrics = {"": metric} if isinstance(metric, str) else dict(metric)
        self.best: dict[str, BestEvaluation] = {}
        self.every = config.eval_steps
        self._model, self._evaluate, self._folder = model, evaluate, folder
        self._patience, self._lower_is_better = config.patience, lower_is_better

    @property
    def should_stop(self) -> bool:
        """Whether no metric has improved in the last `patience` evaluations."""
        patience, bests = self._patience, self.best.values()
        return patience is not None and bool(bests) and all(best.since >= patience for best in bests)

    def evaluate(self, step: int) -> dict[str, float]:
        """Evaluate, keep the weights if they are the best so far, and return the metrics. step: number of steps so far"""
        metrics = self._evaluate()
        for name, metric in self.metrics.items():
            value, best = metrics[metric], self.best.get(name)
            lower_is_better = metric.endswith("loss") if self._lower_is_better is None else self._lower_is_better
            if best is None or (value < best.value if lower_is_better else value > best.value):
                intervals = metrics.intervals if isinstance(metrics, Metrics) else {}
                self.best[name] = BestEvaluation(step, value, interval=intervals.get(metric))
                self._save_best_weights(name)
                log_message(f"step {step:,}: {metric} {value:z.4f}, the best so far")
            else:
                best.since += 1
                log_message(
                    f"step {step:,}: {metric} {value:z.4f}; the best is {best.value:z.4f} at step {best.step:,}"
                )
        return metrics

    def _save_best_weights(self, name: str) -> None:
        if get_rank() == 0:
            folder = _get_subfolder(self._folder, name)
            folder.mkdir(parents=True, exist_ok=True)
            part = folder / f"{_BEST_WEIGHTS}.part"  # not in place: a checkpoint may hard-link the current file
            save_weights(self._model.state_dict(), part)
            sync(part)
            os.replace(part, folder / _BEST_WEIGHTS)

    def save(self, checkpoint: Path) -> None:
        """Save the best evaluations and the best weights into a checkpoint; the weights are hard links if possible."""
        for name, best in self.best.items():
            folder = _get_subfolder(checkpoint, name)
            _link_or_copy(_get_subfolder(self._folder, name) / _BEST_WEIGHTS, folder / _BEST_WEIGHTS)
            write_json(folder / _STATE, vars(best))

    def restore(self, checkpoint: Path | None) -> None:
        """Restore the best evaluations and weights from a checkpoint; None, or one without them: discard both."""
        self.best = {}
        for name in self.metrics:
            weights = _get_subfolder(self._folder, name) / _BEST_WEIGHTS
            if get_rank() == 0:
                weights.unlink(missing_ok=True)
            if checkpoint is None or not (state_file := _get_subfolder(checkpoint, name) / _STATE).exists():
                continue
            state = read_object(state_file, step=int, value=int | float, since=int, interval=list | None)
            self.best[name] = BestEvaluation(state["step"], state["value"], state["since"], state.get("interval"))
            if get_rank() == 0:
                _link_or_copy(state_file.with_name(_BEST_WEIGHTS), weights)
        wait_for_all()

    def save_best(self, model: nn.Module, save: Callable[..., None]) -> dict[str, Any]:
        """Load the best weights into `model` and call `save()`, or `save(name)` for each of several selected models.

        Returns {"step": step, name of the metric: value}, and "interval" if the metric has a confidence interval; for
        several models, these results by name.
        """
        results = {}
        for name, metric in self.metrics.items():
            best = self.best[name]
            load_weights(model, _get_subfolder(self._folder, name) / _BEST_WEIGHTS)
            if best.step == 0:
                warn(
                    f"no evaluation improved on the initial {metric} of {best.value:z.4f}; saving the weights of the start model"
                )
            save(name) if name else save()
            interval = {} if best.interval is None else {"interval": [*best.interval]}
            results[name] = {"step": best.step, metric: best.value, **interval}
        return results.get("", results)


def _get_subfolder(folder: Path, name: str) -> Path:
    """Return the folder for the best weights of the selected model `name`; "": `folder` itself."""
    return folder / f"best-{name}" if name else folder


def _link_or_copy(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)  # a checkpoint may be written twice
    try:
        os.link(path, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, target)
