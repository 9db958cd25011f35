"""Masking of words drawn by their weights (MASTER's masked keywords, Zhou 2023; methods: section 4.4)."""

from __future__ import annotations

import numpy as np

from drtk.text.masking.base import Other, weighing, weights_of
from drtk.text.masking.budget import mask_budget
from drtk.text.masking.grouping import grouped
from drtk.text.tokenised import Text


def drawn(weights: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
    """Numbers of words in the order of draws without replacement, each in proportion to the weights of what is left.

    An exponential draw over the weight, the smallest first, is that order (Efraimidis and Spirakis 2006).
    weights: (words,); those without one come last, as chance has it    returns: (words,)
    """
    weightless = ~(weights > 0)
    waits = rng.standard_exponential(len(weights))
    waits[~weightless] /= weights[~weightless]
    return np.lexsort((waits, weightless))


@weighing
def keyword(
    text: Text, rate: float, *, rng: np.random.Generator, counted: int, other: Other | None = None
) -> np.ndarray:
    """Hides words drawn in proportion to their weight until `mask_budget` pieces are covered: the last word may exceed it.

    The weight of a word is the largest of its pieces.
    """
    weights, words = weights_of(text, "keyword"), grouped(text.words)
    order = drawn(words.largest(weights), rng=rng)
    chosen = np.zeros(len(order), dtype=bool)
    budget = mask_budget(rate, counted)
    if budget:
        covered = words.sizes[order].cumsum()
        chosen[order[: int(covered.searchsorted(budget)) + 1]] = True
    return words.hidden(chosen)
