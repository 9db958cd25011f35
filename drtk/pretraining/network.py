"""The network of a composition and its forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from drtk.losses.language import token_losses_sum
from drtk.pretraining.batch import Batch, SlotBatch
from drtk.pretraining.composition import Composition, Contrast, Objective
from drtk.pretraining.encoded_batch import EncodedBatch
from drtk.registry import load_attribute

GENERATOR_TERM = "generator"
Sums = dict[str, Tensor]


class NetworkOutput(NamedTuple):
    """The result of a forward pass.

    terms: the token losses by objective, () each, unweighted; divided by their counts if those were given
    facts: sums for the log, (2,) each: a sum and its denominator
    vectors: those to compare over the batch, (batch, hidden) by `vector_key`
    """

    terms: Sums
    facts: Sums
    vectors: Sums


class Network(nn.Module):
    """Encoder, heads, readers, projectors and generator of a composition.

    anatomy: the encoder's parts    head: its masked-LM head    recoveries: the token losses by objective
    stop_words: (vocabulary,) bool, True at stop words and punctuation, for the log
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
        stop_words: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.composition = composition
        self.backbone, self.anatomy = backbone, anatomy
        self.head: Any = head
        self.recoveries: Any = nn.ModuleDict(recoveries)
        self.projectors = nn.ModuleDict(projectors)
        self._joint = composition.joint_generator
        self.generator: Any
        if self._joint is not None:
            self.generator = generator
        else:  # kept out of the parameters: it is neither trained nor saved
            object.__setattr__(self, "generator", generator)
        self.stop_words: Tensor | None
        self.register_buffer("stop_words", stop_words, persistent=False)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each term."""
        weights = {objective.name: objective.weight for objective in self.composition.objectives}
        return weights | ({} if self._joint is None else {GENERATOR_TERM: self._joint.weight})

    def train(self, mode: bool = True) -> Network:
        """Set the mode; a frozen generator stays in evaluation mode (methods: section 5.6)."""
        super().train(mode)
        if self.generator is not None and self._joint is None:
            self.generator.eval()
        return self

    @property
    def compared_slots(self) -> list[str]:
        """Slots whose vectors are compared over the batch, in the order they are encoded in."""
        compares = [each for each in self.composition.objectives if each.compares]
        return [*dict.fromkeys(name for objective in compares for name in objective.vectors_of)]

    def counts(self, batch: Batch) -> Sums:
        """Count the labeled positions of each token loss in a batch, ()."""
        counts = {name: recovery.count(batch) for name, recovery in self.recoveries.items()}
        if self._joint is not None:
            counts[GENERATOR_TERM] = _masked_positions(batch[self._joint.slot]).sum().float()
        return counts

    def encode(self, batch: Batch, vectors: Mapping[str, Tensor] | None = None) -> EncodedBatch:
        """Return the batch with lazily computed states and vectors. vectors: those that exist already, by slot"""
        return EncodedBatch(
            batch,
            self.composition,
            anatomy=self.anatomy,
            projectors=self.projectors,
            generator=self.generator,
            vectors=vectors,
        )

    def compared_vectors(self, encoded: EncodedBatch) -> Sums:
        """Return the vectors to compare over the batch, (batch, hidden) by `vector_key`."""
        return {
            vector_key(objective, name): encoded.vector(name, objective.projector)
            for objective in self.composition.objectives
            if objective.compares
            for name in objective.vectors_of
        }

    def forward(self, batch: Batch, counts: Sums | None = None, *, only_vectors: bool = False) -> NetworkOutput:
        """Compute the token losses of a batch and the vectors to compare.

        counts: divisors of the sums, over all parts and processes; without them, the terms are sums
        """
        encoded = self.encode(batch)
        vectors = self.compared_vectors(encoded)  # first, so that their dropout does not depend on the terms
        terms: Sums = {}
        if only_vectors:
            return NetworkOutput(terms, {}, vectors)
        for name, recovery in self.recoveries.items():
            total = recovery(encoded)
            terms[name] = total if counts is None else recovery.reduce(total, counts[name])
        if self._joint is not None:
            total = self._generator_loss(batch[self._joint.slot])
            terms[GENERATOR_TERM] = total if counts is None else total / counts[GENERATOR_TERM].clamp(min=1)
        return NetworkOutput(terms, self._facts(encoded), vectors)

    def _generator_loss(self, slot: SlotBatch) -> Tensor:
        """Return the sum of a joint generator's losses at masked positions (methods: section 5.6), ()."""
        where, head = _masked_positions(slot), self.generator.head
        features = self.generator.features(slot.given, slot.attention, where, slot.types)
        return token_losses_sum(features, head.weight, head.bias, slot.clean[where])

    @torch.no_grad()
    def _facts(self, encoded: EncodedBatch) -> Sums:
        """Count the tokens that were really replaced, and the stop words among masked tokens."""
        facts: Sums = {}
        for name, slot in self.composition.slots.items():
            tokens = encoded.batch[name]
            if slot.corruption == "replaced":
                changed = ((encoded.ids(name) != tokens.clean) & tokens.content).sum()
                facts[f"{name}_replaced"] = torch.stack([changed, tokens.content.sum()]).float()
            is_masked = slot.masking != "none" and slot.corruption not in ("inserted", "deleted", "any")
            if is_masked and self.stop_words is not None:
                stop_words = (self.stop_words[tokens.clean] & tokens.hidden).sum()
                facts[f"{name}_stop_words"] = torch.stack([stop_words, tokens.hidden.sum()]).float()
        return facts


def _masked_positions(slot: SlotBatch) -> Tensor:
    return slot.hidden & slot.present[:, None]


def compute_batch_terms(composition: Composition, vectors: Sums, present: Sums) -> Sums:
    """Compute the terms that compare vectors, () each, from the whole batch of all processes.

    vectors: by `vector_key`; present: (batch,) bool by slot
    """
    return {
        objective.name: load_attribute(objective.computed_by)(
            objective, {name: vectors[vector_key(objective, name)] for name in objective.vectors_of}, present
        )
        for objective in composition.objectives
        if objective.compares
    }


def contrasts_without_negatives(composition: Composition, present: Sums) -> list[str]:
    """Return the names of contrasts that have a single candidate in this batch, so that their loss is 0.

    present: (batch,) bool by slot, of all processes
    """
    return [
        objective.name
        for objective in composition.objectives
        if isinstance(objective, Contrast)
        and not objective.extra_negatives
        and int((present[objective.a] & present[objective.b]).sum()) == 1
    ]


def vector_key(objective: Objective, slot: str) -> str:
    """Return the name of a slot's vector, with the projector that an objective puts it through."""
    return f"{objective.projector}({slot})" if objective.projector else slot
