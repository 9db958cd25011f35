"""Pre-training losses: losses of the targets that a decoder predicts at tokens, and the contrastive loss.

Slots, the inputs of the encoder, are defined in `composition.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drtk.losses.contrastive import compute_similarities
from drtk.losses.language import linear_cross_entropy
from drtk.models.backbone import BackboneAdapter
from drtk.pretraining import TARGETS
from drtk.pretraining.composition import ContrastiveObjective, TokenObjective
from drtk.pretraining.dataset import Batch, SlotBatch
from drtk.pretraining.network import EncodedBatch


@dataclass
class SharedModules:
    """The modules that token losses share.

    adapter: adapter of the encoder    head: masked-LM head of the encoder    decoders: decoders by name
    """

    adapter: BackboneAdapter
    head: Any
    decoders: dict[str, nn.Module]
    _heads: dict[str, Any] = field(default_factory=dict)

    def get_head(self, decoder: str) -> Any:
        """Return the masked-LM head for the decoder named `decoder`: the encoder's, or a copy if the decoder has `own_head`."""
        module: Any = self.decoders[decoder]
        if not getattr(module, "own_head", False):
            return self.head
        if decoder not in self._heads:
            _, head = deepcopy((self.adapter.backbone, self.head))  # together, because the head refers to its encoder
            head._encoder = (module.encoder,)
            self._heads[decoder] = head
        return self._heads[decoder]


class TokenLoss(nn.Module):
    """The loss of a TokenObjective: a decoder predicts a target at the tokens of slots."""

    def __init__(self, objective: TokenObjective, shared: SharedModules) -> None:
        super().__init__()
        self.objective = objective
        self.reader = shared.decoders[objective.decoder]  # the attribute name is part of saved weight names
        self.target: Any = TARGETS.load(objective.target)(objective, shared)
        self._uses_own_vector = getattr(self.reader, "uses_own_vector", False)
        self.has_bottleneck = bool(objective.source) or self._uses_own_vector

    def count_labels(self, batch: Batch) -> Tensor:
        """Return the number of labeled positions in a batch, a scalar."""
        return (
            torch.stack([self.target.select_positions(batch[name]).sum() for name in self.objective.slot]).sum().float()
        )

    def reduce(self, total: Tensor, count: Tensor) -> Tensor:
        """Return the loss, a scalar: its mean or sum, as the objective's `reduction` says.

        total: sum of the losses of a micro-batch    count: number of labels of all micro-batches and processes
        """
        return total if self.objective.reduction == "sum" else total / count.clamp(min=1)

    def forward(self, encoded: EncodedBatch, *, other_sources: bool = False) -> Tensor:
        """Return the sum of the losses at labeled positions, a scalar.

        other_sources: give the decoder the text vector of another example, to measure how much the loss depends on the vector
        """
        sources = self.objective.source_by_slot
        losses = []
        for index, name in enumerate(self.objective.slot):
            vector = None
            if sources:
                vector = encoded.get_vectors(sources[index], self.objective.projector)
            elif other_sources and self._uses_own_vector:
                vector = encoded.get_states(name)[-1][:, 0]
            if other_sources and vector is not None:
                vector = vector.roll(1, dims=0)
            hidden = self.reader(encoded.build_decoder_input(name), vector)
            losses.append(self.target.sum_losses(hidden, encoded.batch[name], encoded.get_ids(name)))
        return sum(losses[1:], start=losses[0])


