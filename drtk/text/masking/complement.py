"""What another mask left visible (MASTER's complementary mask, Zhou 2023; methods: section 4.5)."""

from __future__ import annotations

import numpy as np

from drtk.text.masking.base import Other, mask_of
from drtk.text.tokenised import Text


def complement(
    text: Text, rate: float, *, rng: np.random.Generator, counted: int, other: Other | None = None
) -> np.ndarray:
    """Hides the word pieces that `other` does not, and no other: nothing is drawn, and the rate decides nothing."""
    return ~mask_of(other, text, "complement").hidden & (text.words >= 0)
