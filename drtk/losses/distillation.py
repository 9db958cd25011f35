"""What a student learns from a teacher's scores of each query's own candidates (methods, section 6.8). All in float32.

Layout as in drtk/losses/contrastive.py: passages (B * n, H) in blocks of n, the positive first.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def candidate_scores(queries: Tensor, passages: Tensor, *, similarity: str, temperature: float) -> Tensor:
    """Cosine or inner product of each query with its own candidates alone, over the temperature.

    queries: (B, H)    passages: (B * n, H)    returns: (B, n)
    """
    queries, passages = queries.float(), passages.float()
    if similarity == "cosine":
        queries, passages = F.normalize(queries, dim=-1), F.normalize(passages, dim=-1)
    candidates = passages.unflatten(0, (len(queries), -1))  # (B, n, H)
    return torch.einsum("bh,bnh->bn", queries, candidates) / temperature


def distill_kl(student: Tensor, teacher: Tensor, *, teacher_temperature: float = 1.0) -> Tensor:
    """KL(teacher || student) over each query's candidates, averaged over queries.

    student, teacher: (B, n), raw scores    returns: (), zero exactly where both distributions agree
    """
    log_q = F.log_softmax(student.float(), dim=-1)
    log_p = F.log_softmax(teacher.float() / teacher_temperature, dim=-1)
    return F.kl_div(log_q, log_p, log_target=True, reduction="batchmean")


def squared_margins(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared error of the margins between a query's positive and each of its negatives (Hofstätter 2020, Eq. 6).

    student, teacher: (B, n), raw scores, the positive's first    returns: (), 0 where there are no negatives
    """
    student, teacher = student.float(), teacher.float()
    apart = (student[:, :1] - student[:, 1:]) - (teacher[:, :1] - teacher[:, 1:])  # (B, n - 1)
    return apart.square().mean() if apart.numel() else student.sum() * 0.0


def kl(
    queries: Tensor,
    passages: Tensor,
    *,
    teacher: Tensor,
    similarity: str,
    temperature: float,
    teacher_temperature: float = 1.0,
) -> Tensor:
    """`distill_kl` of the scores of vectors, (). queries: (B, H)    passages: (B * n, H)    teacher: (B, n)"""
    student = candidate_scores(queries, passages, similarity=similarity, temperature=temperature)
    return distill_kl(student, teacher, teacher_temperature=teacher_temperature)


def margin_mse(
    queries: Tensor,
    passages: Tensor,
    *,
    teacher: Tensor,
    similarity: str,
    temperature: float,
    teacher_temperature: float = 1.0,
) -> Tensor:
    """`squared_margins` of the scores of vectors, (). queries: (B, H)    passages: (B * n, H)    teacher: (B, n)"""
    student = candidate_scores(queries, passages, similarity=similarity, temperature=temperature)
    return squared_margins(student, teacher.float() / teacher_temperature)
