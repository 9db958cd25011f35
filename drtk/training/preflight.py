"""What can be told of a training before torch is loaded, which takes seconds, and a minute on a busy machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

from drtk.data.tables import is_of_hub
from drtk.errors import UsageError
from drtk.runtime.streams import STANDARD

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


def check_beforehand(trainer: Sequence[str], device: str, *files: str | None, kept: Sequence[str | None] = ()) -> None:
    """Look at what every training is given: items of --trainer, --device, and the files that it will read.

    kept: of them those that are read again and again, which only a file of this machine can be; they are not among `files`
    Raises UsageError for what cannot be meant, FileNotFoundError for a file that is not there. None, "-" and data sets of the
    hub are no files.
    """
    check_passed(trainer)
    check_device(device)
    for file in kept:
        if file is not None and is_of_hub(file):
            raise UsageError(f"{file}: is read again and again, so it must be a file; drtk convert makes one of it")
    for file in (*files, *kept):
        if file is not None and file != STANDARD and not is_of_hub(file):
            os.stat(file)


def check_passed(items: Sequence[str]) -> None:
    """Raise UsageError for an item that is not KEY=VALUE, or whose key an option of drtk or a promise of its own decides."""
    for item in items:
        key, separator, _ = item.partition("=")
        if not separator:
            raise UsageError(f"--trainer: '{item}' is not KEY=VALUE")
        if key in _OURS:
            raise UsageError(f"--trainer {key}: use {_OURS[key]}")
        if key in _FIXED:
            raise UsageError(f"--trainer {key}: cannot be chosen: {_FIXED[key]}")


def check_device(device: str) -> None:
    """Raise UsageError for a device that training does not take."""
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(
            f"--device {device}: training takes auto, cpu or cuda; CUDA_VISIBLE_DEVICES chooses among GPUs"
        )
