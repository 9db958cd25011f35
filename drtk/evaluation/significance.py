"""Is a difference of per-query values more than chance? Paired tests, their correction, and the size of the difference.

`differences` are those of one measure, a number a query, in the order (compared system) - (baseline): (queries,).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isclose

import numpy as np

EXACTLY = 1e-12  # differences no larger than this are rounding, not differences
_AT_ONCE = 1 << 22  # signs drawn at once, in numbers of 8 bytes


@dataclass(frozen=True)
class TTest:
    """t, its degrees of freedom and the two-sided p; t is None where it is undefined, infinite where its limit is."""

    t: float | None
    df: int
    p: float


def paired_t(differences: np.ndarray) -> TTest:
    """Student's paired two-sided t-test: t = mean / (sd / sqrt(n)) with n - 1 degrees of freedom (methods: section 8.9).

    With one query, or no difference anywhere, t is undefined and p is 1. Where all queries differ by the same amount, the
    standard deviation is 0: t is infinite and p is 0, which says less than the randomisation test beside it.
    """
    from scipy.special import stdtr

    count = len(differences)
    if count < 2 or not np.any(np.abs(differences) > EXACTLY):
        return TTest(None, max(count - 1, 0), 1.0)
    mean, sd = float(differences.mean()), float(differences.std(ddof=1))
    if isclose(sd, 0.0, abs_tol=EXACTLY):
        return TTest(inf if mean > 0 else -inf, count - 1, 0.0)
    t = mean / (sd / count**0.5)
    return TTest(t, count - 1, float(2 * stdtr(count - 1, -abs(t))))


def randomisation(differences: np.ndarray, *, permutations: int, seed: int) -> float:
    """Two-sided p of Fisher's randomisation test: how often differences of random sign have as large a mean (Smucker 2007).

    All 2^n assignments of signs are counted where there are no more than `permutations`; otherwise so many are drawn, and
    the observed one counts as one of them: (hits + 1) / (permutations + 1). Queries without a difference play no part.
    """
    moved = differences[np.abs(differences) > EXACTLY]
    count = len(moved)
    if count == 0:
        return 1.0
    observed, total = abs(float(moved.sum())), float(moved.sum())
    least = observed - EXACTLY * float(np.abs(moved).sum())
    rows = max(1, _AT_ONCE // count)
    if count < 63 and 2**count <= permutations:
        hits = 0
        for start in range(0, 2**count, rows):
            numbers = np.arange(start, min(start + rows, 2**count), dtype=np.int64)
            signs = (numbers[:, None] >> np.arange(count)) & 1  # (rows, count): 1 keeps a difference's sign
            hits += int((np.abs(2 * (signs @ moved) - total) >= least).sum())
        return hits / 2**count
    rng = np.random.default_rng(seed)
    hits = 0
    for start in range(0, permutations, rows):
        size = min(rows, permutations - start)
        bits = np.frombuffer(rng.bytes(size * ((count + 7) // 8)), dtype=np.uint8).reshape(size, -1)
        kept = np.unpackbits(bits, axis=1, count=count)  # (rows, count)
        hits += int((np.abs(2 * (kept @ moved) - total) >= least).sum())
    return (hits + 1) / (permutations + 1)


def holm(chances: Sequence[float]) -> list[float]:
    """p values corrected for being one of a family, in their order (Holm 1979): valid however the tests depend.

    The smallest is multiplied by the number of tests, the next by one less, …; none is smaller than one before it.
    """
    order = sorted(range(len(chances)), key=chances.__getitem__)
    corrected = [0.0] * len(chances)
    reached = 0.0
    for place, at in enumerate(order):
        reached = max(reached, min(1.0, (len(chances) - place) * chances[at]))
        corrected[at] = reached
    return corrected


def cohens_d(differences: np.ndarray) -> float | None:
    """The mean difference in standard deviations of the differences (Cohen's d for pairs); None where that is undefined."""
    if len(differences) < 2:
        return None
    sd = float(differences.std(ddof=1))
    if isclose(sd, 0.0, abs_tol=EXACTLY):
        return 0.0 if abs(float(differences.mean())) <= EXACTLY else None
    return float(differences.mean()) / sd


def interval(differences: np.ndarray, *, confidence: float) -> tuple[float, float] | None:
    """The interval of Student's t around the mean difference; None for a single query."""
    from scipy.special import stdtrit

    count = len(differences)
    if count < 2:
        return None
    mean = float(differences.mean())
    reach = float(stdtrit(count - 1, (1 + confidence) / 2)) * float(differences.std(ddof=1)) / count**0.5
    return mean - reach, mean + reach
