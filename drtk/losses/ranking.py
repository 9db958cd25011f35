"""Losses of re-rankers over the passages of one query: listwise, R-Drop, binary; and over a question's expansions: margins
of pairs. All compute in float32.

Layout: logits (queries, n), the positive in column 0 unless labels say otherwise; there are no negatives of other queries.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


def listwise(logits: Tensor) -> Tensor:
    """-log softmax of the positive among its query's passages, averaged over queries (methods, section 6.7).

    logits: (queries, n)    returns: (), ln n where all are alike
    """
    return -F.log_softmax(logits.float(), dim=-1)[:, 0].mean()


def r_drop(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """The cross-entropy of two passes with their own dropout, and how far the passes are apart (R-Drop, Liang 2021).

    With p = softmax(first), q = softmax(second): 0.5 CE(p) + 0.5 CE(q), and 0.5 (KL(p || q) + KL(q || p)); both averaged
    over queries. Their sum is SimLM's loss.
    first, second: (queries, n)    returns: (), (); the second is zero exactly when both passes agree
    """
    log_p, log_q = F.log_softmax(first.float(), dim=-1), F.log_softmax(second.float(), dim=-1)
    cross_entropy = -0.5 * (log_p[:, 0] + log_q[:, 0]).mean()
    apart = 0.5 * ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=-1).mean()  # both directions in one sum
    return cross_entropy, apart


def hardest(logits: Tensor, keep: int) -> Tensor:
    """The columns of the positive and of the best scored negatives of each query: those that are trained on.

    logits: (queries, n)    keep: at least 1; all columns where it is n or more
    returns: (queries, min(keep, n)), column 0 first, then negatives from the highest to the lowest
    """
    keep = min(keep, logits.shape[1])
    best = logits[:, 1:].topk(keep - 1, dim=-1).indices + 1
    return torch.cat([torch.zeros_like(logits[:, :1], dtype=torch.long), best], dim=-1)


def binary(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of "the passage answers the query" for each pair by itself, averaged (methods, section 7.10).

    logits: (pairs,)    labels: (pairs,), 1 or 0    returns: (), ln 2 where all logits are 0
    """
    return F.binary_cross_entropy_with_logits(logits.float(), labels.float())


def listwise_labels(logits: Tensor, labels: Tensor, present: Tensor) -> Tensor:
    """Listwise cross-entropy against labels that several passages share: -sum y / sum(y) log softmax, averaged over queries.

    logits, labels: (queries, n)    present: (queries, n), False at padding, which has no label and no share of the softmax
    returns: ()    (methods, section 6.9)
    """
    log_p = F.log_softmax(logits.float().masked_fill(~present, float("-inf")), dim=-1)
    share = labels.float() / labels.float().sum(dim=-1, keepdim=True)
    return -(share * log_p.masked_fill(~present, 0.0)).sum(dim=-1).mean()


def pairwise_margin(
    scores: Tensor,
    ranks: Tensor,
    present: Tensor,
    *,
    alpha: float = 0.01,
    weight: Literal["offset", "sum"] = "offset",
    skip_ties: bool = True,
) -> Tensor:
    """Hinges of all pairs of a question's expansions, averaged over questions (EAR: Chuang's thesis, section 3.3.1; methods, 7.5).

    With expansions in the order of their ranks, equal ones in that of their places, pair i < j has the hinge
    max(0, M_i - M_j + alpha (r_j - r_i)): LOWER scores are better, the better the further the ranks are apart.
    scores: (questions, n)    ranks: (questions, n), from 1    present: (questions, n), False at padding
    weight: "sum", all hinges of a question added (as printed); "offset", their mean for each j - i by itself, then the mean
            of these means (as released), those left out that have no pair
    skip_ties: leave out pairs of equal rank, whose margin is 0 and whose order is arbitrary (the released code has them)
    returns: (), 0 where no question has a pair
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


def recall_loss(weights: Tensor, recall: Tensor, first: Tensor) -> Tensor:
    """Mean squared error over the first pieces of words; 0 where there is none (DeepCT).

    weights, recall: (passages, tokens), the prediction and the share of a passage's queries that have the word
    first: (passages, tokens), 1 at the first piece of a word, 0 elsewhere
    returns: ()
    """
    first = first.float()
    return ((weights.float() - recall.float()).square() * first).sum() / first.sum().clamp(min=1)


def pair_loss(positive: Tensor, negative: Tensor) -> Tensor:
    """-log of the positive's share in a softmax of both scores, averaged over pairs (DeepImpact).

    positive, negative: (pairs,); returns: ()
    """
    scores = torch.stack([positive.float(), negative.float()], dim=1)  # (pairs, 2)
    return F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device))
