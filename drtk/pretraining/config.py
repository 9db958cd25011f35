"""Settings of `drtk pretrain`, and options of the views, maskings and decoders that a composition names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from drtk.config import option
from drtk.errors import MismatchError, UsageError

Share = Annotated[float, 0.0, 1.0]  # types of options with their bounds
Count = Annotated[int, 1, float("inf")]


@dataclass(frozen=True)
class PretrainSettings:
    """drtk pretrain; presets hold the figures of their papers."""

    batch_size: int = option(2048, "Examples in one step, over all devices together.", at_least=1)
    micro_batch_size: int | None = option(
        None,
        "Examples in memory at once on one device; by default its share of the batch, halved whenever it is out of memory.",
        at_least=1,
    )
    max_steps: int | None = option(None, "Steps to train for, in place of --epochs.", at_least=1, replaces="epochs")
    epochs: float = option(8.0, "Passes over the passages.", at_least=1e-6)
    learning_rate: float = option(1e-4, "Highest learning rate.", at_least=0)
    warmup: float = option(0.1, "Steps in which the learning rate rises; below 1, a share of all steps.", at_least=0)
    weight_decay: float = option(0.01, "Weight decay, biases and norms left out.", at_least=0)
    max_length: int = option(
        144, "Longest text of a slot that names no length, in tokens, special ones too.", at_least=5
    )
    held_out: int = option(
        0,
        "Passages kept out of training, on which the losses are measured; whole documents of them where neighbors are read.",
        at_least=0,
    )
    eval_steps: int = option(1000, "Steps between measurements on what was held out, and of a probe.", at_least=1)
    precision: Literal["auto", "float32", "float16", "bfloat16"] = option(
        "auto", "Numbers of the forward pass; auto is bfloat16 on a GPU that has it, float32 elsewhere."
    )
    gradient_checkpointing: bool = option(False, "Compute activations twice and keep fewer of them in memory.")
    compile: bool = option(False, "Compile the encoder's layers with torch.compile.")
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2", "flash_attention_3"] = option(
        "auto",
        "Implementation of attention, by transformers' name; auto is flash attention, which skips padding, on a GPU with "
        "16-bit numbers where it is installed, sdpa elsewhere.",
    )
    fused: bool = option(True, "AdamW as one kernel, where torch has it for the device (CPU, CUDA).")
    log_steps: int = option(10, "Steps between entries of log.jsonl.", at_least=1)
    export_steps: int = option(0, "Steps between encoders kept as OUT/step-N; 0: the last one alone.", at_least=0)
    report_to: tuple[str, ...] = option(
        (), "Whom to tell what log.jsonl holds: tensorboard (files in OUT/tensorboard), wandb, …; repeatable."
    )
    save_steps: int = option(500, "Steps between checkpoints that --resume can go on from.", at_least=1)
    trainer: tuple[str, ...] = option(
        (), "KEY=VALUE for an argument of transformers' TrainingArguments without an option here; repeatable."
    )


@contextmanager
def prefix_errors(place: str) -> Iterator[None]:
    """Begin the message of a UsageError or MismatchError with `place`."""
    try:
        yield
    except (UsageError, MismatchError) as error:
        raise type(error)(f"{place}: {error}") from error


def list_option_names(function: Callable[..., Any]) -> list[str]:
    """Return the options of a view, masking or decoder: its keyword-only parameters."""
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]


def check_options(what: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise UsageError, beginning with `what`, for options that `function` lacks, or of another type."""
    kinds, known = get_type_hints(function, include_extras=True), list_option_names(function)
    for key, value in options.items():
        if key not in known:
            choices = f"choose from {', '.join(known)}" if known else "it has none"
            raise UsageError(f"{what} has no option '{key}'; {choices}")
        check_type(value, kinds[key], f"{what}: {key}")


def check_type(value: Any, kind: Any, place: str) -> None:
    """Raise UsageError, beginning with `place`, for a value that does not fit a type hint."""
    if not _is_of_type(value, kind):
        raise UsageError(f"{place} = {value!r} is not {_describe_type(kind)}")


def _is_of_type(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is Annotated:
        plain, low, high = get_args(kind)
        return _is_of_type(value, plain) and low <= value <= high
    if get_origin(kind) is dict:
        return isinstance(value, dict)
    if get_args(kind):  # a union
        return any(_is_of_type(value, inner) for inner in get_args(kind))
    if isinstance(value, float) and not isfinite(value):
        return False
    return isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))


def _describe_type(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is Annotated:
        plain, low, high = get_args(kind)
        name = _describe_type(plain)
        return f"{name} from {low} to {high}" if high < float("inf") else f"{name} of {low} or more"
    names = {float: "a number", int: "a whole number", type(None): "nothing", str: "a string", bool: "true or false"}
    return " or ".join(names.get(inner) or _describe_type(inner) for inner in get_args(kind) or (kind,))
