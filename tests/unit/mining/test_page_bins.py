"""Bins of the report's histograms."""

from __future__ import annotations

import pytest

from drtk.mining.report import Spread


def spread_of(values: list[float]) -> Spread:
    spread = Spread()
    for at, value in enumerate(values):
        spread.add(value, str(at))
    return spread


def test_whole_numbers_get_bins_that_hold_as_many_of_them_each() -> None:
    # ranks 2 to 20 in up to 40 bins: one bin a rank, none of them empty
    shares, edges = spread_of([float(rank) for rank in range(2, 21)]).histogram(40)
    assert shares == pytest.approx([1 / 19] * 19)
    assert edges[:2] == [1.5, 2.5]
    # 1 to 100 in up to 40: three ranks a bin, the last bin has rank 100 alone
    shares, _ = spread_of([float(rank) for rank in range(1, 101)]).histogram(40)
    assert shares == pytest.approx([0.03] * 33 + [0.01])


def test_other_numbers_get_equal_bins() -> None:
    shares, edges = spread_of([0.0, 0.1, 0.9, 1.0]).histogram(2)
    assert (shares, edges) == ([0.5, 0.5], [0.0, 0.5, 1.0])
