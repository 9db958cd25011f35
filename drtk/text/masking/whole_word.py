"""Masking of whole words by chance (methods: section 4.1)."""

from __future__ import annotations

import numpy as np

from drtk.text.masking.base import Other
from drtk.text.masking.budget import fitting, mask_budget
from drtk.text.masking.grouping import grouped
from drtk.text.tokenised import Text


def whole_words(
    text: Text, rate: float, *, rng: np.random.Generator, counted: int, other: Other | None = None
) -> np.ndarray:
    """Hides words in random order, all pieces of each, and passes over those that `mask_budget` has no room for."""
    words = grouped(text.words)
    order = rng.permutation(len(words.sizes))
    return words.hidden(fitting(order, words.sizes, mask_budget(rate, counted)))
