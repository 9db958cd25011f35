"""The training loop: the one subclass of transformers.Trainer and its callbacks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import SequentialSampler
from transformers import PrinterCallback, Trainer, TrainerCallback

from drtk.errors import DrtkError
from drtk.models.checkpoint import writing_weights
from drtk.models.loading import quiet_transformers
from drtk.runtime.atomic import sync_tree, write_bytes
from drtk.runtime.progress import Progress, detail, round_significant, warn
from drtk.runtime.progress import log as say
from drtk.training.arguments import beside_the_log
from drtk.training.best_checkpoint import (
    COMPLETE,
    WEIGHTS,
    Selection,
    Selections,
    cut_log,
    last_checkpoint,
    load_weights,
    save_weights,
    step_of,
    whole_checkpoints,
)
from drtk.training.distributed import mean_of_processes, rank, wait_for_all
from drtk.training.sampling import seed_of_step

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


@contextmanager
def within_memory(device: torch.device | str, advice: str) -> Iterator[None]:
    """Tell in one line that memory was too small, and what may help."""
    try:
        yield
    except RuntimeError as error:  # of which torch's own kind is one
        if short_of_memory(error):
            raise DrtkError(f"{device}: out of memory; {advice} may help") from error
        raise


def relief(*, anew: str, micro: int = 1, chunk: str = "", checkpointing: bool = True) -> str:
    """What makes a step smaller: first what an interrupted run can go on with, then what it must begin anew with.

    micro: how much a device has at once, as --micro-batch counts it; chunk: what --cache-chunk can still do
    checkpointing: it is used already, or cannot be
    """
    ways = [f"a smaller --micro-batch (it is {micro})"] if micro > 1 else []
    ways += [chunk] if chunk else []
    ways += [] if checkpointing else ["--gradient-checkpointing"]
    return ", ".join(ways) + (" or, begun anew, " if ways else "beginning anew with ") + anew


def allow_checkpointing(backbone: Any) -> None:
    """Let a backbone trade time for memory: activations are computed again in the backward pass."""
    backbone.config.use_cache = False  # for generation; transformers would turn it off itself, and say so
    enable = getattr(backbone, "activation_checkpointing_enable", None)
    try:
        if enable is not None:
            enable(activation_checkpointing_kwargs={"use_reentrant": False})
        else:
            backbone.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    except ValueError as error:
        raise DrtkError(f"--gradient-checkpointing: {str(error).splitlines()[0]}") from error


EXPLODED = (
    10.0  # times the loss of the first step (or 1, where that was less): no schedule worth going on with does that
)


class Ruined(DrtkError):
    """A loss that is no number: the weights it was computed with are of no use."""


def finite(model: nn.Module) -> bool:
    """Whether every weight, and every running statistic, is a number."""
    state = model.state_dict().values()
    return all(bool(torch.isfinite(value).all()) for value in state if value.is_floating_point())


def exploded(loss: float, first: float | None) -> bool:
    """Whether a loss is far above that of the first step; never where the latter is not known."""
    return first is not None and not loss <= EXPLODED * max(first, 1.0)


def short_of_memory(error: RuntimeError) -> bool:
    """Whether a fault of torch is a lack of memory, on a GPU or, by its wording, on a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def first_loss(complete: Path) -> float | None:
    """The loss of the first step, as the file that marks a whole checkpoint tells it; None where it tells nothing."""
    text = complete.read_text(encoding="utf-8").strip()
    return float(text) if text else None


Objective = Callable[[nn.Module, dict[str, Any]], dict[str, Tensor]]


class Probe(Protocol):
    """What measures the model now and then while it is trained, and remembers enough of it to go on after a crash."""

    @property
    def every(self) -> int:
        """Steps between two measurements; there is one after the last step too."""

    @property
    def enough(self) -> bool:
        """Whether training shall end."""

    def measure(self, step: int) -> dict[str, float]:
        """Numbers for the log. All processes call it, and get the same ones."""

    def save(self, checkpoint: Path) -> None:
        """Put what is remembered into the folder of a checkpoint."""

    def restore(self, checkpoint: Path | None) -> None:
        """Remember what the checkpoint holds; None: begin anew."""


