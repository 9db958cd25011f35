"""Parse a composition from a preset's TOML, and check that its parts fit together."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, TypeVar, get_origin, get_type_hints

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
    format_choices,
)
from drtk.pretraining.config import check_type, located

Part = TypeVar("Part")
SHORTEST_SLOT = 3  # tokens, two special ones included
SLOT_KEYS = {item.name for item in fields(Slot)} - {"masking_options", "view_options"}
_TABLES = ("slots", "readers", "projectors", "generator", "objective")
_RESERVED = {"name", "command", "summary", "settings", *_TABLES}
_NAME = re.compile(r"[A-Za-z][\w-]*")


def parse_composition(content: Mapping[str, Any], place: str) -> Composition:
    """Parse a preset's TOML. Raises UsageError, beginning with `place`, for what is unknown, malformed or contradictory."""
    general = {name: value for name, value in content.items() if name not in _RESERVED}
    slots = {name: _slot(table, f"{place}: [slots.{name}]") for name, table in _tables(content, "slots", place)}
    readers = {name: _reader(table, f"{place}: [readers.{name}]") for name, table in _tables(content, "readers", place)}
    projectors = {
        name: _build(Projector, table, f"{place}: [projectors.{name}]")
        for name, table in _tables(content, "projectors", place)
    }
    objectives = []
    listed = content.get("objective", [])
    if not isinstance(listed, list) or not all(isinstance(table, Mapping) for table in listed):
        raise UsageError(f"{place}: objectives are a list of tables: [[objective]]")
    for number, table in enumerate(listed, start=1):
        objectives.append(_objective(table, f"{place}: objective {number}", readers))
    if not objectives:
        raise UsageError(f"{place}: has no [[objective]]")
    generator = _build(Generator, content["generator"], f"{place}: [generator]") if "generator" in content else None
    parts = {"slots": slots, "objectives": _name_objectives(objectives, place), "readers": readers}
    plan = _build(Composition, general, place, parts=parts | {"projectors": projectors, "generator": generator})
    _check_slots(plan, place)
    for objective in plan.objectives:
        _check_objective(plan, objective, f"{place}: objective '{objective.name}'")
    for name, projector in plan.projectors.items():
        _check_names(plan, projector.slots, f"{place}: [projectors.{name}]")
    _check_generator(plan, f"{place}: [generator]")
    return plan.without_unused()


