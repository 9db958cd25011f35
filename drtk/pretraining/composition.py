"""The parts of a pre-training composition: slots, readers, projectors, a generator, and objectives over them.

`parse.py` reads them from a preset's TOML and checks them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from drtk.errors import UsageError

Options = dict[str, Any]
Corruption = Literal["none", "mask", "bert", "replaced", "inserted", "deleted", "any"]
EDITS: tuple[Corruption, ...] = ("replaced", "inserted", "deleted")  # `any` is one of them
GENERATED: tuple[Corruption, ...] = ("replaced", "inserted", "any")  # they need a generator


@dataclass(frozen=True)
class Slot:
    """One reading of a text: a view, a masking and a corruption.

    view: one view, or several of which one is sampled by the `step` or the `example`; view_options: options of the views
    of: the slot whose mask this one extends or complements; both read the same view
    count: whether the rate counts special tokens too
    corruption: what replaces hidden tokens; any: an edit sampled for each example
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

    def room(self, max_length: int) -> int:
        """Return the number of tokens for its text, special tokens and the tokens to be inserted subtracted."""
        room = (self.max_length or max_length) - 2
        return int(room / (1 + self.rate)) if self.corruption in ("inserted", "any") else room


@dataclass(frozen=True)
class DecoderSpec:
    """The decoder of an objective: an entry of DECODERS and its options."""

    use: str
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class GeneratorSpec:
    """The masked language model that proposes replacement tokens.

    mode: frozen, or trained jointly with weight `weight` on the masked positions of slot `slot`
    init: start of a joint generator: its model, a copy of the encoder, or random weights in the model's shape
    reads: its input at masked positions: [MASK], or BERT's 80/10/10
    scope: replace masked positions, or all but the first
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
class ProjectorSpec:
    """A small network over the vectors of several slots together."""

    slots: tuple[str, ...]
    kind: Literal["bn", "tanh", "none"] = "bn"


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The keys of every [[objective]]. Each kind is a subclass, named in OBJECTIVES.

    implementation: place of what computes it (contract: drtk/pretraining/__init__.py)
    compares_vectors: it compares the vectors of the whole batch; otherwise it is a sum over tokens, which parts of a batch can add up
    use: its name in OBJECTIVES
    """

    implementation: ClassVar[str]
    compares_vectors: ClassVar[bool] = False

    projector: str = ""
    weight: float = 1.0
    use: str = ""
    name: str = ""
    group: str = ""

    @property
    def token_slots(self) -> tuple[str, ...]:
        """Slots whose tokens it predicts."""
        return ()

    @property
    def vector_slots(self) -> tuple[str, ...]:
        """Slots whose vectors it uses."""
        return ()

    @property
    def default_name(self) -> str:
        """Its name if the preset gives none."""
        return type(self).__name__.lower()


@dataclass(frozen=True)
class TokenObjective(Objective):
    """A reader predicts a target, an entry of TARGETS, at the positions of its slots, given the vectors of the sources."""

    implementation: ClassVar[str] = "drtk.pretraining.objectives:TokenLoss"

    reader: str
    slot: tuple[str, ...]
    source: tuple[str, ...] = ()
    target: str = "masked"
    reduction: Literal["mean", "mean_all", "sum"] = "mean"
    classes: Literal[1, 2] = 1

    @property
    def token_slots(self) -> tuple[str, ...]:
        return self.slot

    @property
    def vector_slots(self) -> tuple[str, ...]:
        return self.source

    @property
    def source_by_slot(self) -> tuple[str, ...]:
        """The source of each slot; () without sources."""
        return self.source * len(self.slot) if len(self.source) == 1 else self.source

    @property
    def default_name(self) -> str:
        return f"{self.slot[0]}_{self.target}"


@dataclass(frozen=True)
class ContrastiveObjective(Objective):
    """The vectors of two slots find each other among those of the batch.

    candidates: the vectors of the `other` slot, or `all` but the query itself; symmetric: b finds a too
    extra_negatives, extra_positives: further slots
    """

    implementation: ClassVar[str] = "drtk.pretraining.objectives:contrastive_loss"
    compares_vectors: ClassVar[bool] = True

    a: str
    b: str
    similarity: Literal["dot", "cosine"] = "dot"
    temperature: float = 1.0
    candidates: Literal["other", "all"] = "other"
    symmetric: bool = False
    extra_negatives: tuple[str, ...] = ()
    extra_positives: tuple[str, ...] = ()

    @property
    def vector_slots(self) -> tuple[str, ...]:
        return self.a, self.b, *self.extra_negatives, *self.extra_positives

    @property
    def default_name(self) -> str:
        return "contrast"


@dataclass(frozen=True)
class Composition:
    """A whole preset, checked.

    example: a row of the batch: a passage, or a document of which two passages are sampled
    title, crop: how passages are read unless a view says otherwise
    """

    slots: dict[str, Slot]
    objectives: tuple[Objective, ...]
    readers: dict[str, DecoderSpec] = field(default_factory=dict)
    projectors: dict[str, ProjectorSpec] = field(default_factory=dict)
    generator: GeneratorSpec | None = None
    example: Literal["passage", "document"] = "passage"
    title: Literal["none", "join", "sep", "segment"] = "none"
    crop: Literal["head", "random"] | None = None
    pooling: Literal["cls", "mean"] = "cls"

    @property
    def recovers(self) -> list[TokenObjective]:
        """The objectives that have a reader and a target."""
        return [each for each in self.objectives if isinstance(each, TokenObjective)]

    @property
    def joint_generator(self) -> GeneratorSpec | None:
        """The generator, if it is trained."""
        return self.generator if self.generator is not None and self.generator.mode == "joint" else None

    def without(self, names: Iterable[str]) -> Composition:
        """Drop objectives by name or group, and all parts that only they use.

        Raises UsageError for an unknown name, or if nothing is left.
        """
        known = {each for objective in self.objectives for each in (objective.name, objective.group) if each}
        unwanted = set(names)
        for name in unwanted - known:
            raise UsageError(f"`drop` {name}: no objective or group is called that; {format_choices(known)}")
        kept = tuple(each for each in self.objectives if not {each.name, each.group} & unwanted)
        if not kept:
            raise UsageError("`drop`: no objective is left to train on")
        used = {each.projector for each in kept}
        projectors = {name: each for name, each in self.projectors.items() if name in used}
        return replace(self, objectives=kept, projectors=projectors).without_unused()

    def without_unused(self) -> Composition:
        """Drop slots that no objective, projector or joint generator uses, and a frozen generator that no slot needs."""
        used = {name for each in self.objectives for name in (*each.token_slots, *each.vector_slots)}
        used |= {name for each in self.projectors.values() for name in each.slots}
        if self.joint_generator is not None:
            used.add(self.joint_generator.slot)
        while more := {self.slots[name].of for name in used} - used - {""}:
            used |= more
        slots = {name: slot for name, slot in self.slots.items() if name in used}
        is_needed = self.joint_generator is not None or any(slot.corruption in GENERATED for slot in slots.values())
        return replace(self, slots=slots, generator=self.generator if is_needed else None)


def format_choices(names: Iterable[str]) -> str:
    """Return "choose from …" for an error message."""
    names = sorted(names)
    return f"choose from {', '.join(names)}" if names else "there are none"
