"""Pre-training objectives: token targets and contrastive terms."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drtk.losses.contrastive import similarities
from drtk.losses.language import token_losses_sum
from drtk.models.backbone import BackboneAdapter
from drtk.pretraining import TARGETS
from drtk.pretraining.batch import Batch, SlotBatch
from drtk.pretraining.composition import Contrast, Recover
from drtk.pretraining.encoded_batch import EncodedBatch


@dataclass
class LossParts:
    """The parts that token losses share. anatomy: the encoder's; head: its masked-LM head; readers: by name."""

    anatomy: BackboneAdapter
    head: Any
    readers: dict[str, nn.Module]
    _heads: dict[str, Any] = field(default_factory=dict)

    def head_of(self, reader: str) -> Any:
        """Return the head of a reader: the encoder's, or a copy for one that shares nothing (methods: section 5.0)."""
        module: Any = self.readers[reader]
        if not getattr(module, "own_head", False):
            return self.head
        if reader not in self._heads:
            _, head = deepcopy((self.anatomy.backbone, self.head))  # together: a copied head refers to its encoder
            head._encoder = (module.encoder,)
            self._heads[reader] = head
        return self._heads[reader]


class RecoverLoss(nn.Module):
    """The token loss of an [[objective]] of kind recover."""

    def __init__(self, objective: Recover, parts: LossParts) -> None:
        super().__init__()
        self.objective, self.reader = objective, parts.readers[objective.reader]
        self.target: Any = TARGETS.load(objective.target)(objective, parts)
        self._own_vector = getattr(self.reader, "own_vector", False)
        self.has_bottleneck = bool(objective.source) or self._own_vector

    def count(self, batch: Batch) -> Tensor:
        """Count the labeled positions of a batch, ()."""
        return torch.stack([self.target.positions(batch[name]).sum() for name in self.objective.slot]).sum().float()

    def reduce(self, total: Tensor, count: Tensor) -> Tensor:
        """Divide a sum of losses by the count of all parts and processes, unless the reduction is "sum", ()."""
        return total if self.objective.reduction == "sum" else total / count.clamp(min=1)

    def forward(self, encoded: EncodedBatch, *, other_sources: bool = False) -> Tensor:
        """Return the sum of the losses at labeled positions, ().

        other_sources: use the vector of another example, to measure what the right one gains
        """
        sources = self.objective.source_by_slot
        losses = []
        for number, name in enumerate(self.objective.slot):
            vector = None
            if sources:
                vector = encoded.vector(sources[number], self.objective.projector)
            elif other_sources and self._own_vector:
                vector = encoded.states(name)[-1][:, 0]
            if other_sources and vector is not None:
                vector = vector.roll(1, dims=0)
            hidden = self.reader(encoded.decoder_input(name), vector)
            losses.append(self.target.losses(hidden, encoded.batch[name], encoded.ids(name)))
        return sum(losses[1:], start=losses[0])


def masked(objective: Recover, parts: LossParts) -> nn.Module:
    """Predict hidden tokens."""
    return Tokens(parts.head_of(objective.reader), everywhere=False)


def every(objective: Recover, parts: LossParts) -> nn.Module:
    """Predict all tokens; with a causal reader, the next ones."""
    head = parts.head_of(objective.reader)
    if getattr(parts.readers[objective.reader], "says_next", False):
        return NextTokens(head)
    return Tokens(head, everywhere=True)


def edited(objective: Recover, parts: LossParts) -> nn.Module:
    """Detect edited tokens: with one logit as SimLM, or two as DiffCSE, which counts special tokens and, in `mean_all`, padding."""
    scale = float(getattr(parts.anatomy.config, "initializer_range", 0.02))
    over: Literal["content", "tokens", "length"] = "content" if objective.classes == 1 else "tokens"
    if objective.reduction == "mean_all":
        over = "length"
    return Edited(parts.anatomy.hidden_size, classes=objective.classes, over=over, scale=scale)


def corrected(objective: Recover, parts: LossParts) -> nn.Module:
    """Predict all tokens through a copy gate."""
    return Corrected(parts.head_of(objective.reader), parts.anatomy.hidden_size)


