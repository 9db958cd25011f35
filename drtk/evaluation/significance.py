"""Paired significance tests, correction for multiple testing, and effect sizes.

`differences` are per-query values of a measure for the system minus those for the baseline: (queries,).
Distributions are computed with scipy.special, because importing scipy.stats is slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isclose
from typing import NamedTuple

import numpy as np

ZERO = 1e-12  # smaller differences are rounding errors
_SIGNS = 1 << 22  # random signs held in memory at once


class TTest(NamedTuple):
    """Result of a t-test: t (None if undefined), degrees of freedom, and the two-sided p value."""

    t: float | None
    df: int
    p: float


def run_t_test(differences: np.ndarray) -> TTest:
    """Compute Student's paired two-sided t-test: t = mean / (sd / sqrt(n)) with n - 1 degrees of freedom. differences: (n,)

    With one query, or if all differences are 0, t is undefined and p is 1. If all queries differ by the same amount, the
    standard deviation is 0, t is infinite and p is 0.
    """
    from scipy.special import stdtr

    count = len(differences)
    if count < 2 or not np.any(np.abs(differences) > ZERO):
        return TTest(None, max(count - 1, 0), 1.0)
    mean, sd = float(differences.mean()), float(differences.std(ddof=1))
    if isclose(sd, 0.0, abs_tol=ZERO):
        return TTest(inf if mean > 0 else -inf, count - 1, 0.0)
    t = mean / (sd / count**0.5)
    return TTest(t, count - 1, float(2 * stdtr(count - 1, -abs(t))))


def run_randomization_test(differences: np.ndarray, *, permutations: int, seed: int) -> float:
    """Return the two-sided p value of Fisher's randomization test (Smucker et al. 2007). differences: (n,)

    It is the share of sign assignments whose absolute mean difference is at least the observed one. All 2^n assignments
    of the n nonzero differences are tested if there are at most `permutations`. Otherwise `permutations` are sampled,
    and p = (number of such assignments + 1) / (permutations + 1). Queries with difference 0 have no influence.
    """
    nonzero = differences[np.abs(differences) > ZERO]
    count = len(nonzero)
    if count == 0:
        return 1.0
    total = float(nonzero.sum())
    threshold = abs(total) - ZERO * float(np.abs(nonzero).sum())
    rows = max(1, _SIGNS // count)

    def count_extreme(keeps_sign: np.ndarray) -> int:
        """Count the assignments whose absolute sum is at least the observed one. keeps_sign: (assignments, count), 0 flips a sign"""
        return int((np.abs(2 * (keeps_sign @ nonzero) - total) >= threshold).sum())

    if count < 63 and 2**count <= permutations:
        starts = range(0, 2**count, rows)
        numbers = (np.arange(start, min(start + rows, 2**count), dtype=np.int64) for start in starts)
        return sum(count_extreme((part[:, None] >> np.arange(count)) & 1) for part in numbers) / 2**count
    rng = np.random.default_rng(seed)
    num_extreme = 0
    for start in range(0, permutations, rows):
        size = min(rows, permutations - start)
        bits = np.frombuffer(rng.bytes(size * ((count + 7) // 8)), dtype=np.uint8).reshape(size, -1)
        num_extreme += count_extreme(np.unpackbits(bits, axis=1, count=count))
    return (num_extreme + 1) / (permutations + 1)


def correct_holm(p_values: Sequence[float]) -> list[float]:
    """Return p values corrected for multiple testing (Holm 1979), in the given order.

    The smallest p is multiplied by the number of tests n, the next by n - 1, and so on. Corrected values never decrease
    and are at most 1.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, at in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[at]))
        corrected[at] = largest
    return corrected


def compute_cohens_d(differences: np.ndarray) -> float | None:
    """Return Cohen's d for pairs: mean / standard deviation (n - 1) of the differences, (n,).

    It is 0 if all differences are 0, and None (undefined) for a single query or if all differences are equal but not 0.
    """
    if len(differences) < 2:
        return None
    sd = float(differences.std(ddof=1))
    if isclose(sd, 0.0, abs_tol=ZERO):
        return 0.0 if abs(float(differences.mean())) <= ZERO else None
    return float(differences.mean()) / sd


def compute_interval(differences: np.ndarray, *, confidence: float) -> tuple[float, float] | None:
    """Return Student's confidence interval of the mean of the differences, (n,); None for a single query."""
    from scipy.special import stdtrit

    count = len(differences)
    if count < 2:
        return None
    mean = float(differences.mean())
    reach = float(stdtrit(count - 1, (1 + confidence) / 2)) * float(differences.std(ddof=1)) / count**0.5
    return mean - reach, mean + reach