class TokenPrediction(nn.Module):
    """Loss for target "masked" or "all": predict the original tokens at masked positions, or all but special tokens.

    Source: docs/methods/simlm.md.

    With a causal decoder, the target at every position is the next token, including the last special token
    (docs/methods/cotmae.md).
    """

    def __init__(self, objective: TokenObjective, shared: SharedModules) -> None:
        super().__init__()
        self.head = shared.get_head(objective.decoder)
        self.everywhere = objective.target == "all"
        self.predicts_next = getattr(shared.decoders[objective.decoder], "predicts_next", False)

    def select_positions(self, slot: SlotBatch) -> Tensor:
        """Return the labeled positions, (batch, tokens) bool."""
        if self.predicts_next:
            where = F.pad(slot.attention[:, 1:], (0, 1)).bool()
        else:
            where = slot.content if self.everywhere else slot.masked
        return where & slot.present[:, None]

    def sum_losses(self, hidden: Tensor, slot: SlotBatch, input_ids: Tensor) -> Tensor:
        """Return the sum of the cross-entropies, a scalar. hidden: (batch, tokens, width)    input_ids: (batch, tokens)"""
        where = self.select_positions(slot)
        labels = F.pad(slot.original_ids[:, 1:], (0, 1)) if self.predicts_next else slot.original_ids
        return linear_cross_entropy(
            self.head.compute_features(hidden[where]), self.head.weight, self.head.bias, labels[where]
        )


class EditDetection(nn.Module):
    """Loss for target "edited": detect tokens that were replaced or inserted, or that follow a deleted token.

    classes=1: dense layer, GELU and a linear layer to one logit; all but special tokens are labeled (SimLM).
    classes=2: a linear layer to two logits; special tokens are labeled too, because [SEP] may follow a deletion (DiffCSE).
    With reduction `mean_all`, padding is labeled as original, as in DiffCSE's released code.
    """

    def __init__(self, objective: TokenObjective, shared: SharedModules) -> None:
        super().__init__()
        self.classes, self.labels_padding = objective.classes, objective.reduction == "mean_all"
        width = shared.adapter.hidden_size
        last = nn.Linear(width, self.classes)
        self.head: nn.Module = last if self.classes == 2 else nn.Sequential(nn.Linear(width, width), nn.GELU(), last)
        for layer in self.head.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=float(getattr(shared.adapter.config, "initializer_range", 0.02)))
                nn.init.zeros_(layer.bias)

    def select_positions(self, slot: SlotBatch) -> Tensor:
        """Return the labeled positions, (batch, tokens) bool."""
        if self.labels_padding:
            where = torch.ones_like(slot.content)
        else:
            where = slot.content if self.classes == 1 else slot.attention.bool()
        return where & slot.present[:, None]

    def build_labels(self, slot: SlotBatch, input_ids: Tensor) -> Tensor:
        """Return the labels, (batch, tokens): 1 at edited tokens, else 0; also 0 if the generator chose the original token.

        input_ids: (batch, tokens), with the tokens of the generator
        """
        replaced = (input_ids != slot.original_ids).long()
        return replaced if slot.edited is None else torch.where(slot.edited < 0, replaced, slot.edited)

    def sum_losses(self, hidden: Tensor, slot: SlotBatch, input_ids: Tensor) -> Tensor:
        """Return the sum of the cross-entropies, a scalar. hidden: (batch, tokens, width)    input_ids: (batch, tokens)"""
        where = self.select_positions(slot)
        labels = self.build_labels(slot, input_ids)[where]
        logits = self.head(hidden[where]).float()
        if self.classes == 2:
            return F.cross_entropy(logits, labels, reduction="sum")
        return F.binary_cross_entropy_with_logits(logits[:, 0], labels.float(), reduction="sum")


