"""Declare options once, as fields of frozen dataclasses."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from difflib import get_close_matches
from importlib import resources
from math import isnan
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from unicodedata import category

from drtk.errors import DrtkError, UsageError

Settings = TypeVar("Settings")

By = Literal["passage", "source"]  # what is scored


@dataclass(frozen=True, slots=True)
class Idle:
    """When a knob does nothing: where each knob, or other option of the command, of `when` has one of its values.

    told: what the knob is for
    """

    told: str
    when: Mapping[str, tuple[Any, ...]]


MAX_INTEGER = (1 << 63) - 1  # largest that JSON writers, numpy and itertools accept


def knob(
    default: Any,
    help: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    flag: str | None = None,
    instead_of: str | None = None,
    idle: tuple[Idle, ...] = (),
    one_word: bool = False,
) -> Any:
    """A dataclass field that is also an option: default, help, bounds, and (where it differs from the name) its flag.

    instead_of: the knob that says the same in another way: one of the two is given, and takes a preset's other away
    idle: when it does nothing, so that whoever gives it is mistaken; a preset may hold figures of what an option adds
    one_word: reject a text that is empty or contains white space or control characters
    """
    metadata = {
        "help": help,
        "at_least": at_least,
        "at_most": at_most,
        "flag": flag,
        "instead_of": instead_of,
        "idle": idle,
        "one_word": one_word,
    }
    return field(default=default, metadata=metadata)


def merge(
    settings: type[Settings],
    preset: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    preset_name: str = "preset",
    beside: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings from default < preset < option; None in `given` means "not given".

    beside: the command's other options, by which a knob may be idle; one that is not among them makes none so
    Raises UsageError for a name the class does not declare, a value of another type, one out of its bounds, two values of
    which one stands instead of the other, or an option that does nothing beside the others.
    """
    declared = {item.name: item for item in fields(settings)}  # type: ignore[arg-type]
    unknown = [name for name in preset if name not in declared]
    if unknown:
        raise UsageError(f"{preset_name}: unknown setting '{unknown[0]}'; choose from {', '.join(declared)}")
    chosen = {name: value for name, value in given.items() if value is not None}
    values = dict(preset)
    for name, item in declared.items():
        if (other := item.metadata.get("instead_of")) is not None:
            pair = {name, other}
            for place, held in (("", chosen), (f"{preset_name}: ", preset)):
                if pair <= held.keys():
                    raise UsageError(
                        f"{place}{_flag(name, item.metadata)} and {_flag(other, declared[other].metadata)}: choose one"
                    )
            if pair & chosen.keys():
                values = {key: value for key, value in values.items() if key not in pair}
    values.update(chosen)
    hints = get_type_hints(settings)
    for name, value in values.items():
        try:
            values[name] = _checked(name, value, hints[name], declared[name].metadata)
        except UsageError as error:
            raise error if name in chosen else UsageError(f"{preset_name}: {error}") from None
    made = settings(**values)
    known = {**(beside or {}), **{name: getattr(made, name) for name in declared}}
    for name, value in chosen.items():
        for idle in declared[name].metadata.get("idle", ()):
            if value is not False and all(other in known and known[other] in held for other, held in idle.when.items()):
                raise UsageError(f"{_flag(name, declared[name].metadata)} {idle.told}")
    return made


def _flag(name: str, metadata: Mapping[str, Any]) -> str:
    return metadata.get("flag") or "--" + name.replace("_", "-")


def _checked(name: str, value: Any, kind: Any, metadata: Mapping[str, Any]) -> Any:
    flag = _flag(name, metadata)
    if value is None:
        return value
    plain = plain_type(kind)
    if get_origin(plain) is tuple:
        if not isinstance(value, (list, tuple)):
            raise UsageError(f"{flag}: expected a list, found {value!r}")
        return tuple(_item(flag, item, get_args(plain)[0], metadata) for item in value)
    return _item(flag, value, plain, metadata)


def _item(flag: str, value: Any, plain: Any, metadata: Mapping[str, Any]) -> Any:
    if get_origin(plain) is Literal:
        if value not in get_args(plain):
            raise UsageError(f"{flag}: '{value}' is not one of {', '.join(map(str, get_args(plain)))}")
        return value
    if plain is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, get_origin(plain) or plain) or (isinstance(value, bool) and plain is not bool):
        raise UsageError(f"{flag}: expected {plain.__name__}, found {value!r}")
    check_integer(flag, value)
    low, high = metadata.get("at_least"), metadata.get("at_most")
    if isinstance(value, float) and isnan(value):
        raise UsageError(f"{flag}: is not a number")
    if low is not None and value < low:
        raise UsageError(f"{flag}: must be at least {low}, is {value}")
    if high is not None and value > high:
        raise UsageError(f"{flag}: must be at most {high}, is {value}")
    if metadata.get("one_word"):
        check_word(flag, value)
    return value


def check_word(flag: str, value: str) -> None:
    """Raise UsageError for a value that is empty or contains white space or control characters: runs have columns."""
    if value.split() != [value] or any(category(character) == "Cc" for character in value):
        raise UsageError(f"{flag}: {value!r} must be one word")


def check_integer(flag: str, value: Any) -> None:
    """Raise UsageError for an integer that does not fit into 64 bits."""
    if isinstance(value, int) and not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise UsageError(f"{flag}: must be below 2^63, is {value}")


def plain_type(kind: Any) -> Any:
    """The type of a knob without `| None`."""
    if get_origin(kind) is Union or type(kind).__name__ == "UnionType":
        return next(part for part in get_args(kind) if part is not type(None))
    return kind


def default_of(item: Any) -> Any:
    """The default of a dataclass field."""
    return None if item.default is MISSING else item.default


def to_dict(settings: Any) -> dict[str, Any]:
    """Plain values of a settings object, as `meta.json` stores them."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()}


@dataclass(frozen=True, slots=True)
class Preset:
    """A published recipe: the command it is for, one line about it, its settings, its file's text, and all it holds."""

    name: str
    command: str
    summary: str
    settings: dict[str, Any]
    text: str
    content: dict[str, Any] = field(default_factory=dict)

    def check_flat(self) -> None:
        """Raise UsageError for a key outside [settings], which is read of no preset but those that say what is learnt."""
        for key in self.content:
            if key not in ("command", "summary", "settings"):
                raise UsageError(f"{self.name}: '{key}' is not read where it stands; settings go under [settings]")


def preset_names() -> list[str]:
    """Names of the shipped presets, sorted."""
    folder = resources.files("drtk") / "presets"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def load_preset(name: str) -> Preset:
    """A shipped preset by name, or a TOML file of the user's by path.

    Raises UsageError for an unknown name, DrtkError for a file that is not TOML, lacks `command` or has no table of settings.
    """
    if name.endswith(".toml"):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except OSError as error:
            raise DrtkError(f"{name}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise DrtkError(f"{name}: not UTF-8") from error
    elif name in preset_names():
        text = (resources.files("drtk") / "presets" / f"{name}.toml").read_text(encoding="utf-8")
    else:
        near = get_close_matches(name, preset_names(), n=3)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(f"unknown preset '{name}'; {meant}drtk presets lists them; or name a .toml file")
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DrtkError(f"{name}: not TOML: {error}") from error
    if not isinstance(content.get("command"), str):
        raise DrtkError(f'{name}: a preset names its command, for example: command = "train-retriever"')
    settings = content.get("settings", {})
    if not isinstance(settings, dict):
        raise DrtkError(f"{name}: 'settings' is not a table; settings go under [settings]")
    return Preset(name, content["command"], str(content.get("summary", "")), dict(settings), text, content)
