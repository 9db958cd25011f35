"""Parse a composition from a preset's TOML and check it."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from functools import partial
from itertools import chain, count
from typing import Any, TypeVar, get_origin, get_type_hints

from drtk.config import strip_optional
from drtk.errors import UsageError
from drtk.pretraining import OBJECTIVES
from drtk.pretraining.composition import (
    EDITS,
    GENERATED,
    Composition,
    ContrastiveObjective,
    DecoderSpec,
    GeneratorSpec,
    Objective,
    ProjectorSpec,
    Slot,
    TokenObjective,
    format_choices,
)
from drtk.pretraining.config import PretrainSettings, check_type, prefix_errors

Part = TypeVar("Part")
MIN_SLOT_LENGTH = 3  # tokens, including two special tokens
SETTINGS = {item.name for item in fields(PretrainSettings)}
SLOT_KEYS = {item.name for item in fields(Slot)} - {"masking_options", "view_options"}
_TABLES = ("slots", "decoders", "projectors", "generator", "objective")
_RESERVED = {"name", "command", "summary", "settings", *_TABLES}
_NAME = re.compile(r"[A-Za-z][\w-]*")


def parse_composition(content: Mapping[str, Any], place: str) -> Composition:
    """Parse the content of a preset's TOML file; drop unused slots and an unused frozen generator.

    place: prefix of error messages
    Raises UsageError for unknown, malformed or contradictory entries.
    """
    with prefix_errors(place):
        general = {name: value for name, value in content.items() if name not in _RESERVED}
        parts: dict[str, Any] = {
            "slots": _parse_tables(content, "slots", _parse_slot),
            "decoders": _parse_tables(content, "decoders", _parse_decoder),
            "projectors": _parse_tables(content, "projectors", partial(_build_dataclass, ProjectorSpec)),
            "generator": None,
        }
        if "generator" in content:
            with prefix_errors("[generator]"):
                parts["generator"] = _build_dataclass(GeneratorSpec, content["generator"])
        listed = content.get("objective", [])
        if not isinstance(listed, list):
            raise UsageError("'objective' must be a list of tables; write [[objective]]")
        if not listed:
            raise UsageError("there is no objective; add an [[objective]] table")
        objectives = []
        for number, table in enumerate(listed, start=1):
            with prefix_errors(f"objective {number}"):
                objectives.append(_parse_objective(table, number, parts["decoders"]))
        composition = _build_dataclass(Composition, general, parts | {"objectives": _name_objectives(objectives)})
        for name in composition.slots:
            _check_slot(composition, name)
        for objective in composition.objectives:
            with prefix_errors(f"objective '{objective.name}'"):
                _check_objective(composition, objective)
        for name, projector in composition.projectors.items():
            with prefix_errors(f"[projectors.{name}]"):
                _check_slot_names(composition, projector.slots)
        with prefix_errors("[generator]"):
            _check_generator(composition)
    return composition.drop_unused()


def apply_changes(content: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Return a copy of the content of a preset with PATH=VALUE changes, such as slots.enc.rate=0.4 or objective.1.weight=0.5.

    A value that is not valid TOML is a string. Keys that are missing in a top-level table are created.
    "settings." may be omitted before the name of a setting.
    Raises UsageError for an unknown top-level table, setting or objective, and a malformed change.
    """
    changed: dict[str, Any] = copy.deepcopy(dict(content))
    for change in changes:
        path, separator, text = change.partition("=")
        if not separator:
            raise UsageError(f"`set` {change}: expected PATH=VALUE")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        *steps, last = path.split(".")
        if last in SETTINGS and steps in ([], ["settings"]):
            steps = ["settings"]
        elif steps[:1] == ["settings"]:
            raise UsageError(f"`set` {path}: no such setting; choose from {', '.join(sorted(SETTINGS))}")
        if steps and steps[0] not in {"settings", *_TABLES, *changed}:
            raise UsageError(f"`set` {path}: there is no '{steps[0]}'; {format_choices(_TABLES)}")
        node: Any = changed
        for step in steps:
            child = _get_child(node, step)
            if child is None:
                names = [str(table["name"]) for table in node if isinstance(table, dict) and "name" in table]
                numbers = map(str, range(1, len(node) + 1))
                raise UsageError(f"`set` {path}: there is no '{step}'; {format_choices([*numbers, *names])}")
            if not isinstance(child, (dict, list)):
                raise UsageError(f"`set` {path}: '{step}' is {child!r}, not a table; end the path at '{step}'")
            node = child
        if isinstance(node, list):
            raise UsageError(f"`set` {path}: incomplete path; add the key of an objective, as in objective.1.weight")
        node[last] = value
    return changed