class Tokens(nn.Module):
    """Predict the original token, at hidden positions or at all but special ones (methods: sections 5.1 and 5.6)."""

    def __init__(self, head: Any, *, everywhere: bool) -> None:
        super().__init__()
        self.head, self.everywhere = head, everywhere

    def positions(self, slot: SlotBatch) -> Tensor:
        """Return the labeled positions, (batch, tokens) bool."""
        return (slot.content if self.everywhere else slot.hidden) & slot.present[:, None]

    def losses(self, hidden: Tensor, slot: SlotBatch, given: Tensor) -> Tensor:
        """Return the sum of cross-entropies, (). hidden: (batch, tokens, width)"""
        where = self.positions(slot)
        features = self.head.features(hidden[where])
        return token_losses_sum(features, self.head.weight, self.head.bias, slot.clean[where])


class NextTokens(Tokens):
    """Predict the token after each position, the last special token included (methods: section 5.4)."""

    def __init__(self, head: Any) -> None:
        super().__init__(head, everywhere=True)

    def positions(self, slot: SlotBatch) -> Tensor:
        """Return all positions but the last of each text, (batch, tokens) bool."""
        following = F.pad(slot.attention[:, 1:], (0, 1)).bool()
        return following & slot.present[:, None]

    def losses(self, hidden: Tensor, slot: SlotBatch, given: Tensor) -> Tensor:
        """Return the sum of cross-entropies, ()."""
        where = self.positions(slot)
        features = self.head.features(hidden[where])
        return token_losses_sum(features, self.head.weight, self.head.bias, F.pad(slot.clean[:, 1:], (0, 1))[where])


class Edited(nn.Module):
    """Detect tokens that were replaced or inserted, or follow a deletion.

    classes: 1 (dense, GELU, linear to one logit; SimLM's RTD) or 2 (one linear layer to two; DiffCSE)
    over: "content", all but special tokens (SimLM); "tokens", special ones too, since [SEP] may follow a deletion; "length",
    padding too, labeled as original (DiffCSE's released mean over batch and length)
    """

    def __init__(
        self, width: int, *, classes: int, over: Literal["content", "tokens", "length"], scale: float = 0.02
    ) -> None:
        super().__init__()
        self.over, self.classes = over, classes
        last = nn.Linear(width, classes)
        self.head: nn.Module = last if classes == 2 else nn.Sequential(nn.Linear(width, width), nn.GELU(), last)
        for layer in self.head.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=scale)
                nn.init.zeros_(layer.bias)

    def positions(self, slot: SlotBatch) -> Tensor:
        """Return the labeled positions, (batch, tokens) bool."""
        where = {"content": slot.content, "tokens": slot.attention.bool(), "length": torch.ones_like(slot.content)}
        return where[self.over] & slot.present[:, None]

    def labels(self, slot: SlotBatch, given: Tensor) -> Tensor:
        """Return 1 at edited tokens, (batch, tokens); 0 where the generator proposed the original token."""
        replaced = (given != slot.clean).long()
        return replaced if slot.edited is None else torch.where(slot.edited < 0, replaced, slot.edited)

    def losses(self, hidden: Tensor, slot: SlotBatch, given: Tensor) -> Tensor:
        """Return the sum of cross-entropies, ()."""
        where = self.positions(slot)
        labels = self.labels(slot, given)[where]
        logits = self.head(hidden[where]).float()
        if self.classes == 2:
            return F.cross_entropy(logits, labels, reduction="sum")
        return F.binary_cross_entropy_with_logits(logits[:, 0], labels.float(), reduction="sum")


