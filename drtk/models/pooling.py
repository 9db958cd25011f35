"""Token vectors to one vector a text; the modes and their names are those of sentence-transformers."""

from __future__ import annotations

import torch
from torch import Tensor

POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


def pool(hidden: Tensor, mask: Tensor, modes: tuple[str, ...], *, skip: int = 0) -> Tensor:
    """One vector a text, float32, whatever the precision of `hidden`.

    hidden: (batch, tokens, hidden)    mask: (batch, tokens), 1 at tokens and 0 at padding, on either side
    modes: names out of POOLINGS, whose vectors are put side by side
    skip: tokens at the start (a prompt) that do not count
    returns: (batch, hidden * len(modes))
    """
    hidden = hidden.float()
    counted = _without_prompt(mask, skip) if skip else mask
    return torch.cat([_POOL[mode](hidden, counted, mask) for mode in modes], dim=-1)


def _without_prompt(mask: Tensor, skip: int) -> Tensor:
    start = _first(mask).unsqueeze(1) + skip
    position = torch.arange(mask.shape[1], device=mask.device).unsqueeze(0)
    return mask * (position >= start)


def _first(mask: Tensor) -> Tensor:
    return mask.to(torch.int32).argmax(dim=1)


def _row(hidden: Tensor, index: Tensor) -> Tensor:
    return hidden[torch.arange(len(hidden), device=hidden.device), index]


def _cls(hidden: Tensor, counted: Tensor, _: Tensor) -> Tensor:
    return _row(hidden, _first(counted))


def _last(hidden: Tensor, counted: Tensor, _: Tensor) -> Tensor:
    return _row(hidden, counted.shape[1] - 1 - _first(counted.flip(1)))


def _max(hidden: Tensor, counted: Tensor, _: Tensor) -> Tensor:
    return hidden.masked_fill(counted.unsqueeze(-1) == 0, float("-inf")).amax(dim=1)


def _sum(hidden: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    weights = weights.to(hidden.dtype)
    total = torch.bmm(weights.unsqueeze(1), hidden).squeeze(1)  # (batch, 1, tokens) @ (batch, tokens, hidden)
    return total, weights.sum(dim=1, keepdim=True).clamp(min=1e-9)


def _mean(hidden: Tensor, counted: Tensor, _: Tensor) -> Tensor:
    total, count = _sum(hidden, counted)
    return total / count


def _mean_sqrt(hidden: Tensor, counted: Tensor, _: Tensor) -> Tensor:
    total, count = _sum(hidden, counted)
    return total / count.sqrt()


def _weighted_mean(hidden: Tensor, counted: Tensor, mask: Tensor) -> Tensor:
    """Weights 1, 2, 3 … from the first token that is no padding; a prompt left out keeps its places."""
    position = torch.arange(1, mask.shape[1] + 1, device=mask.device) - _first(mask).unsqueeze(1)
    total, weight = _sum(hidden, counted * position)
    return total / weight


_POOL = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}