def _get_child(node: Any, step: str) -> Any:
    """Return the entry `step` of a table, or the objective with the name or number `step` of a list.

    A missing entry of a table is created; for a missing objective, return None.
    """
    if isinstance(node, dict):
        return node.setdefault(step, {})
    if step.isdigit():
        return node[int(step) - 1] if 0 < int(step) <= len(node) else None
    return next((table for table in node if isinstance(table, dict) and table.get("name") == step), None)


def _parse_tables(content: Mapping[str, Any], kind: str, parse: Callable[[Any], Part]) -> dict[str, Part]:
    tables = content.get(kind, {})
    if not isinstance(tables, Mapping):
        raise UsageError(f"[{kind}] must contain tables; write [{kind}.NAME]")
    parsed = {}
    for name, table in tables.items():
        with prefix_errors(f"[{kind}.{name}]"):
            parsed[name] = parse(table)
    return parsed


def _parse_slot(table: Any) -> Slot:
    given = _check_table(table)
    masking = given.get("masking")
    options: dict[str, Any] = {}
    if isinstance(masking, Mapping):
        given["masking"] = masking.get("use", "")
        options = {name: value for name, value in masking.items() if name != "use"}
    given["view_options"] = {name: given.pop(name) for name in [*given] if name not in SLOT_KEYS}
    given["masking_options"] = options
    slot = _build_dataclass(Slot, given)
    if not 0 <= slot.rate <= 1:
        raise UsageError(f"rate {slot.rate} must be between 0 and 1")
    if slot.corruption in ("mask", "bert", "replaced", "any") and slot.masking == "none":
        raise UsageError(f"corruption '{slot.corruption}' requires a masking; set masking")
    if slot.max_length is not None and slot.max_length < MIN_SLOT_LENGTH:
        raise UsageError(f"max_length {slot.max_length} is too small; use {MIN_SLOT_LENGTH} or more")
    return slot


def _parse_decoder(table: Any) -> DecoderSpec:
    if isinstance(table, str):
        return DecoderSpec(table)
    options = _check_table(table)
    return DecoderSpec(_pop_use(options, "decoder"), options)


def _parse_objective(table: Any, number: int, decoders: dict[str, DecoderSpec]) -> Objective:
    """Parse the [[objective]] table with this number. A decoder that is defined in the table is added to `decoders`."""
    given = _check_table(table)
    use = _pop_use(given, "recover")
    kind = OBJECTIVES.load(use)
    if "decoder" in given and not (isinstance(given["decoder"], str) and given["decoder"] in decoders):
        name = f"decoder {number}"  # a name that no preset can use
        decoders[name] = _parse_decoder(given["decoder"])
        given["decoder"] = name
    return _build_dataclass(kind, given, {"use": use})


def _pop_use(table: dict[str, Any], example: str) -> str:
    use = table.pop("use", None)
    if not isinstance(use, str):
        raise UsageError(f"'use' is missing; set it to a name, such as use = \"{example}\"")
    return use


def _check_table(table: Any) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise UsageError(f"expected a TOML table of KEY = VALUE entries, got {table!r}")
    return dict(table)


def _build_dataclass(kind: type[Part], table: Any, parts: Mapping[str, Any] | None = None) -> Part:
    """Build the dataclass `kind` from a TOML table and from values that are already parsed (`parts`).

    Raises UsageError for an unknown or missing key, or a value of the wrong type.
    """
    values: dict[str, Any] = dict(parts or {})
    known = {item.name: item for item in fields(kind) if item.name not in values}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    for name, value in _check_table(table).items():
        if name not in known:
            raise UsageError(f"unknown key '{name}'; {format_choices(known)}")
        values[name] = _convert_value(value, hints[name], name)
    for name, item in known.items():
        if name not in values and item.default is MISSING and item.default_factory is MISSING:
            raise UsageError(f"'{name}' is missing; add it")
    return kind(**values)


def _convert_value(value: Any, kind: Any, name: str) -> Any:
    if get_origin(strip_optional(kind)) is tuple:
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not names or not all(isinstance(item, str) for item in names):
            raise UsageError(f"{name}: expected a name or a list of names, got {value!r}")
        return tuple(names)
    check_type(value, kind, name)
    return float(value) if strip_optional(kind) is float else value


def _name_objectives(objectives: Sequence[Objective]) -> tuple[Objective, ...]:
    """Return the objectives with unique names: the name in the preset, else the default name, with a number if it is taken."""
    named: dict[str, Objective] = {}
    for objective in objectives:
        name = objective.name
        if not name:
            name = objective.default_name
            names = chain([name], (f"{name}_{number}" for number in count(2)))
            name = next(candidate for candidate in names if candidate not in named)
        elif not _NAME.fullmatch(name):
            raise UsageError(
                f"objective name '{name}' is not valid; begin with a letter, then use letters, digits, _ and -"
            )
        elif name in named:
            raise UsageError(f"two objectives have the name '{name}'; rename one")
        named[name] = replace(objective, name=name)
    return tuple(named.values())


