"""Distillation losses over each query's own candidates, in float32 (docs/methods/distillation.md).

queries: (B, H), query vectors
passages: (B * n, H), vectors of n candidates per query with the positive first
teacher: (B, n), the teacher's scores of these candidates
temperature, teacher_temperature: divisors of the student's and the teacher's scores
Every loss is a scalar, the mean over queries.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def score_candidates(queries: Tensor, passages: Tensor, *, similarity: str, temperature: float) -> Tensor:
    """Return the cosine or dot product of each query and its own candidates, divided by the temperature, (B, n).

    queries: (B, H)    passages: (B * n, H), n candidates per query    similarity: "cosine" or "dot"
    """
    queries, passages = queries.float(), passages.float()
    if similarity == "cosine":
        queries, passages = F.normalize(queries, dim=-1), F.normalize(passages, dim=-1)
    candidates = passages.unflatten(0, (len(queries), -1))  # (B, n, H)
    return torch.einsum("bh,bnh->bn", queries, candidates) / temperature


def kl_divergence(
    queries: Tensor,
    passages: Tensor,
    *,
    teacher: Tensor,
    similarity: str,
    temperature: float,
    teacher_temperature: float = 1.0,
) -> Tensor:
    """Return KL(teacher || student) of the softmax over each query's candidates, averaged over queries, a scalar.

    queries: (B, H)    passages: (B * n, H), n candidates per query    teacher: (B, n), teacher scores
    """
    student = score_candidates(queries, passages, similarity=similarity, temperature=temperature)
    log_q = F.log_softmax(student, dim=-1)
    log_p = F.log_softmax(teacher.float() / teacher_temperature, dim=-1)
    return F.kl_div(log_q, log_p, log_target=True, reduction="batchmean")


def margin_mse(
    queries: Tensor,
    passages: Tensor,
    *,
    teacher: Tensor,
    similarity: str,
    temperature: float,
    teacher_temperature: float = 1.0,
) -> Tensor:
    """Return the mean squared difference of the student's and the teacher's margins, a scalar; 0 without negatives.

    A margin is the score of the positive minus the score of a negative.
    queries: (B, H)    passages: (B * n, H), n candidates per query, the positive first    teacher: (B, n), teacher scores
    Source: Margin-MSE, Hofstätter et al. 2020, Eq. 6.
    """
    student = score_candidates(queries, passages, similarity=similarity, temperature=temperature)
    teacher = teacher.float() / teacher_temperature
    errors = (student[:, :1] - student[:, 1:]) - (teacher[:, :1] - teacher[:, 1:])  # (B, n - 1)
    return errors.square().mean() if errors.numel() else student.sum() * 0.0
