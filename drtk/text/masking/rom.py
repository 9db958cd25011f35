"""Masking by weight and chance (ROM, Gao and Gao 2023, section 3.3; methods: section 4.3)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from drtk.text.masking.budget import mask_budget

Scale = Literal["max", "minmax", "sum"]


def scaled(weights: np.ndarray, how: Scale) -> np.ndarray:
    """Weights of a passage in [0, 1]: by their largest, from smallest to largest, or to a sum of 1; 0 where they are all 0.

    weights: (pieces,), 0 or more. A sum of 1 makes weights of long passages too small to matter beside chance.
    """
    lowest = weights.min(initial=np.inf) if how == "minmax" and len(weights) else 0.0
    span = weights.sum() if how == "sum" else weights.max(initial=0.0) - lowest
    return (weights - lowest) / span if span > 0 else np.zeros_like(weights)


def rom(weights: np.ndarray, rate: float, *, chance: np.ndarray) -> np.ndarray:
    """Hides the pieces with the largest sum of weight and chance, the first of equals.

    weights: (pieces,) in [0, 1]; all 0: random masking. chance: (pieces,), draws from U(0, 1)
    returns: (pieces,), True where hidden
    """
    hidden = np.zeros(len(weights), dtype=bool)
    hidden[np.argsort(-(weights + chance), kind="stable")[: mask_budget(rate, len(weights))]] = True
    return hidden
