"""The training loop: `fit`, DrtkTrainer (a transformers Trainer) and its callbacks."""

from __future__ import annotations

import gc
import json
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import clear_frames
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import SequentialSampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.integrations import TensorBoardCallback

from drtk.errors import DrtkError
from drtk.models.checkpoint import report_write_errors
from drtk.models.device import is_out_of_memory, report_out_of_memory
from drtk.runtime.atomic import sync_tree, write_bytes
from drtk.runtime.progress import Progress, log_detail, round_significant, silence_transformers, warn
from drtk.runtime.progress import log as log_message
from drtk.training.arguments import ResumableTensorBoardCallback, Schedule
from drtk.training.best_checkpoint import (
    COMPLETE,
    WEIGHTS,
    ModelSelection,
    delete_incomplete_checkpoints,
    find_last_checkpoint,
    list_complete_checkpoints,
    load_weights,
    parse_checkpoint_step,
    save_weights,
    truncate_log,
)
from drtk.training.distributed import all_reduce_mean, get_rank, get_world_size, wait_for_all
from drtk.training.sampling import derive_step_seed

LOG = "log.jsonl"
MICRO_FILE = "micro_batch"  # file in the folder of checkpoints with the reduced micro-batch size
_MAX_PARTS = 1 << 20  # upper bound of the number of parts of a batch, for random seeds
FIRST_PROGRESS = 10.0  # seconds until the first progress line if stderr is not a terminal
DIVERGENCE_FACTOR = 10.0  # a loss above this multiple of the first loss (or of 1, if larger) has diverged

Objective = Callable[[nn.Module, dict[str, Any]], dict[str, Tensor]]


def fit(
    model: nn.Module,
    dataset: Any,
    collate: Callable[[Sequence[Any]], dict[str, Tensor]],
    *,
    arguments: TrainingArguments,
    schedule: Schedule,
    folder: Path,
    name: str,
    save: Callable[..., None],
    micro_batch: int | None = None,
    trainer_class: Callable[..., DrtkTrainer] | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    memory_advice: str = "`gradient_checkpointing` or a smaller `batch_size`",
    **trainer_options: Any,
) -> dict[str, Any]:
    """Train a model, and save it with its last or best weights (rank zero).

    Training resumes from the last complete checkpoint. Steps depend on (seed, step) only, so resumed training equals
    uninterrupted training. With one process, the micro-batch is reduced (`compute_smaller_micro_batch`) when memory runs
    out; the new size is added to the result as "micro_batch" and stored in the file MICRO_FILE in the folder of checkpoints.

    dataset: the items of all steps in order    collate: function from the items of a step to model inputs
    folder: folder for log.jsonl; checkpoints, in `arguments.output_dir`, are deleted at the end
    name: name of the training in the progress bar    save: function that writes the model
    micro_batch: items in memory at once, a divisor of the batch per device, only for losses that are means over items;
        None: the whole batch; a `trainer_class` may define it differently, as RetrieverTrainer does
    memory_advice: other ways to reduce memory, for the error message
    trainer_options: additional arguments of `trainer_class` (default DrtkTrainer), such as `objective` and `evaluator`
    Returns "steps", "epochs" and, in rank zero with an `evaluator` that selects weights, "best", the result of its `save_best`.
    Raises DrtkError for a NaN or infinite loss or weight, or when out of memory; KeyboardInterrupt after Ctrl-C or
    SIGTERM.
    """
    initial_micro_batch = micro_batch
    while True:
        with report_out_of_memory(arguments.device, f"{memory_advice} may help"):
            trainer = (trainer_class or DrtkTrainer)(
                log=folder / LOG,
                steps_per_epoch=schedule.steps_per_epoch,
                micro_batch=micro_batch,
                memory_advice=memory_advice,
                model=model,
                args=arguments,
                train_dataset=dataset,
                data_collator=collate,
                callbacks=[ProgressCallback(name, schedule.steps), *callbacks],
                **trainer_options,
            )
        try:
            summary = trainer.run(save)
            return summary if micro_batch == initial_micro_batch else summary | {"micro_batch": micro_batch}
        except OutOfMemoryError as error:
            smaller = trainer.compute_smaller_micro_batch()
            if error.__cause__ is not None:  # free the tensors of the failed step, since saving needs memory
                clear_frames(error.__cause__.__traceback__)
            model.zero_grad(set_to_none=True)
            if smaller is None or get_world_size() > 1 or not trainer.save_for_retry():
                raise
            warn(f"{str(error).partition(';')[0]}; continuing with `{trainer.micro_batch_field}` {smaller}")
        micro_batch = smaller
        checkpoints = Path(arguments.output_dir)
        checkpoints.mkdir(parents=True, exist_ok=True)
        write_bytes(checkpoints / MICRO_FILE, b"%d\n" % smaller)
        del trainer
        gc.collect()  # frees the optimizer state and the graph of the failed step
        if arguments.device.type == "cuda":
            torch.cuda.empty_cache()


