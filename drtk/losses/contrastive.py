"""Contrastive losses over a batch of queries and their passages, in float32.

queries: (B, H), query vectors
passages: (B * n, H), vectors of n passages per query with the positive first, so row i * n is the positive of query i
mask: (B, B * n) bool, True for passages that are not used as negatives of a query; False at the query's own positive
similarity: "cosine" or "dot"
Every loss is a scalar, the mean over queries. Source: docs/methods/fine-tuning.md.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def compute_similarities(left: Tensor, right: Tensor, *, similarity: str, temperature: float) -> Tensor:
    """Return the cosine or dot product of each row of `left` and each row of `right`, divided by the temperature.

    left: (B, H)    right: (C, H)    returns: (B, C)
    """
    left, right = left.float(), right.float()
    if similarity == "cosine":
        left, right = F.normalize(left, dim=-1), F.normalize(right, dim=-1)
    return left @ right.T / temperature


def get_positive_columns(queries: Tensor, passages: Tensor) -> Tensor:
    """Return the index of each query's positive among the passages, (B,): 0, n, 2 n, …

    queries: (B, H)    passages: (B * n, H), n per query, the positive first
    """
    return torch.arange(len(queries), device=queries.device) * (len(passages) // len(queries))


def infonce(
    queries: Tensor, passages: Tensor, *, similarity: str, temperature: float, mask: Tensor | None = None
) -> Tensor:
    """Return the cross-entropy of each query's positive among all passages of the batch, averaged over queries, a scalar.

    queries: (B, H)    passages: (B * n, H), n per query, the positive first
    mask: (B, B * n) bool, True for passages that are not used as negatives
    Source: DPR, Eq. 2; query-as-context, Eq. 12. The loss is ln(B * n) if all vectors are equal.
    """
    scores = compute_similarities(queries, passages, similarity=similarity, temperature=temperature)
    if mask is not None:
        scores = scores.masked_fill(mask, float("-inf"))
    return F.cross_entropy(scores, get_positive_columns(queries, passages), reduction="none").mean()


def simlm_paper(
    queries: Tensor, passages: Tensor, *, similarity: str, temperature: float, mask: Tensor | None = None
) -> Tensor:
    """Return InfoNCE with the positive's similarities to all other passages as additional negatives, a scalar.

    -log of phi(q, d+) / (phi(q, d+) + sum over m of [phi(q, m) + phi(d+, m)]), where m are all passages except d+
    and phi = exp(similarity / temperature).
    Arguments as in `infonce`. Source: SimLM, Eq. 3. The loss is ln(2 B n - 1) if all vectors are equal.
    """
    columns = get_positive_columns(queries, passages)
    query_scores = compute_similarities(queries, passages, similarity=similarity, temperature=temperature)
    positive_scores = compute_similarities(passages[columns], passages, similarity=similarity, temperature=temperature)
    if mask is not None:
        query_scores, positive_scores = (
            scores.masked_fill(mask, float("-inf")) for scores in (query_scores, positive_scores)
        )
    is_self = F.one_hot(columns, len(passages)).bool()
    scores = torch.cat([query_scores, positive_scores.masked_fill(is_self, float("-inf"))], dim=1)  # (B, 2 * B * n)
    return F.cross_entropy(scores, columns, reduction="none").mean()


def simlm_full(
    queries: Tensor, passages: Tensor, *, similarity: str, temperature: float, mask: Tensor | None = None
) -> Tensor:
    """Return InfoNCE with three more groups of in-batch negatives, as in SimLM's released code, a scalar.

    The softmax is over the similarities of query and all passages, positive and other queries, query and other queries,
    and positive and other positives. The loss is ln(B n + 3 (B - 1)) if all vectors are equal. Arguments as in `infonce`.
    """
    columns = get_positive_columns(queries, passages)
    positives = passages[columns]
    is_self = torch.eye(len(queries), dtype=torch.bool, device=queries.device)
    # [i, j]: the positive of query j is relevant to query i too
    is_relevant = torch.zeros_like(is_self) if mask is None else mask[:, columns]
    blocks = [
        (queries, passages, mask),
        (positives, queries, is_self | is_relevant.T),
        (queries, queries, is_self | is_relevant | is_relevant.T),
        (positives, positives, is_self | is_relevant),
    ]
    scores = []
    for left, right, excluded in blocks:
        block = compute_similarities(left, right, similarity=similarity, temperature=temperature)
        scores.append(block if excluded is None else block.masked_fill(excluded, float("-inf")))
    return F.cross_entropy(torch.cat(scores, dim=1), columns, reduction="none").mean()


def mask_duplicate_positives(passages: Tensor, num_queries: int) -> Tensor:
    """Return a mask of the duplicates of each query's positive in the batch, (B, B * n) bool; False at the positive itself.

    passages: (B * n,), corpus indices of the passages, n per query, the positive first    num_queries: B
    """
    columns = torch.arange(num_queries, device=passages.device) * (len(passages) // num_queries)
    same = passages[columns].unsqueeze(1) == passages.unsqueeze(0)
    same[torch.arange(num_queries, device=passages.device), columns] = False
    return same


def mask_labeled_positives(passages: Tensor, positives: Tensor, *, own: Tensor) -> Tensor:
    """Return a mask of the passages that are labeled positives of a query, (B, C) bool; False at column `own` of each query.

    passages: (C,), corpus indices of the passages
    positives: (B, P), corpus indices of all labeled positives of each query, padded with -1
    own: (B,), column of the positive that the query is trained on
    """
    mask = torch.isin(passages.unsqueeze(0), positives.unique()).expand(len(positives), -1).clone()
    columns = mask[0].nonzero().squeeze(1)  # few, since most passages are a positive of no query
    mask[:, columns] = (positives.unsqueeze(2) == passages[columns]).any(dim=1)  # (B, P, columns) to (B, columns)
    mask[torch.arange(len(own), device=own.device), own] = False
    return mask
