"""What must not be kept or gone on from: weights that training has ruined, and how a lack of memory is told."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from drtk.errors import DrtkError

EXPLODED = (
    10.0  # times the loss of the first step (or 1, where that was less): no schedule worth going on with does that
)


class Ruined(DrtkError):
    """A loss that is no number: the weights it was computed with are of no use."""


def finite(model: nn.Module) -> bool:
    """Whether every weight, and every running statistic, is a number."""
    state = model.state_dict().values()
    return all(bool(torch.isfinite(value).all()) for value in state if value.is_floating_point())


def exploded(loss: float, first: float | None) -> bool:
    """Whether a loss is far above that of the first step; never where the latter is not known."""
    return first is not None and not loss <= EXPLODED * max(first, 1.0)


def short_of_memory(error: RuntimeError) -> bool:
    """Whether a fault of torch is a lack of memory, on a GPU or, by its wording, on a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def first_loss(complete: Path) -> float | None:
    """The loss of the first step, as the file that marks a whole checkpoint tells it; None where it tells nothing."""
    text = complete.read_text(encoding="utf-8").strip()
    return float(text) if text else None
