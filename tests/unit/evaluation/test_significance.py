"""Paired significance tests: hand-computed values and agreement with scipy."""

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from drtk.evaluation.significance import (
    compute_cohens_d,
    compute_interval,
    correct_holm,
    run_randomization_test,
    run_t_test,
)

DIFFERENCES = st.lists(st.integers(-8, 8), min_size=2, max_size=9).map(lambda values: np.array(values) / 8)


def test_no_difference_and_single_query_give_undefined_t_and_p_1() -> None:
    zeros, one = np.zeros(5), np.array([0.5])
    for differences in (zeros, one):
        test = run_t_test(differences)
        assert (test.t, test.p) == (None, 1.0)
        assert run_randomization_test(differences, permutations=1000, seed=1) == 1.0
    assert (compute_cohens_d(zeros), compute_cohens_d(one)) == (0.0, None)
    assert compute_interval(one, confidence=0.95) is None


def test_constant_difference_gives_infinite_t() -> None:
    same = np.array([0.1, 0.1, 0.1])
    assert (run_t_test(same).t, run_t_test(same).p, run_t_test(-same).t) == (inf, 0.0, -inf)
    assert compute_cohens_d(same) is None


def test_randomization_test_enumerates_all_signs_for_few_queries() -> None:
    # differences 3 2 1 of sum 6: only +++ and --- reach 6 (3+2-1 = 4): 2/8. Of 3 -2 1, sum 2: |sums| are 6 4 2 0 0 2 4 6: 6/8.
    # Zeros change nothing.
    for differences, p in (([3, 2, 1], 2 / 8), ([0.1] * 3, 2 / 8), ([3, -2, 1], 6 / 8), ([3, 0, -2, 0, 1], 6 / 8)):
        assert run_randomization_test(np.array(differences, dtype=float), permutations=100, seed=1) == p
    # Tenths give the p of integers, although their sums differ by rounding errors.
    for integers in ([1, 1, 1, -1], [3, -1, -2, -2], [1, 2, 3, 3], [-2, -2, -2, 2]):
        whole, tenths = (np.array(integers) / scale for scale in (1, 10))
        p = run_randomization_test(whole, permutations=100, seed=1)
        assert run_randomization_test(tenths, permutations=100, seed=1) == p


@given(DIFFERENCES)
def test_both_tests_agree_with_scipy(differences: np.ndarray) -> None:
    if differences.std() > 0:
        expected = stats.ttest_1samp(differences, 0.0)
        ours = run_t_test(differences)
        assert ours.t == pytest.approx(expected.statistic)
        assert ours.p == pytest.approx(expected.pvalue)
        low, high = compute_interval(differences, confidence=0.9) or (0, 0)
        assert (low, high) == pytest.approx(tuple(expected.confidence_interval(0.9)))
    exact = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    )
    assert run_randomization_test(differences, permutations=1000, seed=1) == pytest.approx(exact.pvalue)


def test_sampled_signs_approximate_the_exact_p() -> None:
    differences = np.random.default_rng(5).normal(0.2, 1, size=16)
    exact = run_randomization_test(differences, permutations=1 << 16, seed=1)  # 2^16 assignments
    first, again, other = (run_randomization_test(differences, permutations=40_000, seed=seed) for seed in (1, 1, 2))
    assert first == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 40_000) ** 0.5)  # four standard errors
    assert first == again != other
    assert run_randomization_test(np.ones(100), permutations=999, seed=1) == 1 / 1000  # counts the observed signs


def test_holm_steps_down_and_is_monotone() -> None:
    # sorted .01 .02 .03: .01*3 = .03; .02*2 = .04; .03*1 = .03, raised to .04
    assert correct_holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert correct_holm([0.6, 0.7]) == [1.0, 1.0]
    assert correct_holm([0.2]) == [0.2]
    assert correct_holm([]) == []
