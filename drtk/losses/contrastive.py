"""Contrastive losses over a batch of queries and their passages. All compute in float32.

Layout (methods, section 6.3): queries (B, H); passages (B * n, H) in blocks of n, the positive first, so that the
column of query i's positive is i * n.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def similarities(left: Tensor, right: Tensor, *, similarity: str, temperature: float) -> Tensor:
    """Cosine or inner product of every row with every row, over the temperature.

    left: (B, H)    right: (C, H)    returns: (B, C)
    """
    left, right = left.float(), right.float()
    if similarity == "cosine":
        left, right = F.normalize(left, dim=-1), F.normalize(right, dim=-1)
    return left @ right.T / temperature


def positive_columns(queries: Tensor, passages: Tensor) -> Tensor:
    """The column of each query's positive: 0, n, 2 n, … (B,)"""
    return torch.arange(len(queries), device=queries.device) * (len(passages) // len(queries))


def infonce_rows(
    queries: Tensor, passages: Tensor, *, similarity: str, temperature: float, barred: Tensor | None = None
) -> Tensor:
    """-log softmax of each query's positive among all passages of the batch (S3, Eq. 12; DPR, Eq. 2).

    queries: (B, H)    passages: (B * n, H)    barred: (B, B * n), True where a passage is no negative of a query
    returns: (B,)
    """
    scores = similarities(queries, passages, similarity=similarity, temperature=temperature)
    if barred is not None:
        scores = scores.masked_fill(barred, float("-inf"))
    return F.cross_entropy(scores, positive_columns(queries, passages), reduction="none")


def infonce(
    queries: Tensor, passages: Tensor, *, similarity: str, temperature: float, barred: Tensor | None = None
) -> Tensor:
    """The mean of `infonce_rows`, (); ln(B * n) where all vectors are alike."""
    return infonce_rows(queries, passages, similarity=similarity, temperature=temperature, barred=barred).mean()


def same_as_positive(passages: Tensor, queries: int) -> Tensor:
    """Where a passage that is not a query's own positive is the same text: the columns that duplicates would make false.

    passages: (B * n,), a number for each distinct passage    returns: (B, B * n), False at the positives themselves
    """
    columns = torch.arange(queries, device=passages.device) * (len(passages) // queries)
    same = passages[columns].unsqueeze(1) == passages.unsqueeze(0)
    same[torch.arange(queries, device=passages.device), columns] = False
    return same
