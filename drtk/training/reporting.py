"""TensorBoard and Weights & Biases, which may be told what a training log holds."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from drtk.errors import MissingDependency, UsageError, pip_install

FOLDER = "tensorboard"
_MODULES = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",)}


def check_reporting(names: Sequence[str]) -> None:
    """Raise UsageError for a name that transformers does not know, MissingDependency where its package is not installed."""
    for name in names:
        if name not in ("none", "all") and name not in INTEGRATION_TO_CALLBACK:
            raise UsageError(f"--report-to: '{name}' is not one of {', '.join(sorted(INTEGRATION_TO_CALLBACK))}")
        if name in _MODULES and not any(find_spec(module) for module in _MODULES[name]):
            raise MissingDependency(name, f"--report-to {name}", pip_install(name))


def beside_the_log(callback: TrainerCallback, log: Path) -> TrainerCallback:
    """A reporting callback as it should be for a run whose log is `log`; those for TensorBoard write into its folder."""
    return BesideTheLog(log.parent / FOLDER) if type(callback) is TensorBoardCallback else callback


class BesideTheLog(TensorBoardCallback):
    """TensorBoard's files in a folder that is kept: the Trainer's own lie among the checkpoints, which are taken away.

    A run that goes on after a crash takes back what had been told of later steps.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.tb_writer: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Open the files."""
        if state.is_world_process_zero and self.tb_writer is None:
            last = state.global_step
            self.tb_writer = self._SummaryWriter(str(self._folder), purge_step=last + 1 if last else None)
        super().on_train_begin(args, state, control, **given)
