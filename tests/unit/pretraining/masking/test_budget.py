"""How much a rate hides (methods: section 4.1), and which words fit into it."""

from __future__ import annotations

import numpy as np
import pytest

from drtk.pretraining.masking.strategies import fill_budget, mask_budget


@pytest.mark.parametrize(
    ("rate", "count", "budget"),
    [
        (0.15, 142, 21),
        (0.30, 142, 43),
        (0.50, 142, 71),
        (0.30, 144, 43),
        (0.15, 10, 2),
        (0.15, 3, 1),
        (0.15, 30, 4),  # round(4.5): halves go to even
        (0.15, 50, 8),  # round(7.5)
        (0.0, 142, 0),
        (0.15, 0, 0),
    ],
)
def test_the_budget_is_a_rounded_share_and_at_least_one(rate: float, count: int, budget: int) -> None:
    assert mask_budget(rate, count) == budget


def taken(order: list[int], sizes: list[int], budget: int) -> list[int]:
    return np.flatnonzero(fill_budget(np.array(order, dtype=int), np.array(sizes, dtype=int), budget)).tolist()


@pytest.mark.parametrize(
    ("order", "sizes", "budget", "expected"),
    [
        ([2, 0, 1], [1, 1, 1], 2, [0, 2]),  # the first two of the order
        ([1, 0, 2, 3], [1, 3, 2, 1], 2, [0, 3]),  # 3 is too large; 1 fits, one is left; 2 is too large; 1 fits
        ([1, 0, 2, 3], [1, 3, 2, 1], 5, [0, 1, 3]),  # 3 + 1, then 2 would be 6; 1 fits
        ([0, 1], [3, 2], 1, []),  # slightly below the budget: nothing fits
        ([0, 1], [3, 2], 9, [0, 1]),  # more than there is
        ([0, 1], [3, 2], 0, []),
        ([], [], 4, []),
    ],
)
def test_a_word_without_room_is_passed_over(
    order: list[int], sizes: list[int], budget: int, expected: list[int]
) -> None:
    assert taken(order, sizes, budget) == expected
