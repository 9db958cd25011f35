"""Contrastive losses over a batch of queries and their passages, in float32.

queries: (B, H); passages: (B * n, H) in blocks of n, the positive first, so the positive of query i is column i * n;
mask: (B, B * n), True for a passage that is no negative of a query, which leaves the softmax. A query's own positive is
never masked. All losses return the mean over queries, () (docs/methods/fine-tuning.md).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def compute_similarities(left: Tensor, right: Tensor, *, similarity: str, temperature: float) -> Tensor:
    """Return the cosine or inner product of every pair of rows, divided by the temperature.

    left: (B, H)    right: (C, H)    returns: (B, C)
    """
    left, right = left.float(), right.float()
    if similarity == "cosine":
        left, right = F.normalize(left, dim=-1), F.normalize(right, dim=-1)
    return left @ right.T / temperature


def get_positive_columns(queries: Tensor, passages: Tensor) -> Tensor:
    """Return the column of each query's positive: 0, n, 2 n, … (B,)"""
    return torch.arange(len(queries), device=queries.device) * (len(passages) // len(queries))


def infonce(
    queries: Tensor, passages: Tensor, *, similarity: str, temperature: float, mask: Tensor | None = None
) -> Tensor:
    """Return -log softmax of each query's positive among all passages of the batch (query-as-context, Eq. 12; DPR, Eq. 2).

    ln(B * n) if all vectors are equal.
    """
    scores = compute_similarities(queries, passages, similarity=similarity, temperature=temperature)
    if mask is not None:
        scores = scores.masked_fill(mask, float("-inf"))
    return F.cross_entropy(scores, get_positive_columns(queries, passages), reduction="none").mean()


def simlm_paper(
    queries: Tensor, passages: Tensor, *, similarity: str, temperature: float, mask: Tensor | None = None
) -> Tensor:
    """Return -log of phi(q, d+) / (phi(q, d+) + sum over m of [phi(q, m) + phi(d+, m)]), m every other passage (SimLM, Eq. 3).

    ln(2 B n - 1) if all vectors are equal.
    """
    columns = get_positive_columns(queries, passages)
    of_queries = compute_similarities(queries, passages, similarity=similarity, temperature=temperature)
    of_positives = compute_similarities(passages[columns], passages, similarity=similarity, temperature=temperature)
    if mask is not None:
        of_queries, of_positives = (scores.masked_fill(mask, float("-inf")) for scores in (of_queries, of_positives))
    itself = F.one_hot(columns, len(passages)).bool()
    scores = torch.cat([of_queries, of_positives.masked_fill(itself, float("-inf"))], dim=1)  # (B, 2 * B * n)
    return F.cross_entropy(scores, columns, reduction="none").mean()


def simlm_full(
    queries: Tensor, passages: Tensor, *, similarity: str, temperature: float, mask: Tensor | None = None
) -> Tensor:
    """Return -log softmax of each positive among four blocks, as in SimLM's released code (docs/methods/fine-tuning.md).

    The blocks: query and all passages; positive and other queries; query and other queries; positive and other positives.
    Hard negatives are compared with queries only. ln(B n + 3 (B - 1)) if all vectors are equal.
    """
    columns = get_positive_columns(queries, passages)
    positives = passages[columns]
    oneself = torch.eye(len(queries), dtype=torch.bool, device=queries.device)
    known = torch.zeros_like(oneself) if mask is None else mask[:, columns]  # [i, j]: d_j is relevant to q_i as well
    blocks = [
        (queries, passages, mask),
        (positives, queries, oneself | known.T),
        (queries, queries, oneself | known | known.T),
        (positives, positives, oneself | known),
    ]
    scores = []
    for left, right, masked in blocks:
        block = compute_similarities(left, right, similarity=similarity, temperature=temperature)
        scores.append(block if masked is None else block.masked_fill(masked, float("-inf")))
    return F.cross_entropy(torch.cat(scores, dim=1), columns, reduction="none").mean()


def mask_duplicate_positives(passages: Tensor, queries: int) -> Tensor:
    """Return a mask of duplicates of each query's positive, (B, B * n); False at the positives themselves.

    passages: (B * n,), a number for each distinct passage
    """
    columns = torch.arange(queries, device=passages.device) * (len(passages) // queries)
    same = passages[columns].unsqueeze(1) == passages.unsqueeze(0)
    same[torch.arange(queries, device=passages.device), columns] = False
    return same


def mask_labeled_positives(passages: Tensor, positives: Tensor, *, own: Tensor) -> Tensor:
    """Return a mask of the passages labeled as positives of each query, (B, C); False at the positive it is trained with.

    passages: (C,), a number for each distinct passage    positives: (B, P), those of each query, -1 for padding
    own: (B,), the column of each query's positive
    """
    mask = torch.isin(passages.unsqueeze(0), positives.unique()).expand(len(positives), -1).clone()
    columns = mask[0].nonzero().squeeze(1)  # few: most passages are a positive of no query
    mask[:, columns] = (positives.unsqueeze(2) == passages[columns]).any(dim=1)  # (B, P, few) to (B, few)
    mask[torch.arange(len(own), device=own.device), own] = False
    return mask
