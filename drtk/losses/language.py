"""Losses over the tokens of a text."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

IGNORED = -100  # the label of a position that has none: padding


def summed_cross_entropy(logits: Tensor, labels: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """-log p(label), summed over all positions that have one, (), in float32.

    logits: (texts, tokens, vocabulary); labels: (texts, tokens), IGNORED on padding
    smoothing: the share e of a label's probability that is spread evenly over the V words of the vocabulary:
    (1 - e) * -log p(label) + e / V * sum over words of -log p(word) (Szegedy 2016, section 7)
    """
    return F.cross_entropy(
        logits.float().flatten(0, 1),  # (texts * tokens, vocabulary)
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=smoothing,
    )