class CorrectiveLM(nn.Module):
    """Loss for target "corrected", corrective language modeling: predict every original token except special tokens.

    A gate c copies the input token: p(original) = c * [input token is the original] + (1 - c) * softmax.
    Source: COCO-LM; docs/methods/diffcse.md.
    """

    chunk = 1024  # positions whose logits are in memory at once

    def __init__(self, objective: TokenObjective, shared: SharedModules) -> None:
        super().__init__()
        self.head = shared.get_head(objective.decoder)
        self.gate = nn.Linear(shared.adapter.hidden_size, 1)

    def select_positions(self, slot: SlotBatch) -> Tensor:
        """Return the labeled positions, (batch, tokens) bool."""
        return slot.content & slot.present[:, None]

    def sum_losses(self, hidden: Tensor, slot: SlotBatch, input_ids: Tensor) -> Tensor:
        """Return the sum of -log p(original), a scalar. hidden: (batch, tokens, width)    input_ids: (batch, tokens)"""
        where = self.select_positions(slot)
        rows, originals, copied = hidden[where], slot.original_ids[where], input_ids[where] == slot.original_ids[where]
        total = hidden.new_zeros((), dtype=torch.float32)
        for start in range(0, max(1, len(rows)), self.chunk):  # at least once, so that every process has a gradient
            part = slice(start, start + self.chunk)
            total = total + torch.utils.checkpoint.checkpoint(
                self._compute_chunk, rows[part], originals[part], copied[part], use_reentrant=False
            )
        return total

    def _compute_chunk(self, rows: Tensor, originals: Tensor, copied: Tensor) -> Tensor:
        gate = self.gate(rows)[:, 0].float()
        logits = self.head.compute_logits(rows).float()
        chosen = logits.log_softmax(dim=-1).gather(1, originals[:, None])[:, 0]
        generated = F.logsigmoid(-gate) + chosen  # log (1 - c) p
        log_p = torch.where(copied, torch.logaddexp(generated, F.logsigmoid(gate)), generated)
        return -log_p.sum()


def contrastive_loss(
    objective: ContrastiveObjective, vectors: Mapping[str, Tensor], present: Mapping[str, Tensor]
) -> Tensor:
    """Return the contrastive loss, a scalar, averaged over the examples with both texts; 0 without such examples.

    With `extra_positives`, the losses with each of the positive slots are averaged (docs/methods/diffcse.md).
    vectors: {slot: (batch, hidden)}    present: {slot: (batch,) bool, False without text}
    """
    positives = (objective.b, *objective.extra_positives)
    losses = [_compute_pair_loss(objective, name, vectors, present) for name in positives]
    return sum(losses[1:], start=losses[0]) / len(losses)


def _compute_pair_loss(
    objective: ContrastiveObjective, other: str, vectors: Mapping[str, Tensor], present: Mapping[str, Tensor]
) -> Tensor:
    left, right = vectors[objective.a].float(), vectors[other].float()
    valid = present[objective.a] & present[other]
    if not bool(valid.any()):
        return (left.sum() + right.sum()) * 0.0  # with a graph, so that all processes have gradients
    size = len(left)
    partners = torch.arange(size, device=left.device)

    def compute_loss(queries: Tensor, keys: Tensor, excluded: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
        """Return the mean cross-entropy of the valid queries, a scalar.

        queries: (queries, hidden)    keys: (keys, hidden)    targets: (queries,), index of the positive key of each query
        excluded: (queries, keys) bool, True at keys that are neither positive nor negative    valid: (queries,) bool
        """
        groups = [(keys, excluded), *((vectors[name], ~present[name][None, :]) for name in objective.extra_negatives)]
        options: dict[str, Any] = {"similarity": objective.similarity, "temperature": objective.temperature}
        scores = [
            compute_similarities(queries, group, **options).masked_fill(mask, -torch.inf) for group, mask in groups
        ]
        return F.cross_entropy(torch.cat(scores, dim=1)[valid], targets[valid])

    if objective.candidates == "all":
        both = torch.cat([left, right])
        excluded = torch.eye(2 * size, dtype=torch.bool, device=left.device) | ~valid.repeat(2)[None, :]
        targets = torch.cat([partners + size, partners])
        rows = slice(2 * size if objective.symmetric else size)
        return compute_loss(both[rows], both, excluded[rows], targets[rows], valid.repeat(2)[rows])
    absent = (~valid)[None, :]
    loss = compute_loss(left, right, absent, partners, valid)
    return (loss + compute_loss(right, left, absent, partners, valid)) / 2 if objective.symmetric else loss