class DrtkTrainer(Trainer):
    """A Trainer whose steps depend on (seed, step) alone, so that resumed training equals uninterrupted training.

    The data set holds the examples of all steps in order: it knows epochs and shuffling, the Trainer does not.
    objective: (model, inputs) -> named scalar terms, whose sum is minimised; all of them are logged
    weights: what a term counts in the sum, 1 where nothing is said
    log: file that gets a line per `logging_steps`; steps_per_epoch: for the "epoch" written there
    probe: measures the model meanwhile, and may end training
    factor: the learning rate of step t (counted from 1) over that of the arguments; None: as the arguments say
    """

    def __init__(
        self,
        *,
        objective: Objective,
        log: Path,
        steps_per_epoch: float,
        probe: Probe | None = None,
        weights: Mapping[str, float] | None = None,
        factor: Callable[[int], float] | None = None,
        **given: Any,
    ) -> None:
        super().__init__(**given)
        self._factor = factor
        self._weights = weights or {}
        self.remove_callback(PrinterCallback)
        self.callback_handler.callbacks = [beside_the_log(each, log) for each in self.callback_handler.callbacks]
        self.probe = probe
        if probe is not None:
            self.add_callback(MeasureNowAndThen(probe.every))
        self.objective, self._log_path, self._steps_per_epoch = objective, log, steps_per_epoch
        self._terms: dict[str, Tensor] = {}
        self._steps_of_terms = 0
        self._first_loss: float | None = None
        self._last_loss = 0.0
        self.relief = relief(anew="a smaller --batch or more devices")  # what a command adds to it is its own affair
        self._drawn_for = -1  # the step whose random draws have begun
        self.model_accepts_loss_kwargs = False

    def go_on(self) -> int:
        """Train to the end, from the last whole checkpoint where there is one; returns the number of the last step.

        Raises DrtkError where memory is too small, or the loss or a weight ceases to be a number; it tells which checkpoint
        is left. That of the step before such a loss is not: it would give the same loss at once.
        """
        start = last_checkpoint(Path(self.args.output_dir))
        step = step_of(start)
        self._first_loss = None if start is None else first_loss(start / COMPLETE)
        if self.is_world_process_zero():
            cut_log(self._log_path, step=step if start is not None else -1)  # a first measurement is of step 0
            if start is not None:
                say(f"going on after step {step:,} of {self.args.max_steps:,}")
        if self.probe is not None:
            self.probe.restore(start)
            if self.probe.enough:
                return step
        wait_for_all()
        try:
            steps = int(self.train(resume_from_checkpoint=str(start) if start else None).global_step)
            if not finite(self.model):
                raise Ruined(f"a weight is no number after step {steps}; a lower --lr or --precision float32 may help")
            return steps
        except Ruined as error:
            raise DrtkError(f"{error}; {self._way_back(ruined=True)}") from error
        except RuntimeError as error:
            if not short_of_memory(error):
                raise
            raise DrtkError(
                f"{self.args.device}: out of memory at step {self.state.global_step + 1}; {self.relief} may help; "
                f"{self._way_back(ruined=False)}"
            ) from error

    def finish(self, save: Callable[..., None]) -> dict[str, Any]:
        """Train to the end, let rank zero `save` the model with its best weights, and take the checkpoints away.

        save: called once; with each name, where there are Selections
        Returns "steps", "epochs" and, where a Selection chose the weights, "best": its step and measure, or those of each
        name. Raises as `go_on` does.
        """
        steps = self.go_on()
        facts: dict[str, Any] = {"steps": steps, "epochs": round(steps / self._steps_per_epoch, 4)}
        if self.is_world_process_zero():
            if isinstance(self.probe, Selection | Selections):
                facts["best"] = self.probe.conclude(self.model, save)
            else:
                save()
            shutil.rmtree(self.args.output_dir, ignore_errors=True)
        wait_for_all()
        return facts

    def _way_back(self, *, ruined: bool) -> str:
        """What --resume would do now; ruined: a checkpoint of the weights as they are is taken away first."""
        folder = Path(self.args.output_dir)
        newest = folder / f"checkpoint-{self.state.global_step}"
        why = ""
        if ruined and (newest / COMPLETE).exists():
            (newest / COMPLETE).unlink()
            shutil.rmtree(newest, ignore_errors=True)
            why = f" (that of step {step_of(newest):,} is taken away: it gives this loss at once)"
        left = whole_checkpoints(folder)
        if not left:
            return f"--resume begins anew, for there is no checkpoint{why}"
        return f"--resume goes on from the checkpoint of step {step_of(left[0]):,}{why}"

    def evaluate(self, *given: Any, **named: Any) -> dict[str, float]:
        """The probe's numbers, which also go to the log file; ends training where the probe has seen enough."""
        if self.probe is None:
            return {}
        step = self.state.global_step
        with self.accelerator.autocast():
            found = self.probe.measure(step)
        self._write({"step": step} | found)
        self.callback_handler.on_log(self.args, self.state, self.control, dict(found))
        self.control.should_training_stop |= self.probe.enough
        return found

    def _write(self, entry: dict[str, Any]) -> None:
        if self.is_world_process_zero():
            epoch = round(entry["step"] / self._steps_per_epoch, 4)
            figures = {name: round_significant(value) for name, value in entry.items()}
            with open(self._log_path, "a", encoding="utf-8") as file:
                file.write(json.dumps(figures | {"epoch": epoch}) + "\n")

    def _get_train_sampler(self, *given: Any) -> SequentialSampler:
        return SequentialSampler(given[0] if given else self.train_dataset)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The learning rate of every step, by `factor` where there is one."""
        factor = self._factor
        if factor is None:
            return super().create_scheduler(num_training_steps, optimizer)
        self.lr_scheduler: Any = LambdaLR(optimizer or self.optimizer, lambda done: factor(done + 1))
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def training_step(self, *given: Any, **named: Any) -> Tensor:
        """One step, or a part of it, its random draws (dropout) taken from seed, step and rank."""
        if self._drawn_for != self.state.global_step:
            self._drawn_for = self.state.global_step
            torch.manual_seed(seed_of_step(self.args.seed, self.state.global_step, rank()))
        return super().training_step(*given, **named)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *given: Any, **named: Any) -> Any:
        """The weighted sum of the objective's terms, ()."""
        return self.noted(self.objective(model, inputs))

    def weighed(self, terms: Mapping[str, Tensor]) -> Tensor:
        """The weighted sum of terms, ()."""
        return torch.stack([self._weights.get(name, 1.0) * value for name, value in terms.items()]).sum()

    def noted(self, terms: Mapping[str, Tensor]) -> Tensor:
        """`weighed`, and the terms kept for the log. Raises DrtkError where the sum is no number."""
        if len(terms) > 1:
            self._steps_of_terms += 1
            for name, value in terms.items():
                self._terms[name] = self._terms.get(name, torch.zeros_like(value)) + value.detach()
        total = self.weighed(terms)
        if not torch.isfinite(total):
            raise Ruined(
                f"the loss is {total.item()} at step {self.state.global_step + 1}; a lower --lr or --precision float32 may help"
            )
        return total

    def log(self, logs: dict[str, float], *given: Any, **named: Any) -> None:
        """Add a line to the log file; the Trainer's closing summary is not one of them."""
        step = self.state.global_step
        if "loss" in logs:
            self._last_loss = logs["loss"]
            logs |= {name: value.item() / self._steps_of_terms for name, value in self._terms.items()}
            self._terms.clear()
            self._steps_of_terms = 0
        super().log(logs, *given, **named)
        if "loss" in logs:
            self._write({"step": step} | logs)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        weights = self.model.state_dict() if state_dict is None else state_dict
        save_weights(weights, folder / WEIGHTS)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        load_weights(model or self.model, Path(resume_from_checkpoint) / WEIGHTS)

    def _save_rng_state(self, output_dir: str) -> None:
        """Nothing: draws are functions of the step."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Nothing: draws are functions of the step."""

    def _init_training_state(self, max_steps: int, *given: Any, **named: Any) -> Any:
        """As it was saved, but for how often is logged and saved: that may be another now, and is no cause for a remark."""
        with quiet_transformers():
            found = super()._init_training_state(max_steps, *given, **named)
        self.state.compute_steps(self.args, max_steps)
        return found

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """As they were saved, but for the highest learning rate: that of this run holds from here on."""
        scheduler: Any = self.lr_scheduler
        wanted = [*getattr(scheduler, "base_lrs", ())]
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or wanted == [*getattr(scheduler, "base_lrs", ())]:
            return
        assert self.optimizer is not None
        for group, highest, factor in zip(self.optimizer.param_groups, wanted, scheduler.lr_lambdas, strict=True):
            group["initial_lr"], group["lr"] = highest, highest * factor(scheduler.last_epoch)
        scheduler.base_lrs = wanted
        scheduler._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def _maybe_log_save_evaluate(self, tr_loss: Tensor, *given: Any, **named: Any) -> None:
        if self.state.global_step == 1 and self._first_loss is None:
            self._first_loss = mean_of_processes(tr_loss.detach()).item()
        super()._maybe_log_save_evaluate(tr_loss, *given, **named)

    def _sound(self) -> bool:
        """Whether the weights are worth going on from, which is said where they are not."""
        step = self.state.global_step
        if not finite(self.model):
            warn(f"step {step:,}: a weight is no number; no checkpoint is kept of it")
            return False
        if exploded(self._last_loss, self._first_loss):
            warn(
                f"step {step:,}: the loss, {self._last_loss:.4g}, is far above the {self._first_loss:.4g} of the first "
                "step; no checkpoint is kept of it, and a lower --lr may help"
            )
            return False
        return True

    def _save_checkpoint(self, *given: Any, **named: Any) -> None:
        if not self._sound():
            return
        with writing_weights(Path(self.args.output_dir)), quiet_transformers():
            super()._save_checkpoint(*given, **named)
        if self.args.should_save:
            folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            if self.probe is not None:
                self.probe.save(folder)
            sync_tree(folder)
            write_bytes(folder / COMPLETE, b"" if self._first_loss is None else repr(self._first_loss).encode())
