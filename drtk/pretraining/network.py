"""The network of a composition and its forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from drtk.losses.language import token_losses_sum
from drtk.models.encoder import pool
from drtk.pretraining.batch import Batch, SlotBatch
from drtk.pretraining.composition import Composition, Contrast, Corruption, Generator, Objective, Recover
from drtk.registry import load_attribute

if TYPE_CHECKING:
    from drtk.models.backbone import Anatomy


class Projector(nn.Module):
    """Vectors to vectors of the same width, used in training only.

    kind: "bn" is Linear(H, 2H) - batch norm - ReLU - Linear(2H, H) - batch norm without scale and shift, the linear layers
    without bias (2,362,368 parameters for H = 768); "tanh" is Linear(H, H) - tanh; "none" changes nothing.
    Statistics are those of all rows of a call, so both views go through in one; several devices share them after
    `SyncBatchNorm.convert_sync_batchnorm`. Weights are drawn normal(0, .02) from torch's generator.
    """

    def __init__(self, width: int, *, kind: Literal["bn", "tanh", "none"] = "bn") -> None:
        super().__init__()
        parts: dict[str, list[nn.Module]] = {
            "bn": [
                nn.Linear(width, 2 * width, bias=False),
                nn.BatchNorm1d(2 * width),
                nn.ReLU(),
                nn.Linear(2 * width, width, bias=False),
                nn.BatchNorm1d(width, affine=False),
            ],
            "tanh": [nn.Linear(width, width), nn.Tanh()],
            "none": [],
        }
        self.layers = nn.Sequential(*parts[kind])
        with torch.no_grad():
            for layer in self.layers:
                if isinstance(layer, nn.Linear):
                    layer.weight.normal_(0.0, 0.02)
                    if layer.bias is not None:
                        layer.bias.zero_()

    def forward(self, vectors: Tensor) -> Tensor:
        """(N, H) to (N, H)"""
        projected: Tensor = self.layers(vectors)
        return projected


def filled(slot: SlotBatch, corruption: Corruption, generator: Any, wanted: Generator) -> Tensor:
    """The ids of a slot, (batch, tokens), with the generator's tokens where its corruption wants them.

    Padding and the first token stay; of the other special ones what stands between or after texts does not, where the generator
    is to fill everything: released DiffCSE replaces [SEP] too (methods: section 5.10). Of insertions the inserted tokens alone are filled, whatever the generator's scope.
    """
    if corruption not in ("replaced", "inserted", "any") or slot.noise is None:
        return slot.given
    scope = "masked" if corruption == "inserted" else wanted.scope
    with torch.no_grad():
        found: Tensor = generator.fill(
            slot.given,
            slot.attention,
            slot.hidden,
            noise=slot.noise,
            decode=wanted.decode,
            scope=scope,
            types=slot.types,
        )
    kept = ~slot.attention.bool()
    kept[:, 0] = True
    if corruption == "any" and slot.edited is not None:  # rows with insertions or deletions, where scope was "all"
        kept = kept | ((slot.edited >= 0) & ~slot.hidden)
    return torch.where(kept, slot.given, found)


class SlotView:
    """A slot as a reader sees it."""

    def __init__(self, views: Views, name: str) -> None:
        self._views, self._name = views, name
        self.slot: SlotBatch = views.batch[name]

    @property
    def ids(self) -> Tensor:
        """(batch, tokens), replaced where they are to be."""
        return self._views.ids(self._name)

    @property
    def clean_ids(self) -> Tensor:
        """(batch, tokens), the tokens as they were."""
        return self.slot.clean

    @property
    def attention(self) -> Tensor:
        """(batch, tokens), 0 at padding."""
        return self.slot.attention

    @property
    def types(self) -> Tensor | None:
        """(batch, tokens), token types; None where all are 0."""
        return self.slot.types

    @property
    def anatomy(self) -> Anatomy:
        """The encoder's parts."""
        return self._views.network.anatomy

    def states(self) -> list[Tensor]:
        """The encoder's states of this slot, embeddings first; (batch, tokens, hidden) each."""
        return self._views.states(self._name)

    def visibility(self, rate: float) -> Tensor:
        """(batch, tokens, tokens): which position may look at which; drawn where the batch was made."""
        assert self.slot.visible is not None, rate
        return self.slot.visible


