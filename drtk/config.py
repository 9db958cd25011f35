"""Declare options once, as fields of frozen dataclasses."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import Field, asdict, dataclass, field, fields
from difflib import get_close_matches
from importlib import resources
from math import isnan
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from unicodedata import category

from drtk.errors import DrtkError, UsageError

Settings = TypeVar("Settings")

ScoringUnit = Literal["passage", "source"]  # the unit that is scored

# Panels of --help, in their order.
PANELS = INPUT, METHOD, TRAINING, SEARCH, GENERATION, EVALUATION, HARDWARE, CONTROL = (
    "Input and output",
    "Method",
    "Training",
    "Search",
    "Generation",
    "Evaluation during training",
    "Hardware",
    "Run control",
)


@dataclass(frozen=True, slots=True)
class NoEffect:
    """Rule that an option has no effect if each field in `when` has one of the values that `when` lists for it.

    reason: the error message after the option, for example "requires --aux diffcse"
    """

    reason: str
    when: Mapping[str, tuple[Any, ...]]


MAX_INTEGER = (1 << 63) - 1  # largest that JSON writers, numpy and itertools accept


def option(
    default: Any,
    help: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    flag: str | None = None,
    replaces: str | None = None,
    no_effect: tuple[NoEffect, ...] = (),
    one_word: bool = False,
    advanced: bool = False,
    panel: str = "",
    metavar: str = "",
) -> Any:
    """Declare a dataclass field that is also a command-line option.

    at_least, at_most: inclusive bounds of a number
    flag: name of the option, by default made from the name of the field
    advanced: the field can only be set by a preset or --set (see `setting`)
    panel: panel of the option in --help, by default that of the settings class
    metavar: placeholder of the value in --help, by default made from the type
    replaces: field that sets the same quantity, as epochs and max_steps do; giving one discards the preset's other value
    no_effect: rules that make giving the option an error; a preset may still set the field
    one_word: reject an empty string, and one with white space or control characters
    """
    metadata = {
        "help": help,
        "at_least": at_least,
        "at_most": at_most,
        "flag": flag,
        "replaces": replaces,
        "no_effect": no_effect,
        "one_word": one_word,
        "advanced": advanced,
        "panel": panel,
        "metavar": metavar,
    }
    return field(default=default, metadata=metadata)


def setting(default: Any, help: str, **declaration: Any) -> Any:
    """Declare a dataclass field that can only be set by a preset or --set NAME=VALUE."""
    return option(default, help, advanced=True, **declaration)


def redeclare(*names: str, **metadata: Any) -> Callable[[type[Settings]], type[Settings]]:
    """Return a class decorator that overrides declarations of the inherited fields `names`, such as advanced=True."""

    def decorate(settings: type[Settings]) -> type[Settings]:
        declared: dict[str, Field[Any]] = settings.__dataclass_fields__  # type: ignore[attr-defined]
        for name in names:
            declared[name] = copy(declared[name])
            declared[name].metadata = MappingProxyType({**declared[name].metadata, **metadata})
        return settings

    return decorate


def merge_settings(
    settings_class: type[Settings],
    preset: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    preset_name: str = "preset",
    other_options: Mapping[str, Any] | None = None,
) -> Settings:
    """Return the settings object: options override the preset, which overrides the defaults.

    given: values of options; None means that the option was not given
    other_options: values of the command's other options, which `no_effect` rules may refer to
    Raises UsageError for an unknown name, a value of a wrong type or out of bounds, two options for the same
    quantity, and an option without effect.
    """
    declared = {item.name: item for item in fields(settings_class)}  # type: ignore[arg-type]
    unknown = [name for name in preset if name not in declared]
    if unknown:
        raise UsageError(f"{preset_name}: unknown setting '{unknown[0]}'; choose from {', '.join(declared)}")
    chosen = {name: value for name, value in given.items() if value is not None}
    values = dict(preset)
    for name, item in declared.items():
        if (other := item.metadata.get("replaces")) is not None:
            pair = {name, other}
            for place, names in (("", chosen), (f"{preset_name}: ", preset)):
                if pair <= names.keys():
                    raise UsageError(
                        f"{place}{get_flag(item)} and {get_flag(declared[other])} cannot be combined; give one"
                    )
            if pair & chosen.keys():
                values = {key: value for key, value in values.items() if key not in pair}
    values.update(chosen)
    hints = get_type_hints(settings_class)
    for name, value in values.items():
        try:
            values[name] = _check_value(value, strip_optional(hints[name]), declared[name])
        except UsageError as error:
            raise error if name in chosen else UsageError(f"{preset_name}: {error}") from None
    merged = settings_class(**values)
    check_effects(merged, [name for name, value in chosen.items() if value is not False], other_options)
    return merged


def check_effects(
    settings: Any, names: Iterable[str] | None = None, other_options: Mapping[str, Any] | None = None
) -> None:
    """Raise UsageError for a field that has no effect.

    names: fields to check, by default all that differ from their default
    other_options: values of the command's other options, which `no_effect` rules may refer to
    """
    declared = {item.name: item for item in fields(settings)}
    if names is None:
        names = list_changed_fields(settings)
    known = {**(other_options or {}), **{name: getattr(settings, name) for name in declared}}
    for name in names:
        for rule in declared[name].metadata.get("no_effect", ()):
            if all(key in known and known[key] in idle for key, idle in rule.when.items()):
                raise UsageError(f"{get_flag(declared[name])} {rule.reason}")


def get_flag(item: Any) -> str:
    """Return the option that sets a field: "--max-length", or "--set NAME" for an advanced field."""
    if item.metadata.get("advanced"):
        return f"--set {item.name}"
    return item.metadata.get("flag") or "--" + item.name.replace("_", "-")


def _check_value(value: Any, kind: Any, item: Any) -> Any:
    if value is None:
        return value
    if get_origin(kind) is tuple:
        if not isinstance(value, (list, tuple)):
            raise UsageError(f"{get_flag(item)}: expected a list, got {value!r}")
        return tuple(_check_item(entry, get_args(kind)[0], item) for entry in value)
    return _check_item(value, kind, item)


def _check_item(value: Any, kind: Any, item: Any) -> Any:
    flag, low, high = get_flag(item), item.metadata.get("at_least"), item.metadata.get("at_most")
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise UsageError(f"{flag}: '{value}' is not one of {', '.join(map(str, get_args(kind)))}")
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, get_origin(kind) or kind) or (isinstance(value, bool) and kind is not bool):
        raise UsageError(f"{flag}: expected {kind.__name__}, got {value!r}")
    check_integer(flag, value)
    if isinstance(value, float) and isnan(value):
        raise UsageError(f"{flag}: must be a number, is {value}")
    if low is not None and value < low:
        raise UsageError(f"{flag}: must be at least {low}, is {value}")
    if high is not None and value > high:
        raise UsageError(f"{flag}: must be at most {high}, is {value}")
    if item.metadata.get("one_word") and (value.split() != [value] or any(category(char) == "Cc" for char in value)):
        raise UsageError(f"{flag}: {value!r} must be one word")
    return value


def check_values(settings: Any) -> None:
    """Raise UsageError if a field has a value of a wrong type or out of bounds."""
    hints = get_type_hints(type(settings))
    for item in fields(settings):
        _check_value(getattr(settings, item.name), strip_optional(hints[item.name]), item)


def check_integer(flag: str, value: Any) -> None:
    """Raise UsageError for an integer that does not fit into 64 bits."""
    if isinstance(value, int) and not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise UsageError(f"{flag}: must fit into 64 bits, is {value}")


def strip_optional(kind: Any) -> Any:
    """Return a type without `| None`; for a union of several other types, the first of them."""
    if get_origin(kind) is Union or type(kind).__name__ == "UnionType":
        return next(part for part in get_args(kind) if part is not type(None))
    return kind


def list_changed_fields(settings: Any) -> list[str]:
    """Return the names of the fields that differ from their default."""
    return [item.name for item in fields(settings) if getattr(settings, item.name) != item.default]


def require_defaults(
    settings: Any, reason: str, *, names: Iterable[str] | None = None, besides: Iterable[str] = ()
) -> None:
    """Raise UsageError if one of the fields `names` (None: all fields except `besides`) differs from its default.

    reason: the error message after the field, for example "requires an index as a source"
    """
    checked = {item.name for item in fields(settings)} - {*besides} if names is None else {*names}
    for name in list_changed_fields(settings):
        if name in checked:
            raise UsageError(f"`{name}` {reason}")


def to_dict(settings: Any) -> dict[str, Any]:
    """Return the values of a settings object as plain data, as `meta.json` stores them."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()}


