"""The one subclass of transformers.Trainer, and the arguments it is given."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import SequentialSampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from drtk.errors import DrtkError, UsageError
from drtk.io.progress import Progress, detail, warn
from drtk.io.progress import log as say
from drtk.models.checkpoint import quiet_transformers, writing_weights
from drtk.training.distributed import mean_of_processes, rank, wait_for_all
from drtk.training.reporting import beside_the_log, check_reporting
from drtk.training.sampling import seed_of_step
from drtk.training.soundness import Ruined, exploded, finite, first_loss, short_of_memory

Objective = Callable[[nn.Module, dict[str, Any]], dict[str, Tensor]]
WEIGHTS, COMPLETE = "model.safetensors", "complete"
KEPT = 2  # checkpoints: the newest may be half written by a crash, or ruined, which only the step after it shows


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
        self.relief = "--gradient-checkpointing, a smaller --batch or more devices"
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
            with open(self._log_path, "a", encoding="utf-8") as file:
                file.write(json.dumps(entry | {"epoch": epoch}) + "\n")

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
            (folder / COMPLETE).write_text("" if self._first_loss is None else repr(self._first_loss), encoding="utf-8")


@contextmanager
def within_memory(device: torch.device | str, advice: str) -> Iterator[None]:
    """Tell in one line that memory was too small, and what may help."""
    try:
        yield
    except RuntimeError as error:  # of which torch's own kind is one
        if short_of_memory(error):
            raise DrtkError(f"{device}: out of memory; {advice} may help") from error
        raise


class MeasureNowAndThen(TrainerCallback):
    """Asks for a measurement every so many steps, and after the last one."""

    def __init__(self, every: int) -> None:
        self._every = every

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = state.global_step
        control.should_evaluate = step % self._every == 0 or step == state.max_steps

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_evaluate = False  # the Trainer looks a second time after the last step


class ShowProgress(TrainerCallback):
    """A bar on a terminal, a plain line every 30 s elsewhere; the losses with -v."""

    def __init__(self, what: str, steps: int) -> None:
        self._what, self._steps = what, steps
        self._progress: Progress | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self._progress = Progress(self._what, total=self._steps, unit="steps", initial=state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_log |= state.global_step == state.max_steps  # the last entry may be of fewer steps
        if self._progress is not None:
            self._progress.add()

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float] | None = None, **_: Any) -> None:
        if self._progress is not None and logs and "loss" in logs:
            detail(f"{self._what}: step {state.global_step:,}, loss {logs['loss']:.4f}")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._progress is not None:
            self._progress.close()


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
        if entry["step"] <= step:
            kept.append(line + "\n")
    log.write_text("".join(kept), encoding="utf-8")


_OURS = {  # arguments that options of drtk decide
    "output_dir": "-o",
    "max_steps": "--steps",
    "num_train_epochs": "--epochs",
    "learning_rate": "--lr",
    "warmup_steps": "--warmup",
    "warmup_ratio": "--warmup",
    "weight_decay": "--weight-decay",
    "per_device_train_batch_size": "--batch",
    "seed": "--seed",
    "bf16": "--precision",
    "fp16": "--precision",
    "use_cpu": "--device",
    "gradient_checkpointing": "--gradient-checkpointing",
    "activation_checkpointing": "--gradient-checkpointing",
    "logging_steps": "--log-every",
    "save_steps": "--save-every",
    "resume_from_checkpoint": "--resume",
}
_FIXED = {  # arguments that would break what drtk promises
    "gradient_accumulation_steps": "the loss needs the whole batch at once",
    "auto_find_batch_size": "the loss depends on the batch",
    "train_sampling_strategy": "drtk orders the examples",
    "remove_unused_columns": "drtk makes the batches",
    "dataloader_drop_last": "drtk makes the batches",
    "save_strategy": "--resume needs checkpoints by step",
    "save_only_model": "--resume needs the optimizer's state",
    "save_total_limit": "drtk keeps two, and none in the end",
    "load_best_model_at_end": "drtk decides itself which weights are the result",
    "eval_strategy": "drtk measures itself, where a command has --eval-every",
    "eval_on_start": "drtk measures itself, where a command has --eval-every",
    "label_smoothing_factor": "the loss is drtk's; see --label-smoothing, where a command has it",
    "ignore_data_skip": "--resume would see other examples",
    "full_determinism": "draws are functions of the step already",
    "logging_nan_inf_filter": "a loss that is not a number ends training",
    "push_to_hub": "drtk writes to this machine alone",
}


def passed_through(items: Sequence[str]) -> dict[str, Any]:
    """TrainingArguments from KEY=VALUE strings; values are read as JSON where they are JSON.

    Raises UsageError for a key that is unknown, or that an option of drtk or a promise of its own decides.
    """
    known = {item.name for item in fields(TrainingArguments) if item.init}
    chosen: dict[str, Any] = {}
    for item in items:
        key, separator, value = item.partition("=")
        if not separator:
            raise UsageError(f"--trainer: '{item}' is not KEY=VALUE")
        if key in _OURS:
            raise UsageError(f"--trainer {key}: use {_OURS[key]}")
        if key in _FIXED:
            raise UsageError(f"--trainer {key}: cannot be chosen: {_FIXED[key]}")
        if key not in known:
            raise UsageError(f"--trainer: transformers' TrainingArguments have no '{key}'")
        try:
            chosen[key] = json.loads({"True": "true", "False": "false", "None": "null"}.get(value, value))
        except json.JSONDecodeError:
            chosen[key] = value
    return chosen


def trains_on_gpu(device: str) -> bool:
    """Whether `--device` means a GPU. Raises UsageError for what training does not take, DrtkError where there is no GPU."""
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(
            f"--device {device}: training takes auto, cpu or cuda; CUDA_VISIBLE_DEVICES chooses among GPUs"
        )
    on_gpu = torch.cuda.is_available() and device != "cpu"
    if device == "cuda" and not on_gpu:
        raise DrtkError("--device cuda: not available")
    return on_gpu


def precision_of(name: str, *, on_gpu: bool) -> str:
    """The numbers of `--precision`; "auto" is bfloat16 on a GPU that has it, float32 elsewhere."""
    if name != "auto":
        return name
    return "bfloat16" if on_gpu and torch.cuda.is_bf16_supported() else "float32"


def training_arguments(
    folder: Path,
    *,
    steps: int,
    batch: int,
    lr: float,
    warmup: float,
    weight_decay: float,
    seed: int,
    device: str,
    precision: str,
    log_every: int,
    save_every: int,
    others: Sequence[str],
    schedule: str = "linear",
    fused: bool = True,
    report_to: Sequence[str] = (),
    parts: int = 1,
) -> TrainingArguments:
    """The Trainer's arguments; `batch` is that of one device, `folder` takes the checkpoints.

    schedule: of the learning rate after its warm-up, by transformers' name (constant, linear, cosine, …)
    fused: AdamW as one kernel; report_to: who is told, by transformers' name (tensorboard, wandb)
    parts: so many equal parts of the batch go through the model one after the other; for losses that are means over it

    Raises UsageError for what TrainingArguments refuse, MissingDependency where whom to tell is not installed.
    """
    on_gpu = trains_on_gpu(device)
    precision = precision_of(precision, on_gpu=on_gpu)
    rising = round(warmup * steps) if warmup < 1 else round(warmup)
    if rising >= steps:
        warn(
            f"the learning rate would rise for {rising:,} steps; after {steps:,} it is at {lr * steps / rising:.1e}: --warmup 0.1"
        )
    chosen: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": steps,
        "per_device_train_batch_size": batch // parts,
        "gradient_accumulation_steps": parts,
        "learning_rate": lr,
        "warmup_steps": rising,
        "weight_decay": weight_decay,
        "optim": "adamw_torch_fused" if fused else "adamw_torch",
        "lr_scheduler_type": "constant_with_warmup" if schedule == "constant" and warmup else schedule,
        "seed": seed,
        "use_cpu": not on_gpu,
        "bf16": precision == "bfloat16",
        "fp16": precision == "float16",
        "logging_steps": log_every,
        "save_strategy": "steps",
        "save_steps": math.ceil(save_every / log_every) * log_every,  # so that no entry of the log spans a resumption
        "save_total_limit": KEPT,
        "dataloader_drop_last": True,
        "remove_unused_columns": False,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "report_to": [*report_to] or "none",
        "run_name": folder.parent.name,
        "ddp_find_unused_parameters": False,
        "dataloader_num_workers": 2 if on_gpu else 0,
        "dataloader_pin_memory": on_gpu,
    }
    chosen |= passed_through(others)
    named = chosen["report_to"]
    check_reporting([named] if isinstance(named, str) else named or ())
    try:
        arguments = TrainingArguments(**chosen)
    except (ValueError, TypeError, ImportError) as error:
        raise UsageError(f"--trainer: {str(error).splitlines()[0]}") from error
    if arguments.n_gpu > 1:  # DataParallel would cut the batch apart within one process; torchrun is the way to several
        arguments._n_gpu = 1
    return arguments


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
