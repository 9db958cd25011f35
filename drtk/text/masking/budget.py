"""How many word pieces a rate hides, and which words fit into that."""

from __future__ import annotations

import numpy as np


def mask_budget(rate: float, count: int) -> int:
    """round(rate * count), halves to even, but at least 1; 0 at rate 0 and where there is nothing (methods: section 4.1)."""
    return max(1, round(rate * count)) if rate > 0 and count > 0 else 0


def fitting(order: np.ndarray, sizes: np.ndarray, budget: int) -> np.ndarray:
    """Takes words in an order until the budget is spent; a word larger than what is left is passed over.

    order: (words,), their numbers, the first to be taken first    sizes: (words,), pieces of each
    returns: (words,), True where taken; together they have at most `budget` pieces
    """
    taken = np.zeros(len(sizes), dtype=bool)
    ordered = sizes[order]
    together = ordered.cumsum()
    cut = int(together.searchsorted(budget, side="right"))  # all words before the first that does not fit
    taken[order[:cut]] = True
    left = budget - int(together[cut - 1]) if cut else budget
    if left:  # few words are left to look at before the rest is spent
        for place, size in enumerate(ordered[cut:].tolist(), start=cut):
            if size <= left:
                taken[order[place]] = True
                left -= size
                if not left:
                    break
    return taken
