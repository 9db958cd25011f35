"""Parse a composition from a preset's TOML and check it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from math import isfinite
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from drtk.config import plain_type
from drtk.errors import UsageError
from drtk.pretraining import OBJECTIVES
from drtk.pretraining.composition import (
    EDITS,
    GENERATED,
    Composition,
    Contrast,
    Generator,
    Objective,
    Projector,
    Reader,
    Recover,
    Slot,
    choices,
)

_EDITED = (*EDITS, "any")
_COVERED = ("mask", "bert", "replaced")  # what a masked language model can learn from
_REFERRING = ("extension", "complement")


def check_coherence(found: Composition, place: str) -> None:
    """Raise UsageError, beginning with `place`, for parts that are not there or do not go together."""

    def known(name: str, where: str) -> None:
        if name not in found.slots:
            raise UsageError(f"{place}: {where}: there is no slot '{name}'; {choices(found.slots)}")

    for name, slot in found.slots.items():
        if slot.of:
            known(slot.of, f"[slots.{name}] of")
            _check_reference(name, slot, found.slots[slot.of], place)
        elif slot.masking in _REFERRING:
            raise UsageError(
                f"{place}: [slots.{name}] is masked by '{slot.masking}' of another slot: of = \"…\" names it"
            )
        _check_cycle(found, name, place)
        if slot.corruption in GENERATED and found.generator is None:
            raise UsageError(f"{place}: [slots.{name}] needs tokens to put in, but there is no [generator]")
    for objective in found.objectives:
        for name in found.slots_of(objective):
            known(name, f"objective '{objective.name}'")
        if objective.weight < 0:
            raise UsageError(f"{place}: objective '{objective.name}': weight {objective.weight} is below 0")
        if objective.projector:
            _check_projected(found, objective, place)
        if isinstance(objective, Recover):
            _check_recover(found, objective, place)
        if isinstance(objective, Contrast):
            _check_contrast(objective, place)
    for name, projector in found.projectors.items():
        for slot_name in projector.slots:
            known(slot_name, f"[projectors.{name}]")
    if found.generator is not None:
        if found.generator.slot:
            known(found.generator.slot, "[generator] slot")
        _check_generator(found, found.generator, place)


def _check_reference(name: str, slot: Slot, other: Slot, place: str) -> None:
    def reading(each: Slot) -> tuple[Any, ...]:
        return each.view, each.draw, each.view_options, each.max_length

    if reading(slot) != reading(other) or other.corruption in ("inserted", "deleted", "any"):
        raise UsageError(f"{place}: [slots.{name}] refers to '{slot.of}', which reads another view")
    if slot.masking == "extension" and slot.rate < other.rate:
        raise UsageError(
            f"{place}: [slots.{name}]: rate {slot.rate} is less than the {other.rate} of '{slot.of}', which it extends"
        )


def _check_projected(found: Composition, objective: Objective, place: str) -> None:
    if objective.projector not in found.projectors:
        raise UsageError(
            f"{place}: objective '{objective.name}': there is no projector '{objective.projector}'; "
            f"{choices(found.projectors)}"
        )
    for name in objective.vectors_of:
        if name not in found.projectors[objective.projector].slots:
            raise UsageError(
                f"{place}: objective '{objective.name}': projector '{objective.projector}' leaves out slot '{name}'"
            )


def _check_cycle(found: Composition, name: str, place: str) -> None:
    seen = [name]
    while (name := found.slots[name].of) and name in found.slots:
        if name in seen:
            raise UsageError(f"{place}: slots {' -> '.join([*seen, name])} refer to each other in a circle")
        seen.append(name)


def _check_contrast(objective: Contrast, place: str) -> None:
    if not objective.temperature > 0:
        raise UsageError(f"{place}: objective '{objective.name}': temperature {objective.temperature} is not above 0")
    names = objective.vectors_of
    for name in names:
        if names.count(name) > 1:  # it is encoded once, so not even dropout would tell its two vectors apart
            raise UsageError(
                f"{place}: objective '{objective.name}': slot '{name}' is compared with itself; two readings are two slots"
            )


def _check_generator(found: Composition, wanted: Generator, place: str) -> None:
    if wanted.mode == "frozen":
        if wanted.init != "model":
            raise UsageError(
                f"{place}: [generator] init: '{wanted.init}' is how one of mode \"joint\" begins; a frozen one is its model"
            )
        return
    if not wanted.slot:
        raise UsageError(f"{place}: [generator] of mode \"joint\" lacks 'slot': the one whose hidden tokens it learns")
    if found.slots[wanted.slot].corruption not in _COVERED:
        raise UsageError(f"{place}: [generator] slot: nothing in slot '{wanted.slot}' is covered, so nothing is learnt")


def _check_recover(found: Composition, objective: Recover, place: str) -> None:
    if objective.source and len(objective.source) not in (1, len(objective.slot)):
        raise UsageError(f"{place}: objective '{objective.name}': as many sources as slots are wanted, or one")
    if objective.projector and not objective.source:
        raise UsageError(f"{place}: objective '{objective.name}': a projector is for the vector of a 'source'")
    if objective.target != "edited":
        if objective.classes != 1:
            raise UsageError(f"{place}: objective '{objective.name}': 'classes' are of target \"edited\" alone")
        if objective.reduction == "mean_all":
            raise UsageError(
                f"{place}: objective '{objective.name}': reduction 'mean_all' is of target \"edited\" alone"
            )
    for name in objective.slot:
        corruption = found.slots[name].corruption
        if objective.target == "edited" and corruption not in _EDITED:
            raise UsageError(f"{place}: objective '{objective.name}': nothing in slot '{name}' is edited")
        if objective.target != "edited" and corruption in ("inserted", "deleted", "any"):
            raise UsageError(f"{place}: objective '{objective.name}': slot '{name}' has other tokens than its view")
        if objective.target == "masked" and found.slots[name].masking == "none":
            raise UsageError(f"{place}: objective '{objective.name}': nothing in slot '{name}' is masked")


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