class Corrected(nn.Module):
    """Predict the original token at every position through a gate that copies the input token (COCO-LM; methods: section 5.10).

    p(original) = c * [input token is the original] + (1 - c) * softmax
    """

    def __init__(self, head: Any, width: int, *, chunk: int = 1024) -> None:
        super().__init__()
        self.head, self.chunk = head, chunk
        self.gate = nn.Linear(width, 1)

    def positions(self, slot: SlotBatch) -> Tensor:
        """Return the labeled positions, (batch, tokens) bool."""
        return slot.content & slot.present[:, None]

    def losses(self, hidden: Tensor, slot: SlotBatch, given: Tensor) -> Tensor:
        """Return the sum of -log p, ()."""
        where = self.positions(slot)
        rows, originals, copied = hidden[where], slot.clean[where], given[where] == slot.clean[where]
        total = hidden.new_zeros((), dtype=torch.float32)
        for start in range(0, max(1, len(rows)), self.chunk):  # at least once, so that all processes have a gradient
            part = slice(start, start + self.chunk)
            total = total + torch.utils.checkpoint.checkpoint(
                self._part, rows[part], originals[part], copied[part], use_reentrant=False
            )
        return total

    def _part(self, rows: Tensor, originals: Tensor, copied: Tensor) -> Tensor:
        gate = self.gate(rows)[:, 0].float()
        logits = self.head.logits(rows).float()
        chosen = logits.log_softmax(dim=-1).gather(1, originals[:, None])[:, 0]
        drawn = F.logsigmoid(-gate) + chosen  # log (1 - c) p
        both = torch.where(copied, torch.logaddexp(drawn, F.logsigmoid(gate)), drawn)
        return -both.sum()


def contrast_loss(objective: Contrast, vectors: Mapping[str, Tensor], present: Mapping[str, Tensor]) -> Tensor:
    """Return the mean contrastive loss over all pairs that are present, (); 0 if there is none.

    vectors: (batch, hidden) by slot; present: (batch,) bool by slot
    With extra positives it is the mean over the positives (methods: section 5.10).
    """
    positives = (objective.b, *objective.extra_positives)
    losses = [_pair_loss(objective, name, vectors, present) for name in positives]
    return sum(losses[1:], start=losses[0]) / len(losses)


def _pair_loss(objective: Contrast, other: str, vectors: Mapping[str, Tensor], present: Mapping[str, Tensor]) -> Tensor:
    left, right = vectors[objective.a].float(), vectors[other].float()
    valid = present[objective.a] & present[other]
    size = len(left)
    partners = torch.arange(size, device=left.device)
    if objective.candidates == "all":
        columns = torch.cat([left, right])
        excluded = torch.eye(2 * size, dtype=torch.bool, device=left.device) | ~valid.repeat(2)[None, :]
        targets = torch.cat([partners + size, partners])
        num_rows = 2 * size if objective.symmetric else size
        rows, excluded, targets, valid = columns[:num_rows], excluded[:num_rows], targets[:num_rows], valid.repeat(2)
        return _cross_entropy(objective, rows, columns, excluded, targets, valid[:num_rows], vectors, present)
    excluded = (~valid)[None, :].expand(size, size)
    loss = _cross_entropy(objective, left, right, excluded, partners, valid, vectors, present)
    if objective.symmetric:
        loss = (loss + _cross_entropy(objective, right, left, excluded, partners, valid, vectors, present)) / 2
    return loss


def _cross_entropy(
    objective: Contrast,
    rows: Tensor,
    columns: Tensor,
    excluded: Tensor,
    targets: Tensor,
    valid: Tensor,
    vectors: Mapping[str, Tensor],
    present: Mapping[str, Tensor],
) -> Tensor:
    """Return the mean cross-entropy of `targets` among `columns` and the extra negatives, over the valid rows, ().

    rows: (n, hidden); columns: (m, hidden); excluded: (n, m) bool; targets, valid: (n,)
    """
    if not bool(valid.any()):
        return rows.sum() * 0.0  # keeps the graph, so that no process waits for another's gradients

    def score(candidates: Tensor) -> Tensor:
        return similarities(rows, candidates, similarity=objective.similarity, temperature=objective.temperature)

    negatives = [
        score(vectors[name]).masked_fill(~present[name][None, :], -torch.inf) for name in objective.extra_negatives
    ]
    scores = torch.cat([score(columns).masked_fill(excluded, -torch.inf), *negatives], dim=1)
    return F.cross_entropy(scores[valid], targets[valid])
