"""A mask that another mask is part of (SimLM's decoder, Wang 2023, section 3.1; methods: section 4.6)."""

from __future__ import annotations

import numpy as np

from drtk.text.masking.base import Other, mask_of
from drtk.text.masking.whole_word import whole_words
from drtk.text.tokenised import Text


def extra_rate(rate: float, inner: float) -> float:
    """(rate - inner) / (1 - inner), the rate of an independent draw whose union with one at `inner` is one at `rate`.

    ValueError where `rate` is smaller than `inner`.
    """
    if rate < inner:
        raise ValueError(f"a mask that extends one of rate {inner:g} cannot have the rate {rate:g}")
    return (rate - inner) / (1 - inner) if inner < 1 else 0.0


def extension(
    text: Text, rate: float, *, rng: np.random.Generator, counted: int, other: Other | None = None
) -> np.ndarray:
    """Hides what `other` hides, and whole words of an independent draw over the full text at `extra_rate`.

    Equal rates: exactly what `other` hides. Both draws may hide the same words, so that only the expected count is that of `rate`.
    """
    inner = mask_of(other, text, "extension")
    return inner.hidden | whole_words(text, extra_rate(rate, inner.rate), rng=rng, counted=counted)
