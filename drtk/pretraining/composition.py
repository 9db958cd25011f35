"""A pre-training composition: slots, decoders, projectors, a generator and objectives.

A slot is an input text of the encoder: a view (a text of a corpus row, such as the passage or a span of it), masked and corrupted.
An objective is a loss on the tokens or text vectors of slots. `parse.py` parses and checks the composition in a preset's TOML.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from drtk.errors import UsageError

Options = dict[str, Any]
Corruption = Literal["none", "mask", "bert", "replaced", "inserted", "deleted", "any"]
EDITS: tuple[Corruption, ...] = ("replaced", "inserted", "deleted")  # corruption "any" samples one of the three
GENERATED: tuple[Corruption, ...] = ("replaced", "inserted", "any")  # corruptions that require a generator


@dataclass(frozen=True)
class Slot:
    """An input text of the encoder: a view of a corpus row, with masking and corruption.

    view: VIEW or VIEW.KEY, such as "passage" or "pair.a"; of several, one is sampled
    draw: sample one of several views for each "step" or for each "example"
    masking: name of the masking strategy    rate: share of tokens to mask, insert or delete
    of: name of the slot whose mask this slot extends or complements; both slots must use the same view
    count: `rate` is a share of all tokens ("with-specials"), or of all but special tokens ("content")
    corruption: replacement of the masked tokens (see `corrupt_tokens`), or "inserted" or "deleted" tokens; "any"
        samples one of EDITS per example
    max_length: maximum length in tokens, including special tokens; None: `max_length` of PretrainSettings
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

    def compute_max_text_length(self, max_length: int) -> int:
        """Return the maximum length of the original text in tokens, without special and inserted tokens.

        max_length: maximum input length in tokens, if the slot sets none
        """
        length = (self.max_length or max_length) - 2
        return int(length / (1 + self.rate)) if self.corruption in ("inserted", "any") else length


@dataclass(frozen=True)
class DecoderSpec:
    """The decoder of an objective. use: name in the registry DECODERS    options: its arguments"""

    use: str
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class GeneratorSpec:
    """The generator, a masked language model that proposes replacement tokens.

    model: model folder or hub name
    mode: "frozen", or "joint": trained on the masked positions of `slot`, with loss weight `weight`
    init: initial weights of a joint generator: those of `model`, or "random"
    reads: input of the generator at masked positions: [MASK] ("mask"), or BERT's 80/10/10 scheme ("bert")
    decode: "sample" from the generator's distribution, or take the most likely token ("argmax")
    scope: replace tokens at "masked" positions, or at "all" positions but the first
    """

    model: str = ""
    mode: Literal["frozen", "joint"] = "frozen"
    init: Literal["model", "random"] = "model"
    weight: float = 0.2
    slot: str = ""
    reads: Literal["mask", "bert"] = "mask"
    decode: Literal["sample", "argmax"] = "sample"
    scope: Literal["masked", "all"] = "masked"


@dataclass(frozen=True)
class ProjectorSpec:
    """A projection head. slots: names of the slots whose vectors it projects    kind: see Projector in network.py"""

    slots: tuple[str, ...]
    kind: Literal["bn", "tanh", "none"] = "bn"


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A loss of a composition, an [[objective]] table of a preset. The registry OBJECTIVES lists the subclasses.

    implementation: import path of the code that computes the loss (interface: drtk/pretraining/__init__.py)
    compares_vectors: whether the loss compares the text vectors of the whole batch; else a sum or mean over tokens
    projector: name of the projection head for the text vectors; "": none    weight: factor of the loss
    use: name in OBJECTIVES    group: name by which `drop` removes several objectives together
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
        """Names of the slots whose tokens are predicted."""
        return ()

    @property
    def vector_slots(self) -> tuple[str, ...]:
        """Names of the slots whose text vectors are used."""
        return ()

    @property
    def default_name(self) -> str:
        """Name of the objective if the preset does not name it."""
        return self.use


@dataclass(frozen=True)
class TokenObjective(Objective):
    """An objective in which a decoder predicts a target at the tokens of slots, optionally conditioned on a text vector.

    decoder: name of the decoder    slot: slots whose tokens are predicted    target: name in the registry TARGETS
    source: slots whose text vectors condition the decoder: one for all of `slot`, or one for each; (): no text vector
    reduction: mean over labels ("mean"), mean over labels and padding ("mean_all"), or "sum"
    classes: number of logits per token for target "edited": 1 (SimLM) or 2 (DiffCSE)
    """

    implementation: ClassVar[str] = "drtk.pretraining.objectives:TokenLoss"

    decoder: str
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
        """For each slot in `slot`, the slot whose text vector conditions the decoder; () without text vectors."""
        return self.source * len(self.slot) if len(self.source) == 1 else self.source

    @property
    def default_name(self) -> str:
        return f"{self.slot[0]}_{self.target}"


@dataclass(frozen=True)
class ContrastiveObjective(Objective):
    """A contrastive loss between the vectors of slots `a` and `b`, with in-batch negatives.

    candidates: compare a query with the vectors of the "other" slot, or with "all" vectors of both slots except its own
    symmetric: average the losses with `a` as queries and with `b` as queries; False: only `a` as queries
    extra_negatives, extra_positives: names of slots whose vectors are additional negatives or positives
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


@dataclass(frozen=True)
class Composition:
    """A complete composition: slots, decoders, projectors, generator and objectives of a pre-training, by name.

    decoders: decoders by name    example: an example is a "passage", or a "document" from which two passages are sampled
    title, crop: default values of the view options of the same name; `crop` None: the default of the view
    pooling: pooling of token vectors to text vectors
    """

    slots: dict[str, Slot]
    objectives: tuple[Objective, ...]
    decoders: dict[str, DecoderSpec] = field(default_factory=dict)
    projectors: dict[str, ProjectorSpec] = field(default_factory=dict)
    generator: GeneratorSpec | None = None
    example: Literal["passage", "document"] = "passage"
    title: Literal["none", "join", "sep", "segment"] = "none"
    crop: Literal["head", "random"] | None = None
    pooling: Literal["cls", "mean"] = "cls"

    @property
    def token_objectives(self) -> list[TokenObjective]:
        """The objectives that have a decoder and a target."""
        return [objective for objective in self.objectives if isinstance(objective, TokenObjective)]

    @property
    def joint_generator(self) -> GeneratorSpec | None:
        """The generator if it is trained jointly, otherwise None."""
        return self.generator if self.generator is not None and self.generator.mode == "joint" else None

    def drop_objectives(self, names: Iterable[str]) -> Composition:
        """Return a copy without the named objectives or groups.

        Projectors, slots and a frozen generator that become unused are also removed.

        Raises UsageError for an unknown name, or if no objective remains.
        """
        known = {label for objective in self.objectives for label in (objective.name, objective.group) if label}
        unwanted = set(names)
        for name in unwanted - known:
            raise UsageError(f"`drop` {name}: unknown objective or group; {format_choices(known)}")
        kept = tuple(objective for objective in self.objectives if not {objective.name, objective.group} & unwanted)
        if not kept:
            raise UsageError("`drop` removes all objectives; keep at least one")
        used = {objective.projector for objective in kept}
        projectors = {name: projector for name, projector in self.projectors.items() if name in used}
        return replace(self, objectives=kept, projectors=projectors).drop_unused()

    def drop_unused(self) -> Composition:
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
    """Return the advice "choose from NAME, NAME, …" for an error message; "define one" if there are no names."""
    names = sorted(names)
    return f"choose from {', '.join(names)}" if names else "define one"
