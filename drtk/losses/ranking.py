"""Losses of re-rankers over the passages of one query: listwise, R-Drop, binary. All compute in float32.

Layout: logits (queries, n), the positive in column 0 unless labels say otherwise; there are no negatives of other queries.
"""

from __future__ import annotations

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