def apply_changes(content: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Apply PATH=VALUE changes to a preset's TOML: slots.enc.rate=0.4, objective.mlm.weight=0.5 (or objective.1, the first).

    Values are TOML if they parse, text otherwise. Raises UsageError for a path that does not exist.
    """
    changed: dict[str, Any] = copy.deepcopy(dict(content))
    for change in changes:
        path, separator, text = change.partition("=")
        if not separator:
            raise UsageError(f"`set` {change}: is not PATH=VALUE")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        *steps, last = path.split(".")
        if steps[:1] == ["settings"]:
            raise UsageError(f"`set` {path}: is an option of its own: `{last}`")
        if steps and steps[0] not in {*_TABLES, *changed}:
            raise UsageError(f"`set` {path}: there is no '{steps[0]}'; {format_choices(_TABLES)}")
        node: Any = changed
        for step in steps:
            child = _child(node, step)
            if child is None:
                raise UsageError(f"`set` {path}: there is no '{step}'; {format_choices(_objective_names(node))}")
            if not isinstance(child, (dict, list)):
                raise UsageError(f"`set` {path}: '{step}' is {child!r}, which has no parts")
            node = child
        if isinstance(node, list):
            raise UsageError(f"`set` {path}: name a setting of an objective: objective.1.weight")
        node[last] = value
    for table, key in (("slots", "view"), ("readers", "use")):  # a new entry, or a misspelled name
        known = content.get(table, {})
        for name, entry in changed.get(table, {}).items():
            if name not in known and isinstance(entry, dict) and key not in entry:
                raise UsageError(
                    f"`set` {table}.{name}: there is no '{name}', and a new one needs a '{key}'; {format_choices(known)}"
                )
    return changed


def _child(node: Any, step: str) -> Any:
    """Return an entry of a table (created if missing), or an objective by name or number."""
    if isinstance(node, dict):
        return node.setdefault(step, {})
    if step.isdigit():
        return node[int(step) - 1] if 0 < int(step) <= len(node) else None
    return next((each for each in node if isinstance(each, dict) and each.get("name") == step), None)


def _objective_names(objectives: Sequence[Any]) -> list[str]:
    names = [str(each["name"]) for each in objectives if isinstance(each, dict) and "name" in each]
    return [*(str(number) for number in range(1, len(objectives) + 1)), *names]


def _tables(content: Mapping[str, Any], name: str, place: str) -> list[tuple[str, Mapping[str, Any]]]:
    tables = content.get(name, {})
    if not isinstance(tables, Mapping) or not all(isinstance(table, Mapping) for table in tables.values()):
        raise UsageError(f"{place}: [{name}] must hold tables")
    return [*tables.items()]


def _slot(table: Mapping[str, Any], place: str) -> Slot:
    given = dict(table)
    masking = given.get("masking")
    options: dict[str, Any] = {}
    if isinstance(masking, Mapping):
        given["masking"] = masking.get("use", "")
        options = {name: value for name, value in masking.items() if name != "use"}
    given["view_options"] = {name: given.pop(name) for name in [*given] if name not in SLOT_KEYS}
    given["masking_options"] = options
    slot = _build(Slot, given, place)
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


def _objective(table: Mapping[str, Any], place: str, readers: dict[str, Reader]) -> Objective:
    """Parse an objective, and add a reader of its own to `readers`."""
    given = dict(table)
    use = str(given.pop("use", None))
    with located(place):
        kind = OBJECTIVES.load(use)
    reader = given.get("reader")
    if "reader" in given and not (isinstance(reader, str) and reader in readers):
        name = f"reader {place.rpartition(' ')[2]}"  # a name that no preset can use
        readers[name] = _reader(given["reader"], place)
        given["reader"] = name
    objective: Objective = _build(kind, given, place, parts={"use": use})
    return objective


def _build(kind: type[Part], table: Mapping[str, Any], place: str, *, parts: Mapping[str, Any] | None = None) -> Part:
    """Build a dataclass from a table and from parts that exist already.

    Raises UsageError for unknown and missing keys and for values of another type.
    """
    if not isinstance(table, Mapping):
        raise UsageError(f"{place}: must be a table, found {table!r}")
    values: dict[str, Any] = dict(parts or {})
    known = {item.name: item for item in fields(kind) if item.name not in values}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    for name, value in table.items():
        if name not in known:
            raise UsageError(f"{place}: unknown key '{name}'; {format_choices(known)}")
        values[name] = _convert(value, hints[name], f"{place}: {name}")
    for name, item in known.items():
        if name not in values and item.default is MISSING and item.default_factory is MISSING:
            raise UsageError(f"{place}: lacks '{name}'")
    return kind(**values)


def _convert(value: Any, kind: Any, place: str) -> Any:
    if get_origin(plain_type(kind)) is tuple:
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise UsageError(f"{place}: expected a name or a list of names, found {value!r}")
        return tuple(names)
    check_type(value, kind, place)
    return float(value) if plain_type(kind) is float else value


def _name_objectives(objectives: Sequence[Objective], place: str) -> tuple[Objective, ...]:
    """Give each objective a unique name: its own, or its default name and a number."""
    named: list[Objective] = []
    for objective in objectives:
        name, taken = objective.name, {other.name for other in named}
        if not name:
            name = objective.default_name
            name = next(each for each in (name, *(f"{name}_{number}" for number in range(2, 99))) if each not in taken)
        elif not _NAME.fullmatch(name):
            raise UsageError(f"{place}: '{name}' is no name: letters, digits, _ and - are")
        elif name in taken:
            raise UsageError(f"{place}: two objectives are called '{name}'")
        named.append(replace(objective, name=name))
    return tuple(named)


def _check_names(plan: Composition, names: Iterable[str], place: str) -> None:
    for name in names:
        if name not in plan.slots:
            raise UsageError(f"{place}: there is no slot '{name}'; {format_choices(plan.slots)}")


def _check_slots(plan: Composition, place: str) -> None:
    for name, slot in plan.slots.items():
        where = f"{place}: [slots.{name}]"
        if slot.of:
            _check_names(plan, [slot.of], f"{where} of")
            other = plan.slots[slot.of]
            if _reading(slot) != _reading(other) or other.corruption in ("inserted", "deleted", "any"):
                raise UsageError(f"{where} refers to '{slot.of}', which reads another view")
            if slot.masking == "extension" and slot.rate < other.rate:
                raise UsageError(
                    f"{where}: rate {slot.rate} is less than the {other.rate} of '{slot.of}', which it extends"
                )
        elif slot.masking in ("extension", "complement"):
            raise UsageError(f"{where} is masked by '{slot.masking}' of another slot: of = \"…\" names it")
        chain, at = [name], slot.of
        while at in plan.slots:
            if at in chain:
                raise UsageError(f"{place}: slots {' -> '.join([*chain, at])} refer to each other in a circle")
            chain.append(at)
            at = plan.slots[at].of
        if slot.corruption in GENERATED and plan.generator is None:
            raise UsageError(f"{where} needs tokens to put in, but there is no [generator]")


def _reading(slot: Slot) -> tuple[Any, ...]:
    return slot.view, slot.draw, slot.view_options, slot.max_length


def _check_objective(plan: Composition, objective: Objective, place: str) -> None:
    _check_names(plan, (*objective.tokens_of, *objective.vectors_of), place)
    if objective.weight < 0:
        raise UsageError(f"{place}: weight {objective.weight} is below 0")
    if objective.projector:
        if objective.projector not in plan.projectors:
            raise UsageError(
                f"{place}: there is no projector '{objective.projector}'; {format_choices(plan.projectors)}"
            )
        for name in objective.vectors_of:
            if name not in plan.projectors[objective.projector].slots:
                raise UsageError(f"{place}: projector '{objective.projector}' leaves out slot '{name}'")
    if isinstance(objective, Recover):
        _check_recover(plan, objective, place)
    if isinstance(objective, Contrast):
        if not objective.temperature > 0:
            raise UsageError(f"{place}: temperature {objective.temperature} is not above 0")
        names = objective.vectors_of
        for name in names:
            if names.count(name) > 1:  # it is encoded once: both vectors would be equal
                raise UsageError(f"{place}: slot '{name}' is compared with itself; two readings are two slots")


def _check_recover(plan: Composition, objective: Recover, place: str) -> None:
    if len(objective.source) not in (0, 1, len(objective.slot)):
        raise UsageError(f"{place}: as many sources as slots are wanted, or one")
    if objective.projector and not objective.source:
        raise UsageError(f"{place}: a projector is for the vector of a 'source'")
    if objective.target != "edited":
        if objective.classes != 1:
            raise UsageError(f"{place}: 'classes' are of target \"edited\" alone")
        if objective.reduction == "mean_all":
            raise UsageError(f"{place}: reduction 'mean_all' is of target \"edited\" alone")
    for name in objective.slot:
        slot = plan.slots[name]
        if objective.target == "edited" and slot.corruption not in (*EDITS, "any"):
            raise UsageError(f"{place}: nothing in slot '{name}' is edited")
        if objective.target != "edited" and slot.corruption in ("inserted", "deleted", "any"):
            raise UsageError(f"{place}: slot '{name}' has other tokens than its view")
        if objective.target == "masked" and slot.masking == "none":
            raise UsageError(f"{place}: nothing in slot '{name}' is masked")


def _check_generator(plan: Composition, place: str) -> None:
    generator = plan.generator
    if generator is None:
        return
    if generator.slot:
        _check_names(plan, [generator.slot], f"{place} slot")
    if generator.mode == "frozen":
        if generator.init != "model":
            raise UsageError(f"{place} init: '{generator.init}' is for mode \"joint\"; a frozen generator is its model")
        return
    if not generator.slot:
        raise UsageError(f"{place} of mode \"joint\" lacks 'slot': the one whose hidden tokens it learns")
    if plan.slots[generator.slot].corruption not in ("mask", "bert", "replaced"):
        raise UsageError(f"{place} slot: nothing in slot '{generator.slot}' is masked for it to learn")
