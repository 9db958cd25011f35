"""An encoder with everything a composition adds to it, and the forward pass of a training step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from drtk.losses.language import token_losses_sum
from drtk.models.pooling import pool
from drtk.objectives.batch import Batch, SlotBatch
from drtk.objectives.filling import filled
from drtk.objectives.views import Views
from drtk.registry import placed
from drtk.settings.composition import Composition, Contrast, Objective, Recover

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
            terms[objective.name] = placed(objective.computed_by)(objective, own, present)
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
