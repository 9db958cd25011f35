"""Losses of re-rankers over the passages of one query, of query re-rankers and of term weights, in float32.

logits: (queries, n), the positive in column 0 unless there are labels; other queries' passages are no negatives
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


def listwise_cross_entropy(logits: Tensor) -> Tensor:
    """Return -log softmax of the positive among its query's passages, averaged over queries, () (docs/methods/re-ranker.md)."""
    return -F.log_softmax(logits.float(), dim=-1)[:, 0].mean()


def r_drop_losses(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of two passes with different dropout, and their divergence (R-Drop, Liang 2021).

    With p = softmax(first), q = softmax(second): 0.5 CE(p) + 0.5 CE(q), and 0.5 (KL(p || q) + KL(q || p)); both averaged
    over queries, (). SimLM's loss is their sum.
    """
    log_p, log_q = F.log_softmax(first.float(), dim=-1), F.log_softmax(second.float(), dim=-1)
    cross_entropy = -0.5 * (log_p[:, 0] + log_q[:, 0]).mean()
    divergence = 0.5 * ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=-1).mean()  # both directions in one sum
    return cross_entropy, divergence


def select_hardest(logits: Tensor, keep: int) -> Tensor:
    """Return the columns of the positive and of the best scored negatives of each query, (queries, min(keep, n)), best first.

    keep: at least 1
    """
    keep = min(keep, logits.shape[1])
    best = logits[:, 1:].topk(keep - 1, dim=-1).indices + 1
    return torch.cat([torch.zeros_like(logits[:, :1], dtype=torch.long), best], dim=-1)


def binary_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the binary cross-entropy of relevance, averaged over pairs, () (docs/methods/passage-reranking.md).

    logits: (pairs,)    labels: (pairs,), 1 or 0
    """
    return F.binary_cross_entropy_with_logits(logits.float(), labels.float())


def multi_positive_cross_entropy(logits: Tensor, labels: Tensor, present: Tensor) -> Tensor:
    """Return the cross-entropy with several positives, -sum y / sum(y) log softmax, averaged over queries, () (docs/methods/hlatr.md).

    labels: (queries, n)    present: (queries, n), False at padding, which leaves the softmax
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
    """Return the hinge loss of all pairs of a question's expansions, averaged over questions, (); 0 without pairs (docs/methods/ear.md).

    With expansions sorted by rank, stably, pair i < j has the hinge max(0, M_i - M_j + alpha (r_j - r_i)): LOWER scores are
    better, by a margin that grows with the difference of ranks (EAR: Chuang's thesis, section 3.3.1).
    scores: (questions, n)    ranks: (questions, n), from 1    present: (questions, n), False at padding
    weight: "sum" of the hinges (as printed), or "offset": their mean for each j - i that has a pair, then the mean of these
            means (as released)
    skip_ties: leave out pairs of equal rank, whose order is arbitrary (the released code keeps them)
    """
    last = torch.iinfo(torch.long).max
    order = ranks.long().masked_fill(~present, last).argsort(dim=-1, stable=True)  # (questions, n), padding last
    score, rank, there = scores.float().gather(-1, order), ranks.gather(-1, order), present.gather(-1, order)
    n = score.shape[-1]
    apart = (rank.unsqueeze(-2) - rank.unsqueeze(-1)).float()  # (questions, i, j): r_j - r_i
    hinge = (score.unsqueeze(-1) - score.unsqueeze(-2) + alpha * apart).clamp_min(0)  # (questions, i, j)
    places = torch.arange(n, device=score.device)
    offset = places.unsqueeze(0) - places.unsqueeze(1)  # (i, j): j - i
    counted = there.unsqueeze(-1) & there.unsqueeze(-2) & (offset > 0)
    if skip_ties:
        counted = counted & (apart > 0)
    hinge = hinge * counted
    if weight == "sum":
        return hinge.sum(dim=(-1, -2)).mean()
    bins = offset.clamp_min(0).flatten().expand(len(score), -1)  # (questions, n * n)
    empty = torch.zeros_like(score)
    sums = empty.scatter_add(-1, bins, hinge.flatten(1))  # (questions, n), by offset
    pairs = empty.scatter_add(-1, bins, counted.flatten(1).float())
    means = sums / pairs.clamp_min(1)
    return (means.sum(dim=-1) / (pairs > 0).sum(dim=-1).clamp_min(1)).mean()


def term_recall_loss(weights: Tensor, recall: Tensor, first: Tensor) -> Tensor:
    """Return the mean squared error over the first pieces of words, (); 0 without any (DeepCT).

    weights, recall: (passages, tokens), the prediction, and the share of the passage's queries that contain the word
    first: (passages, tokens), 1 at the first piece of a word, 0 elsewhere
    """
    first = first.float()
    return ((weights.float() - recall.float()).square() * first).sum() / first.sum().clamp(min=1)


def pairwise_softmax_loss(positive: Tensor, negative: Tensor) -> Tensor:
    """Return -log softmax of the positive of each pair, averaged over pairs, () (DeepImpact). Both: (pairs,)"""
    scores = torch.stack([positive.float(), negative.float()], dim=1)  # (pairs, 2)
    return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device))
