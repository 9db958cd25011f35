"""Checks before training that do not import torch, because importing it takes seconds."""

from __future__ import annotations

import os
from collections.abc import Sequence

from drtk.data.tables import is_hub_dataset
from drtk.errors import UsageError
from drtk.runtime.streams import STANDARD

_FIELDS = {  # names in TrainingArguments -> fields of TrainingConfig or options of all commands
    "output_dir": "output",
    "max_steps": "max_steps",
    "num_train_epochs": "epochs",
    "learning_rate": "learning_rate",
    "warmup_steps": "warmup",
    "warmup_ratio": "warmup",
    "weight_decay": "weight_decay",
    "per_device_train_batch_size": "batch_size",
    "seed": "seed",
    "bf16": "precision",
    "fp16": "precision",
    "use_cpu": "device",
    "gradient_checkpointing": "gradient_checkpointing",
    "activation_checkpointing": "gradient_checkpointing",
    "logging_steps": "log_steps",
    "save_steps": "save_steps",
    "resume_from_checkpoint": "resume",
}
_FIXED = {  # TrainingArguments that would break resuming, the loss or model selection, and the reason
    "gradient_accumulation_steps": "the loss needs the whole batch at once",
    "auto_find_batch_size": "the loss depends on the batch",
    "train_sampling_strategy": "drtk orders the examples",
    "remove_unused_columns": "drtk builds the batches",
    "dataloader_drop_last": "drtk builds the batches",
    "save_strategy": "resuming needs checkpoints by step",
    "save_only_model": "resuming needs the optimizer's state",
    "save_total_limit": "drtk keeps two checkpoints and deletes them at the end",
    "load_best_model_at_end": "drtk selects the best weights itself",
    "eval_strategy": "drtk runs the evaluations; see `eval_steps`",
    "eval_on_start": "drtk runs the evaluations; see `eval_steps`",
    "label_smoothing_factor": "drtk computes the loss; see `label_smoothing`",
    "ignore_data_skip": "resuming would see other examples",
    "full_determinism": "random numbers depend on the step only",
    "logging_nan_inf_filter": "a NaN loss ends training",
    "push_to_hub": "drtk writes to this machine only",
}


def check_training_inputs(
    trainer: Sequence[str], device: str, *files: str | None, local_files: Sequence[str | None] = ()
) -> None:
    """Check the `trainer` arguments, the device and the input files.

    files: input files; None, "-" and datasets of the hub are not checked
    local_files: input files that must be local, because they are read repeatedly
    Raises UsageError for an invalid value, FileNotFoundError for a missing file.
    """
    check_trainer_items(trainer)
    check_device(device)
    for file in local_files:
        if file is not None and is_hub_dataset(file):
            raise UsageError(f"{file}: must be a local file (read repeatedly); write one with `drtk convert`")
    for file in (*files, *local_files):
        if file is not None and file != STANDARD and not is_hub_dataset(file):
            os.stat(file)


def check_trainer_items(items: Sequence[str]) -> None:
    """Raise UsageError for a `trainer` argument that is not KEY=VALUE, or that drtk sets itself or does not allow."""
    for item in items:
        key, separator, _ = item.partition("=")
        if not separator:
            raise UsageError(f"`trainer`: expected KEY=VALUE, got '{item}'")
        if key in _FIELDS:
            raise UsageError(f"`trainer` {key}: is set by drtk; use `{_FIELDS[key]}` instead")
        if key in _FIXED:
            raise UsageError(f"`trainer` {key}: cannot be set ({_FIXED[key]})")


def check_device(device: str) -> None:
    """Raise UsageError for a device that training does not support."""
    if device not in ("auto", "cpu", "cuda", "mps"):
        raise UsageError(f"`device` {device}: use auto, cpu, cuda or mps; select GPUs with CUDA_VISIBLE_DEVICES")
