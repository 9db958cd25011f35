"""Masking of single tokens by chance alone (methods: section 4.2)."""

from __future__ import annotations

import numpy as np

from drtk.text.masking.base import Other
from drtk.text.masking.budget import mask_budget
from drtk.text.tokenised import Text


def random_tokens(
    text: Text, rate: float, *, rng: np.random.Generator, counted: int, other: Other | None = None
) -> np.ndarray:
    """Hides exactly `mask_budget` word pieces, or all where there are fewer; every set of them is as likely.

    Those with the largest draws from U(0, 1): what `rom` hides of a text without weights under the same seed.
    """
    hidden = np.zeros(len(text.ids), dtype=bool)
    content = (text.words >= 0).nonzero()[0]
    order = np.argsort(-rng.random(len(content)), kind="stable")
    hidden[content[order[: mask_budget(rate, counted)]]] = True
    return hidden


def bernoulli(
    text: Text, rate: float, *, rng: np.random.Generator, counted: int, other: Other | None = None
) -> np.ndarray:
    """Hides each word piece with the chance `rate`, whatever becomes of the others: a short text may keep all (DiffCSE)."""
    return (rng.random(len(text.ids)) < rate) & (text.words >= 0)