class ProgressCallback(TrainerCallback):
    """Callback that shows progress and the last loss: a bar on a terminal, else a line after 10 s and then every 30 s."""

    def __init__(self, name: str, steps: int) -> None:
        self._name, self._steps = name, steps
        self._progress: Progress | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self._progress = Progress(
                self._name, total=self._steps, unit="steps", initial=state.global_step, first=FIRST_PROGRESS
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_log |= state.global_step == state.max_steps  # the last entry may cover fewer steps
        if self._progress is not None:
            self._progress.add()

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float] | None = None, **_: Any) -> None:
        if self._progress is not None and logs and "loss" in logs:
            self._progress.note = f"loss {logs['loss']:z.4g}"
            log_detail(f"{self._name}: step {state.global_step:,}, loss {logs['loss']:z.4f}")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._progress is not None:
            self._progress.close()


class StepCallback(TrainerCallback):
    """Callback that tracks forward and backward passes, and ends training with a checkpoint after Ctrl-C or SIGTERM.

    is_in_pass: whether a forward or backward pass is running, where a smaller micro-batch saves memory
    is_interrupted: whether Ctrl-C was pressed or SIGTERM received
    """

    is_in_pass = is_interrupted = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.is_in_pass = True

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.is_in_pass = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.is_interrupted:
            control.should_log = control.should_save = control.should_training_stop = True

    @contextmanager
    def finish_step_on_interrupt(self) -> Iterator[None]:
        """Context manager that lets the current step finish after Ctrl-C or SIGTERM, and then raises KeyboardInterrupt.

        A second signal has its usual effect; so does the first, with several processes or outside the main thread.
        A signal that is ignored, such as SIGINT in a background job of a script, stays ignored.
        """
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
        if threading.current_thread() is not threading.main_thread() or get_world_size() > 1:
            yield
            return

        def restore_handlers() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        def interrupt(*_: Any) -> None:
            self.is_interrupted = True
            restore_handlers()

        for number in before:
            signal.signal(number, interrupt)
        try:
            yield
        finally:
            restore_handlers()
        if self.is_interrupted:
            raise KeyboardInterrupt


class EvaluationCallback(TrainerCallback):
    """Callback that evaluates every `every` steps and after the last step; with `start`, also before the first step."""

    def __init__(self, trainer: Trainer, *, every: int, start: bool) -> None:
        self._trainer, self._every, self._start = trainer, every, start

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._start and state.global_step == 0:
            self._trainer.evaluate()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = state.global_step
        control.should_evaluate = step % self._every == 0 or step == state.max_steps

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_evaluate = False  # the Trainer would evaluate again after the last step


class NonFiniteLossError(DrtkError):
    """Error for a NaN or infinite loss or weight."""


class OutOfMemoryError(DrtkError):
    """Error for the forward or backward pass of a training step that ran out of memory."""


def enable_gradient_checkpointing(backbone: Any) -> None:
    """Enable gradient checkpointing, which recomputes activations in the backward pass.

    Raises DrtkError for a model that does not support it.
    """
    backbone.config.use_cache = False  # transformers would disable it with a warning
    enable = getattr(backbone, "activation_checkpointing_enable", None)
    try:
        if enable is not None:
            enable(activation_checkpointing_kwargs={"use_reentrant": False})
        else:
            backbone.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise DrtkError(f"`gradient_checkpointing`: not supported by this model ({reason}); omit it") from error


def is_finite(model: nn.Module) -> bool:
    """Return whether no weight or buffer of a model is NaN or infinite."""
    state = model.state_dict().values()
    return all(bool(torch.isfinite(value).all()) for value in state if value.is_floating_point())


