"""Losses of single tokens, and the one mean over all of them."""

from __future__ import annotations

import torch
from torch import Tensor


def token_loss(logits: Tensor, target: int) -> Tensor:
    """-log softmax(logits)[target]; logits: (classes,)."""
    return torch.logsumexp(logits, dim=0) - logits[target]


def binary_loss(logit: Tensor, label: int) -> Tensor:
    """-log p of the label, where sigmoid(logit) is the probability of label 1; logit: ()."""
    signed = logit if label == 1 else -logit
    return torch.log1p(torch.exp(-signed.abs())) + torch.clamp(-signed, min=0.0)


def token_mean(sequences: list[list[Tensor]]) -> Tensor:
    """The mean over the tokens of all sequences together, not over the means of the sequences; 0 without tokens."""
    tokens = [loss for sequence in sequences for loss in sequence]
    return torch.stack(tokens).sum() / len(tokens) if tokens else torch.zeros(())


def with_total(terms: dict[str, Tensor]) -> dict[str, Tensor]:
    """The terms, and their sum as "total"."""
    return terms | {"total": torch.stack(list(terms.values())).sum()}
