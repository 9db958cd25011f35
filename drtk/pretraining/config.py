"""Settings of `drtk pretrain`, and checks of the options of views, maskings and decoders."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

from drtk.config import EVALUATION, HARDWARE, option, setting
from drtk.errors import MismatchError, UsageError
from drtk.training.config import TrainingConfig

Share = Annotated[float, 0.0, 1.0]  # types of options, with their bounds
Count = Annotated[int, 1, float("inf")]
Function = TypeVar("Function", bound=Callable[..., Any])  # a view or a masking strategy


@dataclass(frozen=True)
class PretrainSettings(TrainingConfig):
    """Settings of `drtk pretrain`. The presets override these defaults with the values of the papers."""

    batch_size: int = option(2048, "Examples per optimizer step, over all devices.", at_least=1)
    epochs: float = option(8.0, "Passes over the passages.", at_least=1e-6)
    learning_rate: float = option(1e-4, "Peak learning rate.", at_least=0)
    eval_steps: int = option(1000, "Steps between evaluations.", at_least=1, panel=EVALUATION)
    patience: ClassVar[None] = None  # type: ignore[misc]
    micro_batch_size: int | None = option(
        None,
        "Examples per forward pass and device. [default: 32 on a CPU, and on a GPU with neither packing nor contrastive losses; "
        "else the whole batch, halved when out of memory]",
        at_least=1,
        panel=HARDWARE,
    )
    max_length: int = option(144, "Maximum text length in tokens, including special tokens.", at_least=5)
    held_out: int = setting(
        0, "Number of passages to hold out of training, to evaluate the losses.", at_least=0, panel=EVALUATION
    )
    compile: bool = setting(False, "Compile the encoder's layers with torch.compile.")
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2", "flash_attention_3"] = setting(
        "auto", "Attention implementation; auto: flash attention if installed and in 16 bits, else sdpa."
    )
    packed: bool = setting(
        True, "Pack texts (no padding) on a GPU in 16-bit precision, if supported and `attention` is auto."
    )
    export_steps: int = option(0, "Export the encoder to DIR/step-N every N steps; 0: only at the end.", at_least=0)
    report_to: tuple[str, ...] = setting((), "Experiment tracker, such as tensorboard or wandb; repeatable.")


@contextmanager
def prefix_errors(place: str) -> Iterator[None]:
    """Context manager that prefixes the messages of UsageError and MismatchError with `place`."""
    try:
        yield
    except (UsageError, MismatchError) as error:
        raise type(error)(f"{place}: {error}") from error


def needs_fields(*fields: str, **by_option: Mapping[str, str]) -> Callable[[Function], Function]:
    """Decorator that declares the corpus fields that a view or masking strategy needs.

    fields: always needed    by_option: {option: {value: field}}, needed only if the option has this value
    """

    def mark(function: Function) -> Function:
        function.needs = fields, by_option  # type: ignore[attr-defined]
        return function

    return mark


def list_needed_fields(function: Callable[..., Any], options: Mapping[str, Any]) -> set[str]:
    """Return the corpus fields that a view or masking strategy needs with the given options."""
    always, by_option = getattr(function, "needs", ((), {}))
    return {*always, *(values[options[key]] for key, values in by_option.items() if options.get(key) in values)}


def list_option_names(function: Callable[..., Any]) -> list[str]:
    """Return the names of the options (keyword-only parameters) of a view, masking strategy or decoder's `__init__`."""
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]


def check_options(owner: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise UsageError for an option that `function` does not have, or for a value of the wrong type or out of bounds.

    function: a view, a masking strategy, or the `__init__` of a decoder    owner: its name for error messages
    options: values by name
    """
    kinds, known = get_type_hints(function, include_extras=True), list_option_names(function)
    for key, value in options.items():
        if key not in known:
            choices = f"choose from {', '.join(known)}" if known else "remove it"
            raise UsageError(f"{owner} has no option '{key}'; {choices}")
        check_type(value, kinds[key], f"{owner}: {key}")


def check_type(value: Any, kind: Any, place: str) -> None:
    """Raise UsageError for a value that does not match a type hint.

    kind: the type hint, which may have bounds, such as Share    place: name of the value, for the error message
    """
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
    names = {float: "a number", int: "a whole number", str: "a string", bool: "true or false"}
    kinds = [inner for inner in get_args(kind) or (kind,) if inner is not type(None)]  # TOML has no null
    return " or ".join(names.get(inner) or _describe_type(inner) for inner in kinds)
