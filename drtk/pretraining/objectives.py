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
from drtk.models.backbone import Anatomy
from drtk.pretraining import TARGETS
from drtk.pretraining.batch import Batch, SlotBatch
from drtk.pretraining.composition import Contrast, Recover
from drtk.pretraining.network import Views


@dataclass
class Parts:
    """anatomy: the encoder's; head: its masked-LM head; readers: by the names that objectives give them."""

    anatomy: Anatomy
    head: Any
    readers: dict[str, nn.Module]
    _heads: dict[str, Any] = field(default_factory=dict)

    def head_of(self, reader: str) -> Any:
        """The head a reader speaks through: the encoder's, or a copy for one that shares nothing (methods: section 5.0)."""
        found: Any = self.readers[reader]
        if not getattr(found, "own_head", False):
            return self.head
        if reader not in self._heads:
            own = deepcopy((self.anatomy.backbone, self.head))[
                1
            ]  # together: a copied head alone would keep the embeddings
            own._encoder = (found.encoder,)
            self._heads[reader] = own
        return self._heads[reader]


def masked(wanted: Recover, parts: Parts) -> nn.Module:
    """The tokens that are hidden."""
    return Tokens(parts.head_of(wanted.reader), everywhere=False)


def every(wanted: Recover, parts: Parts) -> nn.Module:
    """All tokens; of a reader that says the next one, those."""
    head = parts.head_of(wanted.reader)
    return (
        NextTokens(head) if getattr(parts.readers[wanted.reader], "says_next", False) else Tokens(head, everywhere=True)
    )


def edited(wanted: Recover, parts: Parts) -> nn.Module:
    """SimLM's question of one logit, or DiffCSE's of two, which is asked of special tokens too and of padding in `mean_all`."""
    scale = float(getattr(parts.anatomy.config, "initializer_range", 0.02))
    over: Literal["content", "tokens", "length"] = "content" if wanted.classes == 1 else "tokens"
    if wanted.reduction == "mean_all":
        over = "length"
    return Edited(parts.anatomy.hidden_size, classes=wanted.classes, over=over, scale=scale)


def corrected(wanted: Recover, parts: Parts) -> nn.Module:
    """All tokens, through the gate."""
    return Corrected(parts.head_of(wanted.reader), parts.anatomy.hidden_size)


class Tokens(nn.Module):
    """The original token, at hidden positions alone or at all that are not special (methods: sections 5.1 and 5.6)."""

    def __init__(self, head: Any, *, everywhere: bool) -> None:
        super().__init__()
        self.head, self.everywhere = head, everywhere

    def positions(self, slot: SlotBatch) -> Tensor:
        """(batch, tokens), True where something is predicted."""
        return (slot.content if self.everywhere else slot.hidden) & slot.present[:, None]

    def losses(self, hidden: Tensor, slot: SlotBatch, given: Tensor) -> Tensor:
        """The sum of cross-entropies, (); hidden: (batch, tokens, width). Logits of other positions are never made."""
        where = self.positions(slot)
        features = self.head.features(hidden[where])
        return token_losses_sum(features, self.head.weight, self.head.bias, slot.clean[where])


class NextTokens(Tokens):
    """The token after a position, the closing special token included: what a causal reader predicts (methods: section 5.4)."""

    def __init__(self, head: Any) -> None:
        super().__init__(head, everywhere=True)

    def positions(self, slot: SlotBatch) -> Tensor:
        """All but the last of each text."""
        following = F.pad(slot.attention[:, 1:], (0, 1)).bool()
        return following & slot.present[:, None]

    def losses(self, hidden: Tensor, slot: SlotBatch, given: Tensor) -> Tensor:
        """The sum of cross-entropies, ()."""
        where = self.positions(slot)
        features = self.head.features(hidden[where])
        return token_losses_sum(features, self.head.weight, self.head.bias, F.pad(slot.clean[:, 1:], (0, 1))[where])


