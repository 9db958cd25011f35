"""Arguments of transformers' Trainer: what drtk decides, what it rejects, what it passes through."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainingArguments
from transformers.integrations import TensorBoardCallback
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from drtk.errors import DrtkError, MissingDependency, UsageError, pip_install
from drtk.runtime.progress import warn
from drtk.training.config import TrainingConfig
from drtk.training.distributed import world_size
from drtk.training.preflight import check_device, check_trainer_items


@dataclass(frozen=True)
class Schedule:
    """Length of a training: examples per device and step, steps, and steps per epoch."""

    batch: int
    steps: int
    steps_per_epoch: int


def plan_schedule(
    count: int, config: TrainingConfig, *, what: str = "examples", source: str = "training data"
) -> Schedule:
    """Return the schedule for `count` examples of `source`.

    Raises DrtkError if there are none, if they do not fill a batch, or if devices cannot share a batch equally.
    """
    if not count:
        raise DrtkError(f"{source}: no {what} to learn from")
    batch, devices = config.batch, world_size()
    if batch % devices:
        raise DrtkError(f"`batch` {batch} cannot be shared equally by {devices} processes")
    if count < batch:
        raise DrtkError(f"{count:,} {what} do not fill one batch of {batch:,}; use `batch` {count} or less")
    per_epoch = count // batch
    schedule = Schedule(batch // devices, config.steps or max(1, round(config.epochs * per_epoch)), per_epoch)
    micro_batch = getattr(config, "micro_batch", None)
    if micro_batch and schedule.batch % micro_batch:
        raise DrtkError(f"`micro_batch` {micro_batch}: does not divide the {schedule.batch} of a device")
    return schedule


def parse_trainer_items(items: Sequence[str]) -> dict[str, Any]:
    """Return TrainingArguments from KEY=VALUE strings; values are parsed as JSON if they are JSON.

    Raises UsageError for a key that is unknown or that drtk decides.
    """
    check_trainer_items(items)
    known = {item.name for item in fields(TrainingArguments) if item.init}
    values: dict[str, Any] = {}
    for item in items:
        key, _, value = item.partition("=")
        if key not in known:
            raise UsageError(f"`trainer`: transformers' TrainingArguments have no '{key}'")
        try:
            values[key] = json.loads({"True": "true", "False": "false", "None": "null"}.get(value, value))
        except json.JSONDecodeError:
            values[key] = value
    return values


def trains_on_gpu(device: str) -> bool:
    """Return whether `device` means a GPU. Raises UsageError for an unknown device, DrtkError if there is no GPU."""
    check_device(device)
    on_gpu = torch.cuda.is_available() and device != "cpu"
    if device == "cuda" and not on_gpu:
        raise DrtkError("`device` cuda: not available")
    return on_gpu


def resolve_precision(name: str, *, on_gpu: bool) -> str:
    """Resolve "auto": bfloat16 on a GPU that has it, float32 elsewhere."""
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
) -> TrainingArguments:
    """Return the Trainer's arguments. `batch` is that of one device; `folder` is for the checkpoints.

    schedule: of the learning rate after its warm-up, by transformers' name (constant, linear, cosine, …)
    fused: use AdamW as one kernel; report_to: loggers, by transformers' name (tensorboard, wandb)
    others: KEY=VALUE for further arguments; the last of several for one key holds

    Raises UsageError for what TrainingArguments reject, MissingDependency if a logger is not installed.
    """
    on_gpu = trains_on_gpu(device)
    precision = resolve_precision(precision, on_gpu=on_gpu)
    rising = round(warmup * steps) if warmup < 1 else round(warmup)
    if rising >= steps:
        warn(
            f"the learning rate rises for {rising:,} steps and is at {lr * steps / rising:.1e} when training ends after "
            f"{steps:,}; use `warmup` 0.1"
        )
    chosen: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": steps,
        "per_device_train_batch_size": batch,
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
        "save_total_limit": 2,  # the newest may be incomplete after a crash, or lead to a NaN loss in the next step
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
    chosen |= parse_trainer_items(others)
    loggers = chosen["report_to"]
    check_reporting([loggers] if isinstance(loggers, str) else loggers or ())
    try:
        arguments = TrainingArguments(**chosen)
    except (ValueError, TypeError, ImportError) as error:
        raise UsageError(f"`trainer`: {str(error).splitlines()[0]}") from error
    if arguments.n_gpu > 1:  # DataParallel would split the batch within one process; torchrun is for several GPUs
        arguments._n_gpu = 1
    return arguments


def make_arguments(
    config: TrainingConfig,
    schedule: Schedule,
    folder: Path,
    *,
    seed: int,
    device: str,
    lr: float | None = None,
    warmup: float | None = None,
    lr_schedule: str = "linear",
    defaults: Sequence[str] = (),
) -> TrainingArguments:
    """Return `training_arguments` for a configuration, with checkpoints below `folder`.

    lr, warmup: in place of those of the configuration; defaults: KEY=VALUE that the configuration's `trainer` overrides
    """
    return training_arguments(
        folder / "checkpoints",
        steps=schedule.steps,
        batch=schedule.batch,
        lr=config.lr if lr is None else lr,
        warmup=config.warmup if warmup is None else warmup,
        weight_decay=config.weight_decay,
        seed=seed,
        device=device,
        precision=config.precision,
        log_every=config.log_every,
        save_every=config.save_every,
        others=[*defaults, *config.trainer],
        schedule=lr_schedule,
    )


_MODULES = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",)}


def check_reporting(names: Sequence[str]) -> None:
    """Raise UsageError for a logger unknown to transformers, MissingDependency for one that is not installed."""
    for name in names:
        if name not in ("none", "all") and name not in INTEGRATION_TO_CALLBACK:
            raise UsageError(f"`report_to`: '{name}' is not one of {', '.join(sorted(INTEGRATION_TO_CALLBACK))}")
        if name in _MODULES and not any(find_spec(module) for module in _MODULES[name]):
            raise MissingDependency(name, f"`report_to` {name}", pip_install(name))


def keep_tensorboard(callback: TrainerCallback, folder: Path) -> TrainerCallback:
    """Return a callback that writes TensorBoard's files into `folder`, for one that writes them among the checkpoints."""
    return KeptTensorBoard(folder) if type(callback) is TensorBoardCallback else callback


class KeptTensorBoard(TensorBoardCallback):
    """TensorBoard files in a folder that is not deleted with the checkpoints. A resumed run removes later steps."""

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
