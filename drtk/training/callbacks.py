"""Callbacks: when a model is measured while it is trained, and what is seen of training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import Trainer, TrainerCallback

from drtk.io.progress import Progress, detail

FIRST_SIGN = 10.0  # seconds until training off a terminal first says how far it is


class ShowProgress(TrainerCallback):
    """A bar on a terminal, elsewhere a plain line after 10 s and every 30 s, each with the last loss; all losses with -v."""

    def __init__(self, what: str, steps: int) -> None:
        self._what, self._steps = what, steps
        self._progress: Progress | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self._progress = Progress(
                self._what, total=self._steps, unit="steps", initial=state.global_step, first=FIRST_SIGN
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_log |= state.global_step == state.max_steps  # the last entry may be of fewer steps
        if self._progress is not None:
            self._progress.add()

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float] | None = None, **_: Any) -> None:
        if self._progress is not None and logs and "loss" in logs:
            self._progress.note = f"loss {logs['loss']:z.4g}"
            detail(f"{self._what}: step {state.global_step:,}, loss {logs['loss']:z.4f}")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._progress is not None:
            self._progress.close()


class MeasureNowAndThen(TrainerCallback):
    """Asks for a measurement every so many steps, and after the last one."""

    def __init__(self, every: int) -> None:
        self._every = every

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = state.global_step
        control.should_evaluate = step % self._every == 0 or step == state.max_steps

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_evaluate = False  # the Trainer looks a second time after the last step


class MeasureTheStart(TrainerCallback):
    """Measures before the first step, so that a log tells what training changed."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 0:
            self._trainer.evaluate()