class Edited(nn.Module):
    """Whether the token was replaced, inserted, or follows a deletion.

    classes: 1 (dense, GELU, linear to one logit; SimLM's RTD) or 2 (one linear layer to two; DiffCSE)
    over: content: all but special tokens (SimLM); tokens: special ones too, so that [SEP] tells of a deletion before it;
    length: padding too, as original (DiffCSE's released mean over batch and length)
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
        """(batch, tokens), True where something is predicted."""
        where = {"content": slot.content, "tokens": slot.attention.bool(), "length": torch.ones_like(slot.content)}
        return where[self.over] & slot.present[:, None]

    def labels(self, slot: SlotBatch, given: Tensor) -> Tensor:
        """(batch, tokens), 1 where something was done; 0 where a draw happened to give the original token."""
        replaced = (given != slot.clean).long()
        return replaced if slot.edited is None else torch.where(slot.edited < 0, replaced, slot.edited)

    def losses(self, hidden: Tensor, slot: SlotBatch, given: Tensor) -> Tensor:
        """The sum of cross-entropies, ()."""
        where = self.positions(slot)
        labels = self.labels(slot, given)[where]
        logits = self.head(hidden[where]).float()
        if self.classes == 2:
            return F.cross_entropy(logits, labels, reduction="sum")
        return F.binary_cross_entropy_with_logits(logits[:, 0], labels.float(), reduction="sum")


class Corrected(nn.Module):
    """The original token at every position, through a gate that copies the token at hand (COCO-LM; methods: section 5.10).

    p(original) = c * [token at hand is the original] + (1 - c) * softmax
    """

    def __init__(self, head: Any, width: int, *, chunk: int = 1024) -> None:
        super().__init__()
        self.head, self.chunk = head, chunk
        self.gate = nn.Linear(width, 1)

    def positions(self, slot: SlotBatch) -> Tensor:
        """(batch, tokens), True where something is predicted."""
        return slot.content & slot.present[:, None]

    def losses(self, hidden: Tensor, slot: SlotBatch, given: Tensor) -> Tensor:
        """The sum of -log p, ()."""
        where = self.positions(slot)
        rows, originals, copied = hidden[where], slot.clean[where], given[where] == slot.clean[where]
        total = hidden.new_zeros((), dtype=torch.float32)
        for start in range(0, max(1, len(rows)), self.chunk):  # once at least, so that nobody waits for a gradient
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


def contrast_loss(wanted: Contrast, vectors: Mapping[str, Tensor], present: Mapping[str, Tensor]) -> Tensor:
    """The mean over all rows that ask, (); 0 where none does.

    vectors: (batch, hidden) by slot; present: (batch,) bool by slot. A pair of which one side is missing neither asks
    nor is found.
    """
    found = _pairs(wanted, wanted.b, vectors, present)
    for name in wanted.extra_positives:  # a term each, averaged (methods: section 5.10)
        found = found + _pairs(wanted, name, vectors, present)
    return found / (1 + len(wanted.extra_positives))


def _pairs(wanted: Contrast, other: str, vectors: Mapping[str, Tensor], present: Mapping[str, Tensor]) -> Tensor:
    """One slot against the other: cross-entropy of each row's partner."""
    left, right = vectors[wanted.a].float(), vectors[other].float()
    there = present[wanted.a] & present[other]
    size = len(left)
    partners = torch.arange(size, device=left.device)
    if wanted.candidates == "all":
        rows, columns = torch.cat([left, right]), torch.cat([left, right])
        barred = torch.eye(2 * size, dtype=torch.bool, device=left.device)  # oneself is no candidate
        targets, valid = torch.cat([partners + size, partners]), there.repeat(2)
        barred = barred | ~valid[None, :]
        if not wanted.symmetric:
            rows, barred, targets = rows[:size], barred[:size], targets[:size]
        return _asked(wanted, rows, columns, barred, targets, valid[: len(rows)], vectors, present)
    barred = (~there)[None, :].expand(size, size)
    loss = _asked(wanted, left, right, barred, partners, there, vectors, present)
    if wanted.symmetric:
        loss = (loss + _asked(wanted, right, left, barred, partners, there, vectors, present)) / 2
    return loss


def _asked(
    wanted: Contrast,
    rows: Tensor,
    columns: Tensor,
    barred: Tensor,
    targets: Tensor,
    valid: Tensor,
    vectors: Mapping[str, Tensor],
    present: Mapping[str, Tensor],
) -> Tensor:
    """Mean cross-entropy of `targets` among `columns` and the extra negatives that are there, over the valid rows, ().

    rows: (n, hidden); columns: (m, hidden); barred: (n, m); targets, valid: (n,)
    """
    if not bool(valid.any()):
        return rows.sum() * 0.0  # keeps the graph, so that no process waits for another's gradients
    scores = similarities(rows, columns, similarity=wanted.similarity, temperature=wanted.temperature)
    scores = scores.masked_fill(barred, -torch.inf)
    extra = [
        similarities(rows, vectors[name], similarity=wanted.similarity, temperature=wanted.temperature).masked_fill(
            ~present[name][None, :], -torch.inf
        )
        for name in wanted.extra_negatives
    ]
    scores = torch.cat([scores, *extra], dim=1)
    return F.cross_entropy(scores[valid], targets[valid])


class Recovery(nn.Module):
    """The term of one [[objective]] of kind recover."""

    def __init__(self, wanted: Recover, parts: Parts) -> None:
        super().__init__()
        self.wanted, self.reader = wanted, parts.readers[wanted.reader]
        self.target: Any = TARGETS.load(wanted.target)(wanted, parts)

    @property
    def bottlenecked(self) -> bool:
        """Whether the reader is helped by a vector: of another slot, or late in the encoder of its own."""
        return bool(self.wanted.source) or self._own_vector

    @property
    def _own_vector(self) -> bool:
        return getattr(self.reader, "own_vector", False)

    def count(self, batch: Batch) -> Tensor:
        """How many positions of a batch have a label, ()."""
        return torch.stack([self.target.positions(batch[name]).sum() for name in self.wanted.slot]).sum().float()

    def reduced(self, total: Tensor, count: Tensor) -> Tensor:
        """A sum of losses as its reduction has it, (): by the count of all parts and processes, or as it is."""
        return total if self.wanted.reduction == "sum" else total / count.clamp(min=1)

    def forward(self, views: Views, *, other_sources: bool = False) -> Tensor:
        """The sum of the losses of the labelled positions, ().

        other_sources: with the vector of another example in place of the right one, to see what the vector is worth
        """
        wanted = self.wanted
        sources = wanted.source if len(wanted.source) != 1 else wanted.source * len(wanted.slot)
        total = None
        for number, name in enumerate(wanted.slot):
            vector = None
            if sources:
                vector = views.source(wanted.projector, sources[number])
                vector = vector.roll(1, dims=0) if other_sources else vector
            elif other_sources and self._own_vector:
                vector = views.states(name)[-1][:, 0].roll(1, dims=0)
            hidden = self.reader(views.view(name), vector)
            losses = self.target.losses(hidden, views.batch[name], views.ids(name))
            total = losses if total is None else total + losses
        assert total is not None
        return total