class DrtkTrainer(Trainer):
    """A Trainer whose steps depend on (seed, step) only, so resumed training equals uninterrupted training.

    The dataset contains the examples of all steps in order, shuffled by epoch.

    objective: (model, inputs) -> scalar losses by name; their weighted sum is minimized, and several losses are logged
        each; None: a subclass computes the loss
    weights: weights of the losses by name; the default weight is 1
    log: log file with a line every `logging_steps` steps and for each evaluation
    steps_per_epoch: number of steps that the log counts as an epoch
    evaluator: evaluates during training, may stop training and selects the weights
    evaluate_first: evaluate before the first step too
    lr_factor: (step, from 1) -> factor of the learning rate; None: use the schedule of `args`
    micro_batch: items in memory at once; None: the whole batch of the device, which is then not reduced when memory runs out
    memory_advice: ways to reduce memory, for the error message
    """

    micro_batch_field = "micro_batch_size"

    def __init__(
        self,
        *,
        objective: Objective | None,
        log: Path,
        steps_per_epoch: float,
        evaluator: ModelSelection | None = None,
        evaluate_first: bool = False,
        weights: Mapping[str, float] | None = None,
        lr_factor: Callable[[int], float] | None = None,
        micro_batch: int | None = None,
        memory_advice: str = "",
        **kwargs: Any,
    ) -> None:
        if micro_batch is not None:
            arguments = kwargs["args"]
            device_batch = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
            arguments.per_device_train_batch_size = micro_batch
            arguments.gradient_accumulation_steps = device_batch // micro_batch
        super().__init__(**kwargs)
        self._lr_factor = lr_factor
        self._weights = weights or {}
        self.remove_callback(PrinterCallback)
        if any(type(callback) is TensorBoardCallback for callback in self.callback_handler.callbacks):
            self.remove_callback(TensorBoardCallback)  # it writes into the folder of checkpoints, which is deleted
            self.add_callback(ResumableTensorBoardCallback(log.parent / "tensorboard"))
        self._step_state = StepCallback()
        self.add_callback(self._step_state)
        self.evaluator = evaluator
        if evaluator is not None:
            self.add_callback(EvaluationCallback(self, every=evaluator.every, start=evaluate_first))
        self.objective, self.micro_batch = objective, micro_batch
        self._log_path, self._steps_per_epoch = log, steps_per_epoch
        self._terms: dict[str, Tensor] = {}
        self._num_recorded = 0  # steps or micro-batches whose terms are summed in `_terms`
        self._first_loss: float | None = None
        self._last_loss = 0.0
        self.memory_advice = memory_advice
        self._seeded_step = -1  # the last step for which the random seed was set
        self.model_accepts_loss_kwargs = False

    def run(self, save: Callable[..., None]) -> dict[str, Any]:
        """Train to the end, save the model with its best or last weights (rank zero), and delete the checkpoints.

        save: function that writes the model; for several selected models, it is called with the name of each
        Returns the result of `fit` without "micro_batch". Raises its errors, and OutOfMemoryError.
        """
        steps = self._train_to_end()
        summary: dict[str, Any] = {"steps": steps, "epochs": round(steps / self._steps_per_epoch, 4)}
        if self.is_world_process_zero():
            if self.evaluator is not None and self.evaluator.metrics:
                summary["best"] = self.evaluator.save_best(self.model, save)
            else:
                save()
            shutil.rmtree(self.args.output_dir, ignore_errors=True)
        wait_for_all()
        return summary

    def _train_to_end(self) -> int:
        start = find_last_checkpoint(Path(self.args.output_dir))
        step = parse_checkpoint_step(start)
        if start is not None and (first := (start / COMPLETE).read_text(encoding="utf-8").strip()):
            self._first_loss = float(first)
        if self.is_world_process_zero():
            delete_incomplete_checkpoints(Path(self.args.output_dir))
            truncate_log(self._log_path, step=-1 if start is None else step)  # an evaluation before training has step 0
            if start is not None:
                log_message(f"resuming after step {step:,} of {self.args.max_steps:,}")
        if self.evaluator is not None:
            self.evaluator.restore(start)
            if self.evaluator.should_stop:
                return step
        wait_for_all()
        try:
            with self._step_state.finish_step_on_interrupt():
                steps = int(self.train(resume_from_checkpoint=str(start) if start else None).global_step)
            if not is_finite(self.model):
                raise NonFiniteLossError(
                    f"a weight is NaN or infinite after step {steps}; try a lower `learning_rate` or `precision` float32"
                )
            return steps
        except NonFiniteLossError as error:
            self._delete_current_checkpoint()  # its weights may be NaN
            raise DrtkError(f"{error}; {self._describe_resume_point()}") from error
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            in_pass = self._step_state.is_in_pass
            field = f"a smaller `{self.micro_batch_field}`, " if in_pass and self.micro_batch not in (None, 1) else ""
            raise (OutOfMemoryError if in_pass else DrtkError)(
                f"{self.args.device}: out of memory at step {self.state.global_step + 1}; {field}{self.memory_advice} may help; "
                f"{self._describe_resume_point()}"
            ) from error

    def compute_smaller_micro_batch(self) -> int | None:
        """Return the largest divisor of `micro_batch` that is at most half of it; None if it is 1 or None."""
        if self.micro_batch is None:
            return None
        return next((size for size in range(self.micro_batch // 2, 0, -1) if self.micro_batch % size == 0), None)

    def save_for_retry(self) -> bool:
        """Save a checkpoint of the finished steps, to continue after a step that ran out of memory.

        Returns whether training can continue: no step is finished yet, or there is a complete checkpoint.
        """
        step, folder = self.state.global_step, Path(self.args.output_dir)
        if step and not (folder / f"checkpoint-{step}" / COMPLETE).exists():
            self._save_checkpoint(self.model, None)
        return not step or bool(list_complete_checkpoints(folder))

    def _delete_current_checkpoint(self) -> None:
        """Delete the checkpoint of the current step, if there is one."""
        newest = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        if (newest / COMPLETE).exists():
            (newest / COMPLETE).unlink()
            shutil.rmtree(newest, ignore_errors=True)

    def _describe_resume_point(self) -> str:
        """Return advice on resuming for an error message."""
        checkpoints = list_complete_checkpoints(Path(self.args.output_dir))
        if not checkpoints:
            return "there is no checkpoint to resume from"
        return f"`resume` continues after step {parse_checkpoint_step(checkpoints[0]):,}"

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Run the evaluator, log its metrics and return them; stop training if `evaluator.should_stop`."""
        if self.evaluator is None:
            return {}
        step = self.state.global_step
        with self.accelerator.autocast():
            metrics = self.evaluator.evaluate(step)
        self._write_log_entry({"step": step} | metrics)
        self.callback_handler.on_log(self.args, self.state, self.control, dict(metrics))
        self.control.should_training_stop |= self.evaluator.should_stop
        return metrics

    def _write_log_entry(self, entry: dict[str, Any]) -> None:
        if self.is_world_process_zero():
            epoch = round(entry["step"] / self._steps_per_epoch, 4)
            entry = {name: round_significant(value) for name, value in entry.items()}
            with open(self._log_path, "a", encoding="utf-8") as file:
                file.write(json.dumps(entry | {"epoch": epoch}) + "\n")

    def _get_train_sampler(self, *args: Any) -> SequentialSampler:
        return SequentialSampler(args[0] if args else self.train_dataset)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the learning-rate scheduler: by `lr_factor` if given, else by the training arguments."""
        factor = self._lr_factor
        if factor is None:
            return super().create_scheduler(num_training_steps, optimizer)
        self.lr_scheduler: Any = LambdaLR(optimizer or self.optimizer, lambda step: factor(step + 1))
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run one step, or one micro-batch of a step; return the loss. Dropout depends on (seed, step, rank) only."""
        if self._seeded_step != self.state.global_step:
            self._seeded_step = self.state.global_step
            torch.manual_seed(derive_step_seed(self.args.seed, self.state.global_step, get_rank()))
        return super().training_step(*args, **kwargs)

    def seed_part(self, number: int) -> None:
        """Seed torch for a part of the batch, so that its dropout depends on (seed, step, part, rank) only.

        number: index of the part, such as a micro-batch
        """
        torch.manual_seed(derive_step_seed(self.args.seed, self.state.global_step * _MAX_PARTS + number, get_rank()))

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Return the weighted sum of the objective's losses, a scalar."""
        assert self.objective is not None, "a trainer without an objective overrides training_step"
        return self.record_terms(self.objective(model, inputs))

    def sum_terms(self, terms: Mapping[str, Tensor]) -> Tensor:
        """Return the weighted sum of loss terms, a scalar; 0 without terms. terms: scalars by name"""
        weighted = [self.get_term_weight(name) * value for name, value in terms.items()]
        return torch.stack(weighted).sum() if weighted else torch.zeros((), device=self.args.device)

    def get_term_weight(self, name: str) -> float:
        """Return the weight of a loss term at the current step."""
        return self._weights.get(name, 1.0)

    def add_to_log(self, terms: Mapping[str, Tensor]) -> None:
        """Add loss terms, scalars by name, to the sums of the next log entry."""
        for name, value in terms.items():
            self._terms[name] = self._terms.get(name, torch.zeros_like(value)) + value.detach()

    def record_terms(self, terms: Mapping[str, Tensor]) -> Tensor:
        """Add loss terms (scalars by name), if several, to the next log entry; return their weighted sum, a scalar.

        Raises NonFiniteLossError if the sum is NaN or infinite.
        """
        if len(terms) > 1:
            self._num_recorded += 1
            self.add_to_log(terms)
        total = self.sum_terms(terms)
        if not torch.isfinite(total):
            raise NonFiniteLossError(
                f"the loss is {total.item()} at step {self.state.global_step + 1}; try a lower `learning_rate` or `precision` float32"
            )
        return total

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Write log entries with a loss to the log file, but not others, such as the Trainer's final summary."""
        step = self.state.global_step
        if "loss" in logs:
            self._last_loss = logs["loss"]
            logs |= {name: all_reduce_mean(value).item() / self._num_recorded for name, value in self._terms.items()}
            self._terms.clear()
            self._num_recorded = 0
        super().log(logs, *args, **kwargs)
        if "loss" in logs:
            self._write_log_entry({"step": step} | logs)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        weights = self.model.state_dict() if state_dict is None else state_dict
        save_weights(weights, folder / WEIGHTS)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        load_weights(model or self.model, Path(resume_from_checkpoint) / WEIGHTS)

    def _save_rng_state(self, output_dir: str) -> None:
        """Do nothing: the random state is set at every step."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Do nothing: the random state is set at every step."""

    def _init_training_state(self, max_steps: int, *args: Any, **kwargs: Any) -> Any:
        """Restore the trainer state of a checkpoint, with the `log_steps` and `save_steps` of this run."""
        with silence_transformers():
            state = super()._init_training_state(max_steps, *args, **kwargs)
        self.state.compute_steps(self.args, max_steps)
        return state

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Restore optimizer and scheduler of a checkpoint, but keep the learning rate of this run."""
        scheduler: Any = self.lr_scheduler
        base_lrs = [*getattr(scheduler, "base_lrs", ())]
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or base_lrs == [*getattr(scheduler, "base_lrs", ())]:
            return
        assert self.optimizer is not None
        for group, base_lr, factor in zip(self.optimizer.param_groups, base_lrs, scheduler.lr_lambdas, strict=True):
            group["initial_lr"], group["lr"] = base_lr, base_lr * factor(scheduler.last_epoch)
        scheduler.base_lrs = base_lrs
        scheduler._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def _maybe_log_save_evaluate(self, tr_loss: Tensor, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step == 1 and self._first_loss is None:
            self._first_loss = all_reduce_mean(tr_loss.detach()).item()
        super()._maybe_log_save_evaluate(tr_loss, *args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Write a checkpoint. If a weight is NaN or infinite or the loss has diverged, warn and write none."""
        step, first = self.state.global_step, self._first_loss
        if not is_finite(self.model):
            warn(f"step {step:,}: a weight is NaN or infinite; no checkpoint is written")
            return
        if first is not None and not self._last_loss <= DIVERGENCE_FACTOR * max(first, 1.0):
            warn(
                f"step {step:,}: the loss has diverged from {first:.4g} to {self._last_loss:.4g}; no checkpoint is written; "
                "try a lower `learning_rate`"
            )
            return
        with report_write_errors(Path(self.args.output_dir)), silence_transformers():
            super()._save_checkpoint(*args, **kwargs)
        if self.args.should_save:
            folder = Path(self.args.output_dir) / f"checkpoint-{step}"
            if self.evaluator is not None:
                self.evaluator.save(folder)
            sync_tree(folder)
            write_bytes(folder / COMPLETE, b"" if first is None else repr(first).encode())
