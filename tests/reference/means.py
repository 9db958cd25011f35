"""Reference losses of single tokens, and their mean."""

import torch
from torch import Tensor


def token_loss(logits: Tensor, target: int) -> Tensor:
    """Return -log softmax(logits)[target]; logits: (classes,)."""
    return torch.logsumexp(logits, dim=0) - logits[target]


def binary_loss(logit: Tensor, label: int) -> Tensor:
    """Return the binary cross-entropy of a label, 0 or 1; logit: scalar."""
    signed = logit if label == 1 else -logit
    return torch.log1p(torch.exp(-signed.abs())) + torch.clamp(-signed, min=0.0)


def token_mean(sequences: list[list[Tensor]]) -> Tensor:
    """Return the mean over the tokens of all sequences (not the mean of sequence means); 0 if there are no tokens."""
    tokens = [loss for sequence in sequences for loss in sequence]
    return torch.stack(tokens).sum() / len(tokens) if tokens else torch.zeros(())


def with_total(terms: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the terms with their sum as "total"."""
    return terms | {"total": torch.stack(list(terms.values())).sum()}


def in_batch_losses(
    queries: list[Tensor], passages: list[Tensor], *, temperature: float, dot: bool = False
) -> list[Tensor]:
    """Return the InfoNCE loss of each query: passage i is the positive of query i, the others are negatives."""
    if not dot:
        queries, passages = ([row / torch.sqrt((row * row).sum()) for row in rows] for rows in (queries, passages))
    return [token_loss(torch.stack(passages) @ row / temperature, number) for number, row in enumerate(queries)]
