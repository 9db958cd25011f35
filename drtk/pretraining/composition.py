"""A pre-training composition: slots, decoders, projectors, a generator and objectives.

`parse.py` parses it from a preset's TOML and checks it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from drtk.errors import UsageError

Options = dict[str, Any]
Corruption = Literal["none", "mask", "bert", "replaced", "inserted", "deleted", "any"]
EDITS: tuple[Corruption, ...] = ("replaced", "inserted", "deleted")  # "any" samples one of them
GENERATED: tuple[Corruption, ...] = ("replaced", "inserted", "any")  # need a generator


@dataclass(frozen=True)
class Slot:
    """An input text of the network: a view of the passage, with masking and corruption.

    view: one view, or several to sample from
    draw: sample the view once per "step" or per "example"
    masking: masking strategy    rate: share of tokens to mask
    of: the slot whose mask this one extends or complements; both must use the same view
    count: whether the rate refers to all tokens or excludes special tokens
    corruption: replacement of the masked tokens, or an edit; "any" samples an edit per example
    max_length: in tokens; None: that of the settings
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
        """Return the maximum length of the text itself, without special and inserted tokens."""
        room = (self.max_length or max_length) - 2
        return int(room / (1 + self.rate)) if self.corruption in ("inserted", "any") else room


@dataclass(frozen=True)
class DecoderSpec:
    """The decoder (`reader` in TOML) of an objective: a name in DECODERS and its options."""

    use: str
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class GeneratorSpec:
    """The generator, a masked language model that proposes replacement tokens.

    mode: "frozen", or trained "joint"ly on the masked positions of `slot`, with loss weight `weight`
    init: initial weights of a joint generator: those of `model`, a copy of the encoder, or random
    reads: its input at masked positions: [MASK], or BERT's 80/10/10 scheme
    scope: replace tokens at masked positions, or at all positions but the first
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
    """A projection head for the vectors of several slots."""

    slots: tuple[str, ...]
    kind: Literal["bn", "tanh", "none"] = "bn"


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Base class of the [[objective]] tables; the subclasses are named in OBJECTIVES.

    implementation: import path of the code that computes it (interface: drtk/pretraining/__init__.py)
    compares_vectors: whether it compares the vectors of the whole batch; otherwise it is a sum over tokens
    projector: projection head for its vectors; "": none
    use: its name in OBJECTIVES    group: name by which `drop` removes several objectives
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
        """Slots whose tokens are predicted."""
        return ()

    @property
    def vector_slots(self) -> tuple[str, ...]:
        """Slots whose vectors are used."""
        return ()

    @property
    def default_name(self) -> str:
        """The name of an objective without a name in the preset."""
        return type(self).__name__.lower()


@dataclass(frozen=True)
class TokenObjective(Objective):
    """A decoder predicts a target (a name in TARGETS) at the tokens of its slots, optionally given a vector.

    reader: name of the decoder    source: slots whose vectors the decoder gets
    reduction: mean over labels, mean over padding too, or sum    classes: outputs of target "edited"
    """

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
        """The source of each slot; () if there are none."""
        return self.source * len(self.slot) if len(self.source) == 1 else self.source

    @property
    def default_name(self) -> str:
        return f"{self.slot[0]}_{self.target}"


@dataclass(frozen=True)
class ContrastiveObjective(Objective):
    """A contrastive loss between the vectors of slots `a` and `b`, with in-batch negatives.

    candidates: the vectors of the "other" slot, or "all" vectors of both slots except the query itself
    symmetric: average the losses of both directions
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
    """A complete composition: the model and the objectives of a pre-training.

    example: an example is a passage, or a document from which two passages are sampled
    title, crop: defaults of the options of views
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
        """The objectives with a decoder and a target."""
        return [objective for objective in self.objectives if isinstance(objective, TokenObjective)]

    @property
    def joint_generator(self) -> GeneratorSpec | None:
        """The generator if it is trained jointly, else None."""
        return self.generator if self.generator is not None and self.generator.mode == "joint" else None

    def without(self, names: Iterable[str]) -> Composition:
        """Return a copy without some objectives, by name or group, and without the parts that only they use.

        Raises UsageError for an unknown name, or if no objective is left.
        """
        known = {label for objective in self.objectives for label in (objective.name, objective.group) if label}
        unwanted = set(names)
        for name in unwanted - known:
            raise UsageError(f"`drop` {name}: unknown objective or group; {format_choices(known)}")
        kept = tuple(objective for objective in self.objectives if not {objective.name, objective.group} & unwanted)
        if not kept:
            raise UsageError("`drop`: removes all objectives; keep at least one")
        used = {objective.projector for objective in kept}
        projectors = {name: each for name, each in self.projectors.items() if name in used}
        return replace(self, objectives=kept, projectors=projectors).without_unused()

    def without_unused(self) -> Composition:
        """Return a copy without unused slots and without an unused frozen generator."""
        used = {name for objective in self.objectives for name in (*objective.token_slots, *objective.vector_slots)}
        used |= {name for projector in self.projectors.values() for name in projector.slots}
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
