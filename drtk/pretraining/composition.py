"""What a pre-training preset composes: slots, readers, projectors, a generator, and objectives over them.

Read from TOML by settings/composing.py, checked as a whole by settings/coherence.py before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from drtk.errors import UsageError

Options = dict[str, Any]
Corruption = Literal["none", "mask", "bert", "replaced", "inserted", "deleted", "any"]
EDITS: tuple[Corruption, ...] = ("replaced", "inserted", "deleted")  # what `any` is one of
GENERATED: tuple[Corruption, ...] = ("replaced", "inserted", "any")  # those that need tokens to put in


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
    init: joint: the model as it is, a copy of the encoder's start, or random weights (of the model's size where one is named)
    reads: what it sees at masked positions: [MASK], or BERT's 80/10/10
    scope: masked positions are replaced, or all but the first
    """

    model: str = ""
    mode: Literal["frozen", "joint"] = "frozen"
    init: Literal["model", "copy", "random"] = "model"
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

    @property
    def of_the_batch(self) -> bool:
        """Whether what becomes of a row depends on the others."""
        return self.kind == "bn"


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What every [[objective]] says. A kind of objective is a subclass with what it alone needs, named in OBJECTIVES.

    computed_by: the place of what computes it (drtk/pretraining/__init__.py has the contract)
    compares: it is of the vectors of a whole batch together; else of tokens, and can be had in parts
    use: its name in OBJECTIVES
    """

    computed_by: ClassVar[str]
    compares: ClassVar[bool] = False

    projector: str = ""
    weight: float = 1.0
    use: str = ""
    name: str = ""
    group: str = ""

    @property
    def tokens_of(self) -> tuple[str, ...]:
        """Slots whose tokens it looks at."""
        return ()

    @property
    def vectors_of(self) -> tuple[str, ...]:
        """Slots whose vectors it looks at."""
        return ()

    @property
    def plain_name(self) -> str:
        """What it is called where nobody gave it a name."""
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Recover(Objective):
    """A reader predicts a target, an entry of TARGETS, at every position of its slots, helped by the vectors of the sources."""

    computed_by: ClassVar[str] = "drtk.pretraining.objectives:Recovery"

    reader: str
    slot: tuple[str, ...]
    source: tuple[str, ...] = ()
    target: str = "masked"
    reduction: Literal["mean", "mean_all", "sum"] = "mean"
    classes: Literal[1, 2] = 1

    @property
    def tokens_of(self) -> tuple[str, ...]:
        """The slots."""
        return self.slot

    @property
    def vectors_of(self) -> tuple[str, ...]:
        """The sources."""
        return self.source

    @property
    def plain_name(self) -> str:
        """Of its first slot and its target."""
        return f"{self.slot[0]}_{self.target}"


@dataclass(frozen=True)
class Contrast(Objective):
    """Two slots' vectors find each other among those of the batch.

    candidates: the `other` side alone, or `all` vectors but one's own; symmetric: both sides ask
    extra_negatives, extra_positives: further slots
    """

    computed_by: ClassVar[str] = "drtk.pretraining.objectives:contrast_loss"
    compares: ClassVar[bool] = True

    a: str
    b: str
    similarity: Literal["dot", "cosine"] = "dot"
    temperature: float = 1.0
    candidates: Literal["other", "all"] = "other"
    symmetric: bool = False
    extra_negatives: tuple[str, ...] = ()
    extra_positives: tuple[str, ...] = ()

    @property
    def vectors_of(self) -> tuple[str, ...]:
        """Both sides, and what is added to them."""
        return self.a, self.b, *self.extra_negatives, *self.extra_positives


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
    title: Literal["none", "join", "sep", "segment"] = "none"
    crop: Literal["head", "random"] | None = None
    pooling: Literal["cls", "mean"] = "cls"

    def slots_of(self, objective: Objective) -> list[str]:
        """Slots an objective looks at."""
        return [*objective.tokens_of, *objective.vectors_of]

    def without(self, names: Iterable[str]) -> Composition:
        """Without some objectives, by their names or groups, and whatever nobody asks for then.

        Raises UsageError where there is no such objective, or nothing is left.
        """
        known = {each for objective in self.objectives for each in (objective.name, objective.group) if each}
        unwanted = set(names)
        for name in unwanted - known:
            raise UsageError(f"--drop {name}: no objective or group is called that; {choices(known)}")
        kept = tuple(each for each in self.objectives if not {each.name, each.group} & unwanted)
        if not kept:
            raise UsageError("--drop: nothing is left to train on")
        asked = {each.projector for each in kept}
        projectors = {name: each for name, each in self.projectors.items() if name in asked}
        return replace(self, objectives=kept, projectors=projectors).economical()

    def economical(self) -> Composition:
        """Without slots that nobody looks at, and a frozen generator that no slot asks."""
        slots = self._needed(self.objectives)
        asked = any(slot.corruption in GENERATED for slot in slots.values())
        frozen = self.generator is not None and self.generator.mode == "frozen"
        return replace(self, slots=slots, generator=None if frozen and not asked else self.generator)

    def _needed(self, objectives: Sequence[Objective]) -> dict[str, Slot]:
        wanted = {name for objective in objectives for name in self.slots_of(objective)}
        wanted |= {name for each in self.projectors.values() for name in each.slots}
        if self.generator is not None and self.generator.mode == "joint":
            wanted.add(self.generator.slot)
        while more := {self.slots[name].of for name in wanted} - wanted - {""}:
            wanted |= more
        return {name: slot for name, slot in self.slots.items() if name in wanted}


def choices(names: Iterable[str]) -> str:
    """How names that could have been meant are told."""
    found = sorted(names)
    return f"choose from {', '.join(found)}" if found else "there are none"
