"""What a pre-training preset composes: slots, readers, projectors, a generator, and objectives over them.

A composition is checked as a whole before anything is read or loaded; every complaint names its place in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from drtk.errors import UsageError
from drtk.settings.core import plain_type

Part = TypeVar("Part")
Options = dict[str, Any]
Corruption = Literal["none", "mask", "bert", "replaced", "inserted", "deleted", "any"]
EDITS: tuple[Corruption, ...] = ("replaced", "inserted", "deleted")  # what `any` is one of
_GENERATED, _EDITED = ("replaced", "inserted", "any"), (*EDITS, "any")


@dataclass(frozen=True)
class Slot:
    """One tokenised reading of a view.

    view: one, or several of which one is drawn, by the `step` or by the `example`
    view_options: what the slot says besides, for its views: limit, spans, …
    of: the slot whose mask this one extends or complements; both must read the same view
    count: whether the rate counts special tokens too
    corruption: what stands at hidden tokens; any: an edit drawn for each example (DiffCSE's "all augmentations")
    """

    view: tuple[str, ...]
    draw: Literal["step", "example"] = "step"
    masking: str = "none"
    rate: float = 0.0
    of: str = ""
    count: Literal["content", "with-specials"] = "content"
    corruption: Corruption = "none"
    max_length: int | None = None
    masking_options: Options = field(default_factory=dict)
    view_options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Reader:
    """Who looks at a slot's tokens: an entry of READERS and its options."""

    use: str
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Generator:
    """Who proposes replacement tokens.

    mode: frozen, or trained jointly with weight `weight` on the masked positions of slot `slot`
    init: joint: copy of the encoder's start, or random weights
    reads: what it sees at masked positions: [MASK], or BERT's 80/10/10
    scope: masked positions are replaced, or all but the first
    """

    model: str = ""
    mode: Literal["frozen", "joint"] = "frozen"
    init: Literal["copy", "random"] = "copy"
    weight: float = 0.2
    slot: str = ""
    reads: Literal["mask", "bert"] = "mask"
    decode: Literal["sample", "argmax"] = "sample"
    scope: Literal["masked", "all"] = "masked"


@dataclass(frozen=True)
class Projector:
    """A small network over the vectors of several slots together."""

    slots: tuple[str, ...]
    kind: Literal["bn", "tanh", "none"] = "bn"


@dataclass(frozen=True)
class Recover:
    """A reader predicts a target at every position of its slots, helped by the vectors of the sources."""

    reader: str
    slot: tuple[str, ...]
    source: tuple[str, ...] = ()
    target: Literal["masked", "all", "edited", "corrected"] = "masked"
    reduction: Literal["mean", "mean_all", "sum"] = "mean"
    classes: Literal[1, 2] = 1
    projector: str = ""
    weight: float = 1.0
    name: str = ""
    group: str = ""


@dataclass(frozen=True)
class Contrast:
    """Two slots' vectors find each other among those of the batch.

    candidates: the `other` side alone, or `all` vectors but one's own; symmetric: both sides ask
    extra_negatives, extra_positives: further slots
    """

    a: str
    b: str
    similarity: Literal["dot", "cosine"] = "dot"
    temperature: float = 1.0
    candidates: Literal["other", "all"] = "other"
    symmetric: bool = False
    extra_negatives: tuple[str, ...] = ()
    extra_positives: tuple[str, ...] = ()
    projector: str = ""
    weight: float = 1.0
    name: str = ""
    group: str = ""


Objective = Recover | Contrast


@dataclass(frozen=True)
class Composition:
    """A whole preset, checked.

    example: what a row of the batch is: a passage, or a document of which two passages are drawn
    title, crop: how passages are read, where a view says nothing else
    """

    slots: dict[str, Slot]
    objectives: tuple[Objective, ...]
    readers: dict[str, Reader] = field(default_factory=dict)
    projectors: dict[str, Projector] = field(default_factory=dict)
    generator: Generator | None = None
    example: Literal["passage", "document"] = "passage"
    title: Literal["none", "join", "segment"] = "none"
    crop: Literal["head", "random"] | None = None
    pooling: Literal["cls", "mean"] = "cls"

    def slots_of(self, objective: Objective) -> list[str]:
        """Slots an objective looks at."""
        if isinstance(objective, Recover):
            return [*objective.slot, *objective.source]
        return [objective.a, objective.b, *objective.extra_negatives, *objective.extra_positives]

    def without(self, names: Iterable[str]) -> Composition:
        """Without some objectives, by their names or groups, and whatever nobody asks for then.

        Raises UsageError where there is no such objective, or nothing is left.
        """
        known = {each for objective in self.objectives for each in (objective.name, objective.group) if each}
        unwanted = set(names)
        for name in unwanted - known:
            raise UsageError(f"--drop {name}: no objective or group is called that; {_choices(known)}")
        kept = tuple(each for each in self.objectives if not {each.name, each.group} & unwanted)
        if not kept:
            raise UsageError("--drop: nothing is left to train on")
        asked = {each.projector for each in kept}
        projectors = {name: each for name, each in self.projectors.items() if name in asked}
        left = replace(self, objectives=kept, projectors=projectors)
        return replace(left, slots=left._needed(kept))._economical()

    def _economical(self) -> Composition:
        """Without a frozen generator that no slot asks."""
        asked = any(slot.corruption in _GENERATED for slot in self.slots.values())
        frozen = self.generator is not None and self.generator.mode == "frozen"
        return replace(self, generator=None) if frozen and not asked else self

    def _needed(self, objectives: Sequence[Objective]) -> dict[str, Slot]:
        wanted = {name for objective in objectives for name in self.slots_of(objective)}
        wanted |= {name for each in self.projectors.values() for name in each.slots}
        if self.generator is not None and self.generator.mode == "joint":
            wanted.add(self.generator.slot)
        while more := {self.slots[name].of for name in wanted} - wanted - {""}:
            wanted |= more
        return {name: slot for name, slot in self.slots.items() if name in wanted}


SHORTEST_SLOT = 3  # tokens, the two special ones among them
_RESERVED = {"name", "command", "summary", "settings", "slots", "readers", "projectors", "generator", "objective"}
_SLOT_KEYS = {item.name for item in fields(Slot)} - {"masking_options", "view_options"}


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
    _check(found, place)
    return found._economical()


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
        for step in way:
            held = _step(node, step)
            if not isinstance(held, (dict, list)):
                problem = f"there is no '{step}'" if held is None else f"'{step}' is {held!r}, which has no parts"
                raise UsageError(f"--set {path}: {problem}")
            node = held
        if isinstance(node, list):
            raise UsageError(f"--set {path}: name a setting of an objective: objective.1.weight")
        node[last] = value
    return found


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
    given["view_options"] = {name: given.pop(name) for name in [*given] if name not in _SLOT_KEYS}
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
    use = given.pop("use", None)
    if use == "contrast":
        return _built(Contrast, given, place), {}
    if use != "recover":
        raise UsageError(f"{place}: unknown objective '{use}'; choose from recover, contrast")
    made: dict[str, Reader] = {}
    if "reader" not in given:
        raise UsageError(f"{place}: lacks 'reader'")
    reader = given["reader"]
    if not (isinstance(reader, str) and reader in readers):  # its own, under a name nobody else can use
        name = f"reader {place.rpartition(' ')[2]}"
        made[name] = _reader(reader, place)
        given["reader"] = name
    return _built(Recover, given, place), made


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
            raise UsageError(f"{place}: unknown key '{name}'; {_choices(known)}")
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
            name = "contrast" if isinstance(objective, Contrast) else f"{objective.slot[0]}_{objective.target}"
            taken = {other.name for other in found}
            name = next(each for each in (name, *(f"{name}_{number}" for number in range(2, 99))) if each not in taken)
        elif not _NAME.fullmatch(name):
            raise UsageError(f"{place}: '{name}' is no name: letters, digits, _ and - are")
        elif name in {other.name for other in found}:
            raise UsageError(f"{place}: two objectives are called '{name}'")
        found.append(replace(objective, name=name))
    return tuple(found)


def _check(found: Composition, place: str) -> None:
    def known(name: str, where: str) -> None:
        if name not in found.slots:
            raise UsageError(f"{place}: {where}: there is no slot '{name}'; {_choices(found.slots)}")

    for name, slot in found.slots.items():
        if slot.of:
            known(slot.of, f"[slots.{name}] of")
            _check_reference(name, slot, found.slots[slot.of], place)
        elif slot.masking in _REFERRING:
            raise UsageError(
                f"{place}: [slots.{name}] is masked by '{slot.masking}' of another slot: of = \"…\" names it"
            )
        _check_cycle(found, name, place)
        if slot.corruption in _GENERATED and found.generator is None:
            raise UsageError(f"{place}: [slots.{name}] needs tokens to put in, but there is no [generator]")
    for objective in found.objectives:
        for name in found.slots_of(objective):
            known(name, f"objective '{objective.name}'")
        if objective.projector:
            _check_projected(found, objective, place)
        if isinstance(objective, Recover):
            _check_recover(found, objective, place)
        elif objective.temperature <= 0:
            raise UsageError(
                f"{place}: objective '{objective.name}': temperature {objective.temperature} is not above 0"
            )
    for name, projector in found.projectors.items():
        for slot_name in projector.slots:
            known(slot_name, f"[projectors.{name}]")
    if found.generator is not None and found.generator.mode == "joint":
        known(found.generator.slot, "[generator] slot")


_REFERRING = ("extension", "complement")


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
            f"{_choices(found.projectors)}"
        )
    vectors = objective.source if isinstance(objective, Recover) else found.slots_of(objective)
    for name in vectors:
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


def _check_recover(found: Composition, objective: Recover, place: str) -> None:
    if objective.source and len(objective.source) not in (1, len(objective.slot)):
        raise UsageError(f"{place}: objective '{objective.name}': as many sources as slots are wanted, or one")
    for name in objective.slot:
        corruption = found.slots[name].corruption
        if objective.target == "edited" and corruption not in _EDITED:
            raise UsageError(f"{place}: objective '{objective.name}': nothing in slot '{name}' is edited")
        if objective.target != "edited" and corruption in ("inserted", "deleted", "any"):
            raise UsageError(f"{place}: objective '{objective.name}': slot '{name}' has other tokens than its view")
        if objective.target == "masked" and found.slots[name].masking == "none":
            raise UsageError(f"{place}: objective '{objective.name}': nothing in slot '{name}' is masked")


def _choices(names: Iterable[str]) -> str:
    found = sorted(names)
    return f"choose from {', '.join(found)}" if found else "there are none"
