"""Losses of passage rerankers, query rerankers and term weighting models, in float32.

logits: (queries, n), scores of n passages per query; for losses without labels, column 0 is the positive
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


def listwise_cross_entropy(logits: Tensor) -> Tensor:
    """Return the cross-entropy of the positive among the passages of a query, averaged over queries, a scalar.

    logits: (queries, n), the positive in column 0    Source: docs/methods/re-ranker.md
    """
    return -F.log_softmax(logits.float(), dim=-1)[:, 0].mean()


def r_drop_losses(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy of two forward passes, and the divergence of their predictions, two scalars.

    With p = softmax(first), q = softmax(second): 0.5 CE(p) + 0.5 CE(q), and 0.5 (KL(p || q) + KL(q || p)), averaged over
    queries. SimLM minimizes the sum of both losses.

    first, second: (queries, n), logits with different dropout, the positive in column 0
    Source: R-Drop (Liang et al. 2021)
    """
    log_p, log_q = F.log_softmax(first.float(), dim=-1), F.log_softmax(second.float(), dim=-1)
    cross_entropy = -0.5 * (log_p[:, 0] + log_q[:, 0]).mean()
    divergence = 0.5 * ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=-1).mean()  # both directions in one sum
    return cross_entropy, divergence


def select_hardest(logits: Tensor, keep: int) -> Tensor:
    """Return the columns of the positive and of the highest-scored negatives, (queries, min(keep, n)).

    The positive comes first, then negatives by descending score.
    logits: (queries, n), the positive in column 0    keep: passages per query, at least 1
    """
    keep = min(keep, logits.shape[1])
    best = logits[:, 1:].topk(keep - 1, dim=-1).indices + 1
    return torch.cat([torch.zeros_like(logits[:, :1], dtype=torch.long), best], dim=-1)


def binary_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the binary cross-entropy, averaged over query-passage pairs, a scalar (docs/methods/re-ranker.md).

    logits: (pairs,)    labels: (pairs,), 1 for relevant, 0 otherwise
    """
    return F.binary_cross_entropy_with_logits(logits.float(), labels.float())


def multi_positive_cross_entropy(logits: Tensor, labels: Tensor, present: Tensor) -> Tensor:
    """Return the cross-entropy with several positives, -sum of y / sum(y) * log softmax, averaged over queries, a scalar.

    logits: (queries, n)    labels: (queries, n), relevance y, at least one above 0 per query, 0 at padding
    present: (queries, n) bool, False at padding, which is excluded from the softmax
    Source: docs/methods/hlatr.md.
    """
    log_p = F.log_softmax(logits.float().masked_fill(~present, float("-inf")), dim=-1)
    share = labels.float() / labels.float().sum(dim=-1, keepdim=True)
    return -(share * log_p.masked_fill(~present, 0.0)).sum(dim=-1).mean()


def pairwise_margin_loss(
    scores: Tensor,
    ranks: Tensor,
    present: Tensor,
    *,
    alpha: float = 0.01,
    weight: Literal["offset", "sum"] = "offset",
    skip_ties: bool = True,
) -> Tensor:
    """Return the pairwise hinge loss over each question's expansions, averaged over questions, a scalar; 0 without pairs.

    Expansions are sorted by rank. For i < j the hinge is max(0, M_i - M_j + alpha (r_j - r_i)). Thus the better-ranked
    expansion i must have the LOWER score. The margin grows with the rank difference.

    scores: (questions, n), predicted scores M    ranks: (questions, n), target ranks r, from 1
    present: (questions, n) bool, False at padding
    weight: "sum": the sum of all hinges (paper); "offset": the mean for each j - i, averaged over all j - i (released code)
    skip_ties: ignore pairs of equal rank, whose order is arbitrary (the released code includes such pairs)
    Source: EAR (Chuang's thesis, section 3.3.1); docs/methods/ear.md.
    """
    last = torch.iinfo(torch.long).max
    order = ranks.long().masked_fill(~present, last).argsort(dim=-1, stable=True)  # (questions, n), padding last
    score, rank, is_present = scores.float().gather(-1, order), ranks.gather(-1, order), present.gather(-1, order)
    n = score.shape[-1]
    rank_difference = (rank.unsqueeze(-2) - rank.unsqueeze(-1)).float()  # (questions, i, j): r_j - r_i
    hinge = (score.unsqueeze(-1) - score.unsqueeze(-2) + alpha * rank_difference).clamp_min(0)  # (questions, i, j)
    positions = torch.arange(n, device=score.device)
    offset = positions.unsqueeze(0) - positions.unsqueeze(1)  # (i, j): j - i
    is_pair = is_present.unsqueeze(-1) & is_present.unsqueeze(-2) & (offset > 0)
    if skip_ties:
        is_pair = is_pair & (rank_difference > 0)
    hinge = hinge * is_pair
    if weight == "sum":
        return hinge.sum(dim=(-1, -2)).mean()
    bins = offset.clamp_min(0).flatten().expand(len(score), -1)  # (questions, n * n)
    zeros = torch.zeros_like(score)
    sums = zeros.scatter_add(-1, bins, hinge.flatten(1))  # (questions, n), by offset
    num_pairs = zeros.scatter_add(-1, bins, is_pair.flatten(1).float())
    means = sums / num_pairs.clamp_min(1)
    return (means.sum(dim=-1) / (num_pairs > 0).sum(dim=-1).clamp_min(1)).mean()


def term_recall_loss(weights: Tensor, recall: Tensor, first: Tensor) -> Tensor:
    """Return DeepCT's mean squared error over words, a scalar; 0 without words.

    weights: (passages, tokens), predicted weights
    recall: (passages, tokens), share of the passage's queries that contain the word
    first: (passages, tokens), 1 at the first word piece of a word, 0 elsewhere
    """
    first = first.float()
    return ((weights.float() - recall.float()).square() * first).sum() / first.sum().clamp(min=1)


def pairwise_softmax_loss(positive: Tensor, negative: Tensor) -> Tensor:
    """Return DeepImpact's cross-entropy of the positive in each pair, averaged over pairs, a scalar.

    positive, negative: (pairs,), scores of the two passages of a pair
    """
    scores = torch.stack([positive.float(), negative.float()], dim=1)  # (pairs, 2)
    return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device))
