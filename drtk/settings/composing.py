"""A preset's TOML to a composition; every complaint names its place in the file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from math import isfinite
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from drtk.errors import UsageError
from drtk.settings.coherence import check_coherence
from drtk.settings.composition import (
    Composition,
    Generator,
    Objective,
    Projector,
    Reader,
    Slot,
    choices,
)
from drtk.settings.core import plain_type
from drtk.settings.objectives import OBJECTIVES

Part = TypeVar("Part")
SHORTEST_SLOT = 3  # tokens, the two special ones among them
_TABLES = ("slots", "readers", "projectors", "generator", "objective")
_RESERVED = {"name", "command", "summary", "settings", *_TABLES}
SLOT_KEYS = {item.name for item in fields(Slot)} - {"masking_options", "view_options"}


def composition(content: Mapping[str, Any], place: str) -> Composition:
    """The composition of a preset's TOML. Raises UsageError, beginning with `place`, for what cannot be meant."""
    general = {name: value for name, value in content.items() if name not in _RESERVED}
    slots = {name: _slot(table, f"{place}: [slots.{name}]") for name, table in _tables(content, "slots", place)}
    readers = {name: _reader(table, f"{place}: [readers.{name}]") for name, table in _tables(content, "readers", place)}
    projectors = {
        name: _built(Projector, table, f"{place}: [projectors.{name}]")
        for name, table in _tables(content, "projectors", place)
    }
    objectives = []
    listed = content.get("objective", [])
    if not isinstance(listed, list) or not all(isinstance(table, Mapping) for table in listed):
        raise UsageError(f"{place}: objectives are a list of tables: [[objective]]")
    for number, table in enumerate(listed, start=1):
        made, reader = _objective(table, f"{place}: objective {number}", readers)
        readers |= reader
        objectives.append(made)
    if not objectives:
        raise UsageError(f"{place}: has no [[objective]]")
    generator = _built(Generator, content["generator"], f"{place}: [generator]") if "generator" in content else None
    parts = {"slots": slots, "objectives": _named(objectives, place), "readers": readers, "projectors": projectors}
    found = _built(Composition, general, place, made=parts | {"generator": generator})
    check_coherence(found, place)
    return found.economical()