class Views:
    """A batch with what the network makes of it, each once."""

    def __init__(self, batch: Batch, network: Network) -> None:
        self.batch, self.network = batch, network
        self._ids: dict[str, Tensor] = {}
        self._states: dict[str, list[Tensor]] = {}
        self._vectors: dict[str, Tensor] = {}
        self._projected: dict[str, dict[str, Tensor]] = {}

    def given(self, name: str, *, vector: Tensor) -> None:
        """Take a slot's vector from elsewhere, (batch, hidden): a term on vectors that exist already."""
        self._vectors[name] = vector

    def view(self, name: str) -> SlotView:
        """A slot as a reader sees it."""
        return SlotView(self, name)

    def ids(self, name: str) -> Tensor:
        """What is looked at, (batch, tokens): masked tokens replaced where the slot says so."""
        if name not in self._ids:
            self._ids[name] = self.network.filled(self.batch[name], name)
        return self._ids[name]

    def states(self, name: str) -> list[Tensor]:
        """States after the embeddings and after each layer, (batch, tokens, hidden) each."""
        if name not in self._states:
            slot = self.batch[name]
            self._states[name] = self.network.anatomy.encode(self.ids(name), slot.attention, slot.types)
        return self._states[name]

    def vector(self, name: str) -> Tensor:
        """The bottleneck of a slot, (batch, hidden)."""
        if name not in self._vectors:
            self._vectors[name] = self.network.pooled(self.states(name)[-1], self.batch[name])
        return self._vectors[name]

    def projected(self, projector: str, name: str) -> Tensor:
        """The bottleneck through a projector that sees the rows of all its slots together, (batch, hidden)."""
        if projector not in self._projected:
            slots = self.network.composition.projectors[projector].slots
            rows = torch.cat([self.vector(each) for each in slots])
            parts = self.network.projectors[projector](rows).chunk(len(slots))
            self._projected[projector] = dict(zip(slots, parts, strict=True))
        return self._projected[projector][name]

    def source(self, projector: str, name: str) -> Tensor:
        """A slot's vector, projected where a projector is named."""
        return self.projected(projector, name) if projector else self.vector(name)


def moved(batch: Mapping[str, Any], device: torch.device) -> Batch:
    """The batch on a device."""
    return {name: slot.to(device) for name, slot in batch.items()}


GENERATOR_TERM = "generator"
Sums = dict[str, Tensor]


class Outcome(NamedTuple):
    """What a forward pass gives.

    terms: objective -> (), divided by its count already where that was given; unweighted
    facts: name -> (2,): a sum and what it is divided by, for the log
    """

    terms: Sums
    facts: Sums


