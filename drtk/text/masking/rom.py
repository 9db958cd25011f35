"""Mask words by weight plus noise (ROM, Long 2022, section 3.3; methods: section 4.3)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from drtk.text.masking.base import Other, weighing, weights_of
from drtk.text.masking.budget import fitting, mask_budget
from drtk.text.masking.grouping import grouped
from drtk.text.tokenised import Text

Scale = Literal["max", "minmax", "sum"]


def scaled(weights: np.ndarray, how: Scale) -> np.ndarray:
    """Weights of a passage in [0, 1]: by their largest, from smallest to largest, or to a sum of 1; 0 where they are all 0.

    weights: (pieces,), 0 or more. A sum of 1 makes weights of long passages too small to matter beside chance.
    """
    lowest = weights.min(initial=np.inf) if how == "minmax" and len(weights) else 0.0
    span = weights.sum() if how == "sum" else weights.max(initial=0.0) - lowest
    return (weights - lowest) / span if span > 0 else np.zeros_like(weights)


def largest_first(scores: np.ndarray) -> np.ndarray:
    """The places of scores from the largest to the smallest, of equals the first first. scores: (pieces,)"""
    return np.argsort(-scores, kind="stable")


@weighing
def rom(
    text: Text,
    rate: float,
    *,
    rng: np.random.Generator,
    counted: int,
    other: Other | None = None,
    scale: Scale = "max",
    weight_scale: float = 1.0,
    whole_word: bool = False,
) -> np.ndarray:
    """Hides the `mask_budget` word pieces with the largest sum of a draw from U(0, 1) and their weight, the first of equals.

    Without weights above 0 this is `random`.
    scale: what brings the weights of this text's pieces into [0, 1]    weight_scale: times this, against the draw
    whole_word: one draw and one weight, the largest of its pieces, for a word; words without room are passed over
    """
    weights, budget = weights_of(text, "rom"), mask_budget(rate, counted)
    if whole_word:
        words = grouped(text.words)
        values = scaled(words.largest(weights), scale) * weight_scale
        order = largest_first(values + rng.random(len(values)))
        return words.hidden(fitting(order, words.sizes, budget))
    hidden = np.zeros(len(text.ids), dtype=bool)
    content = (text.words >= 0).nonzero()[0]
    values = scaled(weights[content], scale) * weight_scale
    hidden[content[largest_first(values + rng.random(len(values)))[:budget]]] = True
    return hidden
