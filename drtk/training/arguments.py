"""The arguments of transformers' Trainer: what drtk decides, what it refuses, what is passed through."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import TrainerCallback, TrainingArguments
from transformers.integrations import TensorBoardCallback
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from drtk.errors import DrtkError, MissingDependency, UsageError, pip_install
from drtk.runtime.progress import warn
from drtk.training.best_checkpoint import KEPT
from drtk.training.distributed import world_size
from drtk.training.preflight import check_device, check_passed


@dataclass(frozen=True)
class Plan:
    """How long training lasts: examples per device and step, steps, and steps in an epoch."""

    batch: int
    steps: int
    steps_per_epoch: int


def planned(
    count: int, *, batch: int, epochs: float, steps: int | None, what: str = "examples", source: str = "training data"
) -> Plan:
    """The plan for so many examples of `source`.

    Raises DrtkError where there are none, where they fill no batch, or devices cannot share one.
    """
    if not count:
        raise DrtkError(f"{source}: no {what} to learn from")
    devices = world_size()
    if batch % devices:
        raise DrtkError(f"--batch {batch} cannot be shared by {devices} processes")
    if count < batch:
        raise DrtkError(f"{count:,} {what} do not fill one batch of {batch:,}; --batch {count} or less would do")
    steps_per_epoch = count // batch
    return Plan(batch // devices, steps or max(1, round(epochs * steps_per_epoch)), steps_per_epoch)


def passed_through(items: Sequence[str]) -> dict[str, Any]:
    """TrainingArguments from KEY=VALUE strings; values are read as JSON where they are JSON.

    Raises UsageError for a key that is unknown, or that an option of drtk or a promise of its own decides.
    """
    known = {item.name for item in fields(TrainingArguments) if item.init}
    chosen: dict[str, Any] = {}
    for item in items:
        check_passed([item])
        key, _, value = item.partition("=")
        if key not in known:
            raise UsageError(f"--trainer: transformers' TrainingArguments have no '{key}'")
        try:
            chosen[key] = json.loads({"True": "true", "False": "false", "None": "null"}.get(value, value))
        except json.JSONDecodeError:
            chosen[key] = value
    return chosen


def trains_on_gpu(device: str) -> bool:
    """Whether `--device` means a GPU. Raises UsageError for what training does not take, DrtkError where there is no GPU."""
    check_device(device)
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
        "run_name": folder.parent.name.removesuffix(".part"),  # OUT is built as OUT.part
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


class TrainingSettings(Protocol):
    """What the settings of every fine-tuning have."""

    @property
    def lr(self) -> float: ...
    @property
    def warmup(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def precision(self) -> str: ...
    @property
    def log_every(self) -> int: ...
    @property
    def save_every(self) -> int: ...
    @property
    def trainer(self) -> Sequence[str]: ...


def arguments_of(
    settings: TrainingSettings, folder: Path, *, plan: Plan, seed: int, device: str, **others: Any
) -> TrainingArguments:
    """`training_arguments` by the settings of a command and the plan made for its data; `others` as there."""
    return training_arguments(
        folder,
        steps=plan.steps,
        batch=plan.batch,
        lr=settings.lr,
        warmup=settings.warmup,
        weight_decay=settings.weight_decay,
        seed=seed,
        device=device,
        precision=settings.precision,
        log_every=settings.log_every,
        save_every=settings.save_every,
        others=settings.trainer,
        **others,
    )


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
