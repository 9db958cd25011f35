"""What a reader predicts at each position: the original token, or whether something was done there."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drtk.losses.language import token_losses_sum
from drtk.objectives.batch import SlotBatch
from drtk.objectives.parts import Parts
from drtk.settings.composition import Recover


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
