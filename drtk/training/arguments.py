"""Build the TrainingArguments of transformers' Trainer from drtk's configuration."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.integrations import TensorBoardCallback, get_available_reporting_integrations
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from drtk.errors import DrtkError, MissingDependency, UsageError, format_pip_command
from drtk.models.device import choose_device
from drtk.runtime.progress import warn
from drtk.training.config import TrainingConfig
from drtk.training.distributed import get_world_size
from drtk.training.preflight import check_device, check_trainer_items

CHECKPOINTS = "checkpoints"  # subfolder of the output folder


@dataclass(frozen=True)
class Schedule:
    """Number of steps and batch size of a training.

    batch: examples per process and step    steps: number of steps in total
    """

    batch: int
    steps: int
    steps_per_epoch: int


def plan_schedule(
    num_examples: int,
    config: TrainingConfig,
    *,
    unit: str = "examples",
    source: str = "training data",
    micro_batch: int | None = None,
) -> Schedule:
    """Return the training schedule for `num_examples` examples.

    unit: plural noun for the examples, for error messages, such as "pairs"    source: their file, for error messages
    micro_batch: `micro_batch_size`, if it must divide the batch size of a process
    Raises DrtkError for fewer examples than a batch, a batch size that is not a multiple of the number of processes,
    or a `micro_batch` that does not divide the batch size of a process.
    """
    if not num_examples:
        raise DrtkError(f"{source}: there are no {unit} to train on; check the file")
    batch, devices = config.batch_size, get_world_size()
    if batch % devices:
        raise DrtkError(f"`batch_size` {batch}: must be a multiple of the number of processes, {devices}")
    if num_examples < batch:
        raise DrtkError(
            f"{num_examples:,} {unit} do not fill one batch of {batch:,}; use `batch_size` {num_examples} or less"
        )
    per_epoch = num_examples // batch
    schedule = Schedule(batch // devices, config.max_steps or max(1, round(config.epochs * per_epoch)), per_epoch)
    if micro_batch and schedule.batch % micro_batch:
        raise DrtkError(
            f"`micro_batch_size` {micro_batch}: must divide the batch size of each device, {schedule.batch}"
        )
    return schedule


def parse_trainer_items(items: Sequence[str]) -> dict[str, Any]:
    """Parse KEY=VALUE strings to keyword arguments of TrainingArguments.

    Values that are JSON, True, False or None are converted; others remain strings.
    Raises UsageError for a key that TrainingArguments does not have, and the errors of `check_trainer_items`.
    """
    check_trainer_items(items)
    known = {item.name for item in fields(TrainingArguments) if item.init}
    values: dict[str, Any] = {}
    for item in items:
        key, _, value = item.partition("=")
        if key not in known:
            raise UsageError(f"`trainer` {key}: not an argument of transformers' TrainingArguments; check the spelling")
        try:
            values[key] = json.loads({"True": "true", "False": "false", "None": "null"}.get(value, value))
        except json.JSONDecodeError:
            values[key] = value
    return values


def choose_training_device(name: str) -> torch.device:
    """Return the device to train on; "auto": the GPU if there is one, else the CPU.

    Raises UsageError for an unsupported device, DrtkError if it is not available.
    """
    check_device(name)
    device = choose_device("auto")
    if name not in ("auto", "cpu", device.type):
        raise DrtkError(f"`device` {name}: not available; use auto or cpu")
    return torch.device("cpu") if name == "cpu" else device


def resolve_precision(name: str, device: torch.device) -> str:
    """Return the name of the compute dtype; for "auto": bfloat16 on a CUDA GPU that supports it, else float32."""
    if name != "auto":
        return name
    return "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"


def build_training_arguments(
    config: TrainingConfig,
    schedule: Schedule,
    folder: Path,
    *,
    seed: int,
    device: str,
    learning_rate: float | None = None,
    warmup: float | None = None,
    lr_schedule: str = "linear",
    defaults: Sequence[str] = (),
) -> TrainingArguments:
    """Return the TrainingArguments of a training.

    folder: output folder; checkpoints are written below it
    learning_rate, warmup: values to use instead of the fields of `config`; None: the fields
    lr_schedule: transformers' name of the learning-rate schedule after the warm-up (constant, linear, cosine, …)
    defaults: KEY=VALUE arguments of TrainingArguments; those in `config.trainer` take precedence
    Raises UsageError for arguments that TrainingArguments rejects, and the errors of `choose_training_device`,
    `parse_trainer_items` and `check_reporting`.
    """
    chosen, steps = choose_training_device(device), schedule.steps
    precision = resolve_precision(config.precision, chosen)
    learning_rate = config.learning_rate if learning_rate is None else learning_rate
    warmup = config.warmup if warmup is None else warmup
    warmup_steps = round(warmup * steps) if warmup < 1 else round(warmup)
    if warmup_steps >= steps:
        warn(
            f"the warm-up of {warmup_steps:,} steps is not shorter than the training of {steps:,}, which ends at learning "
            f"rate {learning_rate * steps / warmup_steps:.1e}; use `warmup` 0.1"
        )
    values: dict[str, Any] = {
        "output_dir": str(folder / CHECKPOINTS),
        "max_steps": steps,
        "per_device_train_batch_size": schedule.batch,
        "learning_rate": learning_rate,
        "warmup_steps": warmup_steps,
        "weight_decay": config.weight_decay,
        "optim": "adamw_torch_fused",
        "lr_scheduler_type": "constant_with_warmup" if lr_schedule == "constant" and warmup else lr_schedule,
        "seed": seed,
        "use_cpu": chosen.type == "cpu",
        "bf16": precision == "bfloat16",
        "fp16": precision == "float16",
        "logging_steps": config.log_steps,
        "save_strategy": "steps",
        # save at logging steps only, so that no log entry covers steps on both sides of a checkpoint
        "save_steps": math.ceil(config.save_steps / config.log_steps) * config.log_steps,
        "save_total_limit": 2,  # the newest may be incomplete or close to a NaN loss
        "dataloader_drop_last": True,
        "remove_unused_columns": False,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "report_to": [*getattr(config, "report_to", ())] or "none",
        "run_name": folder.name.removesuffix(".part"),  # the output folder is called OUT.part until it is complete
        "ddp_find_unused_parameters": False,
        "dataloader_num_workers": 2 if chosen.type == "cuda" else 0,
        "dataloader_pin_memory": chosen.type == "cuda",
    }
    values |= parse_trainer_items([*defaults, *config.trainer])
    loggers = values["report_to"]
    check_reporting([loggers] if isinstance(loggers, str) else loggers or ())
    try:
        arguments = TrainingArguments(**values)
    except (ValueError, TypeError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"`trainer`: transformers rejects the arguments ({reason}); change or omit them") from error
    if arguments.n_gpu > 1:  # no DataParallel
        unused = ", ".join(f"cuda:{index}" for index in range(1, arguments.n_gpu))
        warn(
            f"training uses cuda:0, and leaves {unused} idle; use `gpus` {arguments.n_gpu}, or CUDA_VISIBLE_DEVICES to choose one"
        )
        arguments._n_gpu = 1
    return arguments


def check_reporting(names: Sequence[str]) -> None:
    """Raise UsageError for a tracker unknown to transformers, MissingDependency for a tracker that is not installed."""
    for name in names:
        if name not in ("none", "all") and name not in INTEGRATION_TO_CALLBACK:
            raise UsageError(f"`report_to`: unknown '{name}'; choose from {', '.join(sorted(INTEGRATION_TO_CALLBACK))}")
        # transformers does not list azure_ml (beside mlflow) and flyte
        if name not in ("none", "all", "azure_ml", "flyte", *get_available_reporting_integrations()):
            raise MissingDependency(name, f"`report_to` {name}", format_pip_command(name))


class ResumableTensorBoardCallback(TensorBoardCallback):
    """TensorBoard callback that writes into `folder`. Resumed training removes the events after its checkpoint."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.tb_writer: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and self.tb_writer is None:
            last = state.global_step
            self.tb_writer = self._SummaryWriter(str(self._folder), purge_step=last + 1 if last else None)
        super().on_train_begin(args, state, control, **kwargs)
