"""Two slots' vectors find each other among those of the batch, of all processes together (methods: sections 5.3, 5.10)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from drtk.losses.contrastive import similarities
from drtk.settings.composition import Contrast


def contrast_loss(wanted: Contrast, vectors: Mapping[str, Tensor], present: Mapping[str, Tensor]) -> Tensor:
    """The mean over all rows that ask, (); 0 where none does.

    vectors: (batch, hidden) by slot; present: (batch,) bool by slot. A pair of which one side is missing neither asks
    nor is found.
    """
    found = _pairs(wanted, wanted.b, vectors, present)
    for name in wanted.extra_positives:  # a term each, averaged (methods: section 5.10)
        found = found + _pairs(wanted, name, vectors, present)
    return found / (1 + len(wanted.extra_positives))


def _pairs(wanted: Contrast, other: str, vectors: Mapping[str, Tensor], present: Mapping[str, Tensor]) -> Tensor:
    """One slot against the other: cross-entropy of each row's partner."""
    left, right = vectors[wanted.a].float(), vectors[other].float()
    there = present[wanted.a] & present[other]
    size = len(left)
    partners = torch.arange(size, device=left.device)
    if wanted.candidates == "all":
        rows, columns = torch.cat([left, right]), torch.cat([left, right])
        barred = torch.eye(2 * size, dtype=torch.bool, device=left.device)  # oneself is no candidate
        targets, valid = torch.cat([partners + size, partners]), there.repeat(2)
        barred = barred | ~valid[None, :]
        if not wanted.symmetric:
            rows, barred, targets = rows[:size], barred[:size], targets[:size]
        return _asked(wanted, rows, columns, barred, targets, valid[: len(rows)], vectors, present)
    barred = (~there)[None, :].expand(size, size)
    loss = _asked(wanted, left, right, barred, partners, there, vectors, present)
    if wanted.symmetric:
        loss = (loss + _asked(wanted, right, left, barred, partners, there, vectors, present)) / 2
    return loss


def _asked(
    wanted: Contrast,
    rows: Tensor,
    columns: Tensor,
    barred: Tensor,
    targets: Tensor,
    valid: Tensor,
    vectors: Mapping[str, Tensor],
    present: Mapping[str, Tensor],
) -> Tensor:
    """Mean cross-entropy of `targets` among `columns` and the extra negatives that are there, over the valid rows, ().

    rows: (n, hidden); columns: (m, hidden); barred: (n, m); targets, valid: (n,)
    """
    if not bool(valid.any()):
        return rows.sum() * 0.0  # keeps the graph, so that no process waits for another's gradients
    scores = similarities(rows, columns, similarity=wanted.similarity, temperature=wanted.temperature)
    scores = scores.masked_fill(barred, -torch.inf)
    extra = [
        similarities(rows, vectors[name], similarity=wanted.similarity, temperature=wanted.temperature).masked_fill(
            ~present[name][None, :], -torch.inf
        )
        for name in wanted.extra_negatives
    ]
    scores = torch.cat([scores, *extra], dim=1)
    return F.cross_entropy(scores[valid], targets[valid])
