"""FLOPS regularization of sparse encoders (Paria 2020; docs/methods/splade.md)."""

from __future__ import annotations

from torch import Tensor


def flops(weights: Tensor) -> Tensor:
    """Return the FLOPS loss, a scalar: the sum over the vocabulary of the squared mean weight of a word piece.

    weights: (texts, vocabulary), term weights    Source: Paria et al. 2020; SPLADE v2, section 3.
    """
    return weights.float().mean(dim=0).square().sum()


def compute_flops_ramp(step: int, ramp_steps: int) -> float:
    """Return the factor of the FLOPS loss weights at step >= 1: (step / ramp_steps)^2, at most 1; 1 without a ramp."""
    return min(1.0, step / ramp_steps) ** 2 if ramp_steps else 1.0