@dataclass(frozen=True, slots=True)
class Preset:
    """A preset: a TOML file with settings for one command.

    text: content of the file; content: the parsed TOML; settings: its table `settings`
    """

    name: str
    command: str
    summary: str
    settings: dict[str, Any]
    text: str
    content: dict[str, Any]

    def check_keys(self) -> None:
        """Raise UsageError for a key other than command, summary and settings. Only presets of `pretrain` have others."""
        for key in self.content:
            if key not in ("command", "summary", "settings"):
                raise UsageError(f"{self.name}: unknown key '{key}'; put settings under [settings]")


def list_preset_names() -> list[str]:
    """Return the sorted names of the presets that come with drtk."""
    folder = resources.files("drtk") / "presets"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def load_preset(name: str) -> Preset:
    """Load a preset that comes with drtk by its name, or a user's preset by the path of its .toml file.

    Raises UsageError for an unknown name, DrtkError for a file that is missing, not UTF-8 or not TOML, and for an
    invalid `command` or `settings`.
    """
    if name.endswith(".toml"):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except OSError as error:
            raise DrtkError(f"{name}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise DrtkError(f"{name}: not UTF-8; save the preset as UTF-8") from error
    elif name in list_preset_names():
        text = (resources.files("drtk") / "presets" / f"{name}.toml").read_text(encoding="utf-8")
    else:
        near = get_close_matches(name, list_preset_names(), n=3)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(f"unknown preset '{name}'; {meant}run `drtk presets` for a list, or give a .toml file")
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DrtkError(f"{name}: not TOML ({error}); correct the file") from error
    if not isinstance(content.get("command"), str):
        raise DrtkError(f'{name}: has no key "command" with a string; set it, for example: command = "train-retriever"')
    settings = content.get("settings", {})
    if not isinstance(settings, dict):
        raise DrtkError(f"{name}: 'settings' is not a table; put settings under [settings]")
    command, summary = content["command"], str(content.get("summary", ""))
    return Preset(name, command, summary, settings, text, content)
