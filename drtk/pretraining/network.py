"""The network of a composition and its forward pass over a batch.

Slots and objectives are defined in `composition.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from drtk.losses.language import linear_cross_entropy
from drtk.models.encoder import pool
from drtk.pretraining.composition import Composition, Objective
from drtk.pretraining.dataset import Batch, SlotBatch
from drtk.pretraining.decoders import DecoderInput
from drtk.pretraining.token_generator import fill_masks
from drtk.registry import load_attribute

GENERATOR_LOSS = "generator"
Tensors = dict[str, Tensor]  # by name


class PretrainingOutput(NamedTuple):
    """The output of a forward pass.

    losses: {objective name, or GENERATOR_LOSS: token loss, a scalar}, unweighted, reduced as the objective says
    statistics: {name: (numerator, denominator) of a share for the log, (2,)}
    vectors: {key of `build_vector_key`: text vectors of a slot, (batch, hidden)}, for contrastive losses
    """

    losses: Tensors
    statistics: Tensors
    vectors: Tensors


class Projector(nn.Module):
    """A projection head, (N, H) to (N, H), used in training only.

    kind: "bn": Linear(H, 2H), batch norm, ReLU, Linear(2H, H), batch norm without scale and shift; linear layers without
            bias (2,362,368 parameters for H = 768)
        "tanh": Linear(H, H), tanh
        "none": identity
    Batch norm uses all rows of a call, so the slots of a projector are projected together. Initial weights: normal(0, 0.02).
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
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, 0.0, 0.02)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the projected vectors, (N, H). vectors: (N, H)"""
        return self.layers(vectors)


class PretrainingNetwork(nn.Module):
    """All modules of a composition: encoder, masked-LM head, decoders, projectors and generator.

    adapter: adapter of the encoder    head: masked-LM head of the encoder
    token_losses: {objective name: TokenLoss, which contains the decoder}
    stop_words: (vocabulary,) bool, True at stop words and punctuation, to log their share of masked tokens; None: no log
    """

    def __init__(
        self,
        composition: Composition,
        *,
        backbone: nn.Module,
        adapter: Any,
        head: nn.Module,
        token_losses: Mapping[str, nn.Module],
        projectors: Mapping[str, nn.Module],
        generator: Any = None,
        stop_words: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.composition = composition
        self.backbone, self.adapter = backbone, adapter
        self.head: Any = head
        self.recoveries: Any = nn.ModuleDict(token_losses)  # the attribute name is part of saved weight names
        self.projectors = nn.ModuleDict(projectors)
        self._joint = composition.joint_generator
        self.generator: Any
        if self._joint is not None:
            self.generator = generator
        else:  # not registered as a submodule: it is neither trained nor saved
            object.__setattr__(self, "generator", generator)
        self.stop_words: Tensor | None
        self.register_buffer("stop_words", stop_words, persistent=False)

    @property
    def loss_weights(self) -> dict[str, float]:
        """Weights of the losses by objective name, and of the loss of a joint generator by GENERATOR_LOSS."""
        weights = {objective.name: objective.weight for objective in self.composition.objectives}
        return weights | ({} if self._joint is None else {GENERATOR_LOSS: self._joint.weight})

    @property
    def contrastive_slots(self) -> list[str]:
        """Names of the slots whose vectors contrastive losses compare, in the order in which they are encoded."""
        objectives = [objective for objective in self.composition.objectives if objective.compares_vectors]
        return [*dict.fromkeys(name for objective in objectives for name in objective.vector_slots)]

    def count_labels(self, batch: Batch) -> Tensors:
        """Return {objective name, or GENERATOR_LOSS: number of labeled positions of its token loss in a batch, a scalar}."""
        counts = {name: token_loss.count_labels(batch) for name, token_loss in self.recoveries.items()}
        if self._joint is not None:
            counts[GENERATOR_LOSS] = _select_masked(batch[self._joint.slot]).sum().float()
        return counts

    def collect_vectors(self, encoded: EncodedBatch) -> Tensors:
        """Return the vectors for contrastive losses, {key of `build_vector_key`: (batch, hidden)}."""
        return {
            build_vector_key(objective, name): encoded.get_vectors(name, objective.projector)
            for objective in self.composition.objectives
            if objective.compares_vectors
            for name in objective.vector_slots
        }

    def forward(self, batch: Batch, counts: Tensors | None) -> PretrainingOutput:
        """Compute the token losses of a batch, and the vectors for contrastive losses.

        counts: result of `count_labels`, summed over all micro-batches and processes; None: compute the vectors only
        """
        encoded = EncodedBatch(self, batch)
        vectors = self.collect_vectors(encoded)  # first, so that their dropout does not depend on the token losses
        if counts is None:
            return PretrainingOutput({}, {}, vectors)
        losses = {
            name: token_loss.reduce(token_loss(encoded), counts[name]) for name, token_loss in self.recoveries.items()
        }
        if self._joint is not None:
            total = self._sum_generator_losses(batch[self._joint.slot])
            losses[GENERATOR_LOSS] = total / counts[GENERATOR_LOSS].clamp(min=1)
        return PretrainingOutput(losses, self._count_statistics(encoded), vectors)

    def _sum_generator_losses(self, slot: SlotBatch) -> Tensor:
        """Return the sum of a joint generator's losses at masked positions (docs/methods/simlm.md), a scalar."""
        where, head = _select_masked(slot), self.generator.head
        features = self.generator.compute_features(slot.input_ids, slot.attention, where, slot.types)
        return linear_cross_entropy(features, head.weight, head.bias, slot.original_ids[where])

    @torch.no_grad()
    def _count_statistics(self, encoded: EncodedBatch) -> Tensors:
        """Return {SLOT_replaced: (replaced, all tokens), SLOT_stop_words: (masked stop words, all masked)}, (2,)."""
        statistics: Tensors = {}
        for name, slot in self.composition.slots.items():
            tokens = encoded.batch[name]
            if slot.corruption == "replaced":
                changed = ((encoded.get_ids(name) != tokens.original_ids) & tokens.content).sum()
                statistics[f"{name}_replaced"] = torch.stack([changed, tokens.content.sum()]).float()
            is_masked = slot.masking != "none" and slot.corruption not in ("inserted", "deleted", "any")
            if is_masked and self.stop_words is not None:
                stop_words = (self.stop_words[tokens.original_ids] & tokens.masked).sum()
                statistics[f"{name}_stop_words"] = torch.stack([stop_words, tokens.masked.sum()]).float()
        return statistics