class Network(nn.Module):
    """Encoder, heads, readers, projectors and generator of a composition.

    anatomy: the encoder's parts; head: its masked-LM head; generator: None, or what proposes tokens
    dull: (vocabulary,) bool, True at pieces that are stop words or punctuation, for the log
    """

    def __init__(
        self,
        composition: Composition,
        *,
        backbone: nn.Module,
        anatomy: Any,
        head: nn.Module,
        recoveries: Mapping[str, nn.Module],
        projectors: Mapping[str, nn.Module],
        generator: Any = None,
        dull: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.composition = composition
        self.backbone, self.anatomy = backbone, anatomy
        self.head: Any = head
        self.recoveries = nn.ModuleDict(recoveries)
        self.projectors = nn.ModuleDict(projectors)
        joint = composition.generator is not None and composition.generator.mode == "joint"
        self.generator: Any
        if joint:
            self.generator = generator
        else:  # kept out of the parameters: it is neither trained nor saved
            object.__setattr__(self, "generator", generator)
        self._joint = joint
        self.dull: Tensor | None
        self.register_buffer("dull", dull, persistent=False)

    @property
    def weights(self) -> dict[str, float]:
        """What each term counts in the sum."""
        found = {objective.name: objective.weight for objective in self.composition.objectives}
        if self._joint and self.composition.generator is not None:
            found[GENERATOR_TERM] = self.composition.generator.weight
        return found

    def train(self, mode: bool = True) -> Network:
        """As usual, but a generator never drops anything out while it proposes (methods: section 5.6)."""
        super().train(mode)
        if self.generator is not None and not self._joint:
            self.generator.eval()
        return self

    def summed(self) -> Iterator[tuple[str, Any]]:
        """The terms that are sums over tokens, by name."""
        yield from self.recoveries.items()

    @property
    def contrasted(self) -> list[str]:
        """Slots whose vectors are compared over the batch, in the order they are encoded in."""
        found: list[str] = []
        for objective in self.composition.objectives:
            if objective.compares:
                found += [name for name in objective.vectors_of if name not in found]
        return found

    def counts(self, batch: Batch) -> Sums:
        """Labelled positions of each recovering term in a batch, ()."""
        found = {name: recovery.count(batch) for name, recovery in self.summed()}
        if self._joint and self.composition.generator is not None:
            slot = batch[self.composition.generator.slot]
            found[GENERATOR_TERM] = (slot.hidden & slot.present[:, None]).sum().float()
        return found

    def filled(self, slot: SlotBatch, name: str) -> Tensor:
        """What a reader sees of a slot, (batch, tokens): the generator's tokens where there were masks."""
        wanted = self.composition.generator
        if wanted is None or self.generator is None:
            return slot.given
        return filled(slot, self.composition.slots[name].corruption, self.generator, wanted)

    def pooled(self, hidden: Tensor, slot: SlotBatch) -> Tensor:
        """The bottleneck, (batch, hidden)."""
        if self.composition.pooling == "cls":
            return hidden[:, 0]
        return pool(hidden, slot.attention, (self.composition.pooling,))

    def vectors(self, batch: Batch) -> dict[str, Tensor]:
        """Bottlenecks that are compared over the batch, by `compared_as`, (batch, hidden) each; through projectors where named."""
        return self._compared(Views(batch, self))

    def _compared(self, views: Views) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for objective in self.composition.objectives:
            if objective.compares:
                for name in objective.vectors_of:
                    found[compared_as(objective, name)] = views.source(objective.projector, name)
        return found

    def forward(self, batch: Batch, counts: Sums | None = None, *, compared: bool = False) -> Any:
        """The recovering terms of a batch, and the vectors to be compared: (Outcome, vectors).

        counts: what each term's sum is divided by, of all parts and processes together; sums are given without it
        compared: the vectors alone
        """
        views = Views(batch, self)
        vectors = self._compared(views)  # first, so that their dropout does not depend on what else is computed
        if compared:
            return vectors
        terms: Sums = {}
        for name, recovery in self.summed():
            total = recovery(views)
            terms[name] = total if counts is None else recovery.reduced(total, counts[name])
        if self._joint and self.composition.generator is not None:
            total = self._proposing(batch[self.composition.generator.slot])
            terms[GENERATOR_TERM] = total if counts is None else total / counts[GENERATOR_TERM].clamp(min=1)
        return Outcome(terms, self._facts(views)), vectors

    def _proposing(self, slot: SlotBatch) -> Tensor:
        """The sum of a joint generator's losses on what is masked (methods: section 5.6), ()."""
        where = slot.hidden & slot.present[:, None]
        head = self.generator.head
        features = self.generator.features(slot.given, slot.attention, where, slot.types)
        return token_losses_sum(features, head.weight, head.bias, slot.clean[where])

    @torch.no_grad()
    def _facts(self, views: Views) -> Sums:
        """Shares worth watching: tokens that were really replaced, and stop words among what is masked."""
        facts: Sums = {}
        for name, wanted in self.composition.slots.items():
            slot = views.batch[name]
            if wanted.corruption == "replaced":
                changed = ((views.ids(name) != slot.clean) & slot.content).sum()
                facts[f"{name}_replaced"] = torch.stack([changed, slot.content.sum()]).float()
            hides = wanted.masking != "none" and wanted.corruption not in ("inserted", "deleted", "any")
            if hides and self.dull is not None:
                dull = (self.dull[slot.clean] & slot.hidden).sum()
                facts[f"{name}_stop_words"] = torch.stack([dull, slot.hidden.sum()]).float()
        return facts


def compared_terms(composition: Composition, vectors: dict[str, Tensor], present: dict[str, Tensor]) -> Sums:
    """The terms that compare vectors, of a whole batch, () each; vectors (by `compared_as`) and present (by slot) of all processes."""
    terms: Sums = {}
    for objective in composition.objectives:
        if objective.compares:
            own = {name: vectors[compared_as(objective, name)] for name in objective.vectors_of}
            terms[objective.name] = load_attribute(objective.computed_by)(objective, own, present)
    return terms


def without_rivals(composition: Composition, present: dict[str, Tensor]) -> list[str]:
    """Contrasts that ask nothing of a batch, since a partner is the only candidate: one row alone has both texts.

    present: (batch,) bool by slot, of all processes
    """
    found = []
    for objective in composition.objectives:
        if isinstance(objective, Contrast) and not objective.extra_negatives:
            both = present[objective.a] & present[objective.b]
            found += [objective.name] * (int(both.sum()) == 1)
    return found


def compared_as(objective: Objective, slot: str) -> str:
    """The name of a slot's vector as an objective compares it: two may compare one slot's with and without a projector."""
    return f"{objective.projector}({slot})" if objective.projector else slot


def recovering(composition: Composition) -> list[Recover]:
    """The objectives that have a reader and a target."""
    return [objective for objective in composition.objectives if isinstance(objective, Recover)]
