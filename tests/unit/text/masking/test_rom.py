"""Masking by weight and chance: the figure of ROM's paper worked out by hand (methods: section 4.3), and its limits."""

from __future__ import annotations

import numpy as np
import pytest

from drtk.text.masking.budget import mask_budget
from drtk.text.masking.rom import rom, scaled

# "A stomach is the result of an allergic reaction": Figure 1 of the paper.
WEIGHTS = np.array([0, 0.4, 0, 0, 0.1, 0, 0, 0.3, 0.2])
CHANCE = np.array([0.62, 0.15, 0.80, 0.33, 0.47, 0.90, 0.05, 0.55, 0.71])


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
        (0.0, 142, 0),
        (0.15, 0, 0),
    ],
)
def test_the_budget_is_a_rounded_share_and_at_least_one(rate: float, count: int, budget: int) -> None:
    assert mask_budget(rate, count) == budget


def hidden(weights: np.ndarray, rate: float) -> list[int]:
    return sorted(np.flatnonzero(rom(weights, rate, chance=CHANCE)))


def test_the_example_of_the_paper_hides_what_its_sums_say() -> None:
    # Sums .62 .55 .80 .33 .57 .90 .05 .85 .91: of nine pieces one is hidden, the last; of the three largest the others are 5 and 7.
    assert hidden(WEIGHTS, 0.15) == [8]
    assert hidden(WEIGHTS, 0.34) == [5, 7, 8]


def test_weights_divided_by_their_maximum_decide_otherwise() -> None:
    # .62 .15+1 .80 .33 .47+.25 .90 .05 .55+.75 .71+.5 = … 1.15 … .72 … 1.30 1.21
    assert hidden(scaled(WEIGHTS, "max"), 0.15) == [7]
    assert hidden(scaled(WEIGHTS, "max"), 0.34) == [1, 7, 8]


def test_without_weights_chance_alone_decides() -> None:
    assert hidden(np.zeros(9), 0.15) == [5]


def test_of_equal_sums_the_first_is_hidden() -> None:
    assert np.flatnonzero(rom(np.array([0.5, 0.0, 0.5]), 0.15, chance=np.array([0.25, 0.75, 0.25]))).tolist() == [0]


def test_weights_are_scaled_by_maximum_span_or_sum() -> None:
    weights = np.array([1.0, 3.0, 2.0, 2.0])
    assert scaled(weights, "max").tolist() == pytest.approx([1 / 3, 1, 2 / 3, 2 / 3])
    assert scaled(weights, "minmax").tolist() == pytest.approx([0, 1, 0.5, 0.5])
    assert scaled(weights, "sum").tolist() == pytest.approx([1 / 8, 3 / 8, 1 / 4, 1 / 4])


@pytest.mark.parametrize("how", ["max", "minmax", "sum"])
def test_weights_that_are_all_alike_or_none_are_no_division_by_zero(how: str) -> None:
    assert scaled(np.zeros(3), how).tolist() == [0, 0, 0]  # type: ignore[arg-type]
    assert scaled(np.zeros(0), how).tolist() == []  # type: ignore[arg-type]