def _check_slot_names(composition: Composition, names: Iterable[str]) -> None:
    for name in names:
        if name not in composition.slots:
            raise UsageError(f"there is no slot '{name}'; {format_choices(composition.slots)}")


def _check_slot(composition: Composition, name: str) -> None:
    slot = composition.slots[name]
    with prefix_errors(f"[slots.{name}]"):
        if slot.of:
            with prefix_errors("of"):
                _check_slot_names(composition, [slot.of])
            other = composition.slots[slot.of]
            if _get_view_settings(slot) != _get_view_settings(other) or other.corruption in (
                "inserted",
                "deleted",
                "any",
            ):
                raise UsageError(
                    f'of = "{slot.of}" requires the same view and max_length in both slots, and no insertions or deletions '
                    f"in '{slot.of}'"
                )
            if slot.masking == "extension" and slot.rate < other.rate:
                raise UsageError(f"rate {slot.rate} is below the rate of '{slot.of}'; use {other.rate} or more")
        elif slot.masking in ("extension", "complement"):
            raise UsageError(f"masking '{slot.masking}' requires 'of'; set it to the slot whose mask is used")
        if slot.corruption in GENERATED and composition.generator is None:
            raise UsageError(f"corruption '{slot.corruption}' requires a generator; add a [generator] table")
    path, at = [name], slot.of
    while at in composition.slots:
        if at in path:
            raise UsageError(f"slots {' -> '.join([*path, at])} refer to each other in a cycle; change one 'of'")
        path.append(at)
        at = composition.slots[at].of


def _get_view_settings(slot: Slot) -> tuple[Any, ...]:
    return slot.view, slot.draw, slot.view_options, slot.max_length


def _check_objective(composition: Composition, objective: Objective) -> None:
    names = objective.vector_slots
    _check_slot_names(composition, (*objective.token_slots, *names))
    if objective.weight < 0:
        raise UsageError(f"weight {objective.weight} is negative; use 0 or more")
    if objective.projector:
        if objective.projector not in composition.projectors:
            raise UsageError(f"there is no projector '{objective.projector}'; {format_choices(composition.projectors)}")
        for name in names:
            if name not in composition.projectors[objective.projector].slots:
                raise UsageError(f"projector '{objective.projector}' does not include slot '{name}'; add it")
    if isinstance(objective, TokenObjective):
        _check_token_objective(composition, objective)
    if isinstance(objective, ContrastiveObjective):
        if not objective.temperature > 0:
            raise UsageError(f"temperature {objective.temperature} is not positive; use a number above 0")
        for name in names:
            if names.count(name) > 1:  # a slot is encoded once, so both vectors would be equal
                raise UsageError(f"slot '{name}' is compared with itself; define a second slot with the same view")


def _check_token_objective(composition: Composition, objective: TokenObjective) -> None:
    if len(objective.source) not in (0, 1, len(objective.slot)):
        raise UsageError(f"{len(objective.source)} sources for {len(objective.slot)} slots; give one, or one per slot")
    if objective.projector and not objective.source:
        raise UsageError("'projector' requires 'source', the slot whose vector is projected")
    is_edited = objective.target == "edited"
    if objective.classes != 1 and not is_edited:
        raise UsageError("'classes' requires target 'edited'; omit it or change the target")
    if objective.reduction == "mean_all" and not is_edited:
        raise UsageError("reduction 'mean_all' requires target 'edited'; change one of them")
    for name in objective.slot:
        slot = composition.slots[name]
        if is_edited and slot.corruption not in (*EDITS, "any"):
            raise UsageError(f"slot '{name}' has no edits; set its corruption to one of {', '.join((*EDITS, 'any'))}")
        if not is_edited and slot.corruption in ("inserted", "deleted", "any"):
            raise UsageError(
                f'target "{objective.target}" is impossible for slot \'{name}\', which has inserted or deleted tokens; use "edited"'
            )
        if objective.target == "masked" and slot.masking == "none":
            raise UsageError(f"target \"masked\" requires a masking; set the masking of slot '{name}'")


def _check_generator(composition: Composition) -> None:
    generator = composition.generator
    if generator is None:
        return
    with prefix_errors("slot"):
        _check_slot_names(composition, [generator.slot] if generator.slot else [])
    if generator.mode == "frozen":
        if generator.init != "model":
            raise UsageError(f'init "{generator.init}" requires mode "joint"; for a frozen generator use init "model"')
    elif not generator.slot:
        raise UsageError("mode \"joint\" requires 'slot', the slot whose masked tokens train the generator")
    elif composition.slots[generator.slot].corruption not in ("mask", "bert", "replaced"):
        raise UsageError(f"slot '{generator.slot}' has no masked tokens to train the generator on; name a masked slot")