class EncodedBatch:
    """A batch with the token ids, hidden states and text vectors of its slots (encoder inputs), computed when first used.

    vectors: precomputed text vectors, {slot name: (batch, hidden)}
    """

    def __init__(self, network: PretrainingNetwork, batch: Batch, vectors: Mapping[str, Tensor] | None = None) -> None:
        self.network, self.batch = network, batch
        self._ids: dict[str, Tensor] = {}
        self._states: dict[str, list[Tensor]] = {}
        self._vectors: dict[str, Tensor] = dict(vectors or {})
        self._projected: dict[str, dict[str, Tensor]] = {}

    def build_decoder_input(self, name: str) -> DecoderInput:
        """Return the decoder input for slot `name`: its token ids, attention masks and lazily computed encoder states."""
        slot = self.batch[name]
        return DecoderInput(
            adapter=self.network.adapter,
            ids=self.get_ids(name),
            original_ids=slot.original_ids,
            attention=slot.attention,
            types=slot.types,
            get_states=lambda: self.get_states(name),
            attention_mask=slot.attention_mask,
        )

    def get_ids(self, name: str) -> Tensor:
        """Return the input ids of the slot `name`, (batch, tokens), with the replacement tokens of the generator."""
        if name not in self._ids:
            self._ids[name] = fill_masks(self.batch[name], name, self.network.composition, self.network.generator)
        return self._ids[name]

    def get_states(self, name: str) -> list[Tensor]:
        """Return the embeddings and the hidden states after each encoder layer for slot `name`, (batch, tokens, hidden) each."""
        if name not in self._states:
            slot = self.batch[name]
            self._states[name] = self.network.adapter.encode(self.get_ids(name), slot.attention, slot.types)
        return self._states[name]

    def get_vectors(self, name: str, projector: str = "") -> Tensor:
        """Return the text vectors of the slot `name`, (batch, hidden).

        projector: name of the projector to apply; all its slots are projected together; "": none
        """
        composition = self.network.composition
        if projector:
            if projector not in self._projected:
                slots = composition.projectors[projector].slots
                rows = torch.cat([self.get_vectors(slot) for slot in slots])
                parts = self.network.projectors[projector](rows).chunk(len(slots))
                self._projected[projector] = dict(zip(slots, parts, strict=True))
            return self._projected[projector][name]
        if name not in self._vectors:
            last, pooling = self.get_states(name)[-1], composition.pooling
            self._vectors[name] = last[:, 0] if pooling == "cls" else pool(last, self.batch[name].attention, (pooling,))
        return self._vectors[name]


def _select_masked(slot: SlotBatch) -> Tensor:
    return slot.masked & slot.present[:, None]


def compute_contrastive_losses(composition: Composition, vectors: Tensors, present: Tensors) -> Tensors:
    """Return the contrastive losses of a batch, in training the batch of all processes, {objective name: scalar}.

    vectors: {key of `build_vector_key`: (batch, hidden)}    present: {slot: (batch,) bool, False without text}
    """
    return {
        objective.name: load_attribute(objective.implementation)(
            objective, {name: vectors[build_vector_key(objective, name)] for name in objective.vector_slots}, present
        )
        for objective in composition.objectives
        if objective.compares_vectors
    }


def build_vector_key(objective: Objective, slot: str) -> str:
    """Return the key of a slot's text vectors for an objective: "SLOT", or "PROJECTOR(SLOT)" with a projector."""
    return f"{objective.projector}({slot})" if objective.projector else slot