def with_changes(content: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """A preset's TOML with PATH=VALUE changes: slots.enc.rate=0.4, objective.mlm.weight=0.5 (or objective.1, the first).

    Values are read as TOML where they are, as text otherwise. Raises UsageError for a path that leads nowhere.
    """
    import copy
    import tomllib

    found: dict[str, Any] = copy.deepcopy(dict(content))
    for change in changes:
        path, separator, text = change.partition("=")
        if not separator:
            raise UsageError(f"--set {change}: is not PATH=VALUE")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        *way, last = path.split(".")
        if way[:1] == ["settings"]:
            raise UsageError(f"--set {path}: is an option of its own: --{last.replace('_', '-')}")
        node: Any = found
        if way and way[0] not in {*_TABLES, *found}:
            raise UsageError(f"--set {path}: there is no '{way[0]}'; {choices(_TABLES)}")
        for step in way:
            held = _step(node, step)
            if not isinstance(held, (dict, list)):
                problem = f"'{step}' is {held!r}, which has no parts"
                if held is None:
                    problem = f"there is no '{step}'; {choices(_called(node))}"
                raise UsageError(f"--set {path}: {problem}")
            node = held
        if isinstance(node, list):
            raise UsageError(f"--set {path}: name a setting of an objective: objective.1.weight")
        node[last] = value
    for table, key in (("slots", "view"), ("readers", "use")):  # made on the way: meant, or a name misspelt
        there = content.get(table, {})
        for name, held in found.get(table, {}).items():
            if name not in there and isinstance(held, dict) and key not in held:
                raise UsageError(
                    f"--set {table}.{name}: there is no '{name}', and a new one needs a '{key}'; {choices(there)}"
                )
    return found


def _called(objectives: Sequence[Any]) -> list[str]:
    """What objectives can be called by: the names a preset gave them, and numbers from 1 on."""
    names = [str(each["name"]) for each in objectives if isinstance(each, dict) and "name" in each]
    return [*(str(number) for number in range(1, len(objectives) + 1)), *names]


def _step(node: Any, step: str) -> Any:
    """What a table or a list of objectives holds under a name (made where a table lacks it), or a number from 1 on."""
    if isinstance(node, dict):
        return node.setdefault(step, {})
    if step.isdigit():
        return node[int(step) - 1] if 0 < int(step) <= len(node) else None
    return next((each for each in node if isinstance(each, dict) and each.get("name") == step), None)


def _tables(content: Mapping[str, Any], name: str, place: str) -> list[tuple[str, Mapping[str, Any]]]:
    found = content.get(name, {})
    if not isinstance(found, Mapping) or not all(isinstance(table, Mapping) for table in found.values()):
        raise UsageError(f"{place}: [{name}] must hold tables")
    return [*found.items()]


def _slot(table: Mapping[str, Any], place: str) -> Slot:
    given = dict(table)
    masking = given.get("masking")
    if isinstance(masking, Mapping):
        given["masking"] = masking.get("use", "")
        options = {name: value for name, value in masking.items() if name != "use"}
    else:
        options = {}
    given["view_options"] = {name: given.pop(name) for name in [*given] if name not in SLOT_KEYS}
    given["masking_options"] = options
    slot = _built(Slot, given, place)
    if not 0 <= slot.rate <= 1:
        raise UsageError(f"{place}: rate {slot.rate} is not between 0 and 1")
    if slot.corruption in ("mask", "bert", "replaced", "any") and slot.masking == "none":
        raise UsageError(f"{place}: corruption '{slot.corruption}' needs a masking")
    if slot.max_length is not None and slot.max_length < SHORTEST_SLOT:
        raise UsageError(f"{place}: max_length {slot.max_length} has no room for a token between the special ones")
    return slot


def _reader(table: Mapping[str, Any] | str, place: str) -> Reader:
    if isinstance(table, str):
        return Reader(table)
    use = table.get("use") if isinstance(table, Mapping) else None
    if not isinstance(use, str):
        raise UsageError(f'{place}: names no reader: use = "decoder"')
    return Reader(use, {name: value for name, value in table.items() if name != "use"})


def _objective(
    table: Mapping[str, Any], place: str, readers: Mapping[str, Reader]
) -> tuple[Objective, dict[str, Reader]]:
    given = dict(table)
    use = str(given.pop("use", None))
    try:
        kind = OBJECTIVES.load(use)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from error
    made: dict[str, Reader] = {}
    reader = given.get("reader")
    if "reader" in given and not (isinstance(reader, str) and reader in readers):
        name = f"reader {place.rpartition(' ')[2]}"  # its own, under a name nobody else can use
        made[name] = _reader(given["reader"], place)
        given["reader"] = name
    return _built(kind, given, place, made={"use": use}), made


def _built(kind: type[Part], table: Mapping[str, Any], place: str, *, made: Mapping[str, Any] | None = None) -> Part:
    """An instance from a table, and parts that are `made` already.

    Raises UsageError for unknown and missing keys and for values of another type.
    """
    if not isinstance(table, Mapping):
        raise UsageError(f"{place}: must be a table, found {table!r}")
    values: dict[str, Any] = dict(made or {})
    known = {item.name: item for item in fields(kind) if item.name not in values}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    for name, value in table.items():
        if name not in known:
            raise UsageError(f"{place}: unknown key '{name}'; {choices(known)}")
        values[name] = _value(value, hints[name], f"{place}: {name}")
    for name, item in known.items():
        if name not in values and item.default is MISSING and item.default_factory is MISSING:
            raise UsageError(f"{place}: lacks '{name}'")
    return kind(**values)


def _value(value: Any, kind: Any, place: str) -> Any:
    plain = plain_type(kind)
    origin = get_origin(plain)
    if origin is tuple:
        if isinstance(value, tuple):
            return value
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not items or not all(isinstance(item, str) for item in items):
            raise UsageError(f"{place}: expected a name or a list of names, found {value!r}")
        return tuple(items)
    if origin is Literal:
        if value not in get_args(plain):
            raise UsageError(f"{place}: '{value}' is not one of {', '.join(map(str, get_args(plain)))}")
        return value
    if plain is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, float) and not isfinite(value):
        raise UsageError(f"{place}: {value} is not a number to compute with")
    wanted = origin or plain
    if isinstance(wanted, type) and (not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool)):
        raise UsageError(f"{place}: expected {wanted.__name__}, found {value!r}")
    return value


_NAME = re.compile(r"[A-Za-z][\w-]*")


def _named(objectives: Sequence[Objective], place: str) -> tuple[Objective, ...]:
    """Each with a name of its own: the one given, or one from what it does."""
    found: list[Objective] = []
    for objective in objectives:
        name = objective.name
        if not name:
            name = objective.plain_name
            taken = {other.name for other in found}
            name = next(each for each in (name, *(f"{name}_{number}" for number in range(2, 99))) if each not in taken)
        elif not _NAME.fullmatch(name):
            raise UsageError(f"{place}: '{name}' is no name: letters, digits, _ and - are")
        elif name in {other.name for other in found}:
            raise UsageError(f"{place}: two objectives are called '{name}'")
        found.append(replace(objective, name=name))
    return tuple(found)
