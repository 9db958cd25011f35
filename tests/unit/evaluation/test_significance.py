"""Paired tests: known answers, scipy's own tests, and what must hold for any differences."""

from __future__ import annotations

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

A = np.array([0.5, 1, 0.333333, 0, 0.25])
B = np.array([0.333333, 1, 0.25, 0.1, 0.125])
DIFFERENCES = st.lists(st.integers(-8, 8), min_size=2, max_size=9).map(lambda values: np.array(values) / 8)


def test_the_t_test_of_five_queries() -> None:
    # differences .166667 0 .083333 -.1 .125: mean .055, sd .106328, t = .055 / (.106328 / sqrt 5)
    differences = A - B
    assert differences.mean() == pytest.approx(0.055, abs=2e-6)
    assert differences.std(ddof=1) == pytest.approx(0.106328, abs=2e-6)
    test = run_t_test(differences)
    assert (test.t, test.p, test.df) == (pytest.approx(1.156649, abs=2e-6), pytest.approx(0.311789, abs=2e-6), 4)


def test_no_difference_gives_undefined_t_and_p_1() -> None:
    test = run_t_test(A - A)
    assert (test.t, test.p) == (None, 1.0)
    assert run_randomization_test(A - A, permutations=1000, seed=1) == 1.0
    assert compute_cohens_d(A - A) == 0.0


def test_single_query_gives_p_1() -> None:
    one = np.array([0.5])
    assert (run_t_test(one).t, run_t_test(one).p) == (None, 1.0)
    assert compute_cohens_d(one) is None
    assert compute_interval(one, confidence=0.95) is None
    assert run_randomization_test(one, permutations=1000, seed=1) == 1.0  # both signs are as far from 0


def test_constant_difference_gives_infinite_t() -> None:
    same = np.array([0.1, 0.1, 0.1])
    assert (run_t_test(same).t, run_t_test(same).p, run_t_test(-same).t) == (inf, 0.0, -inf)
    # 2 of the 8 assignments of signs are as far from 0: +++ and ---
    assert run_randomization_test(same, permutations=1000, seed=1) == 2 / 8


def test_randomization_test_enumerates_all_signs_for_few_queries() -> None:
    # differences 3 2 1 of sum 6: only +++ and --- reach 6 (3+2-1 = 4): 2/8. Of 3 -2 1, sum 2: |sums| are 6 4 2 0 0 2 4 6: 6/8
    assert run_randomization_test(np.array([3.0, 2, 1]), permutations=100, seed=1) == 2 / 8
    assert run_randomization_test(np.array([3.0, -2, 1]), permutations=100, seed=1) == 6 / 8
    assert (
        run_randomization_test(np.array([3.0, 0, -2, 0, 1]), permutations=100, seed=1) == 6 / 8
    )  # zeros change nothing


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
    drawn = run_randomization_test(differences, permutations=40_000, seed=1)
    assert drawn == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 40_000) ** 0.5)  # four standard errors
    assert drawn != run_randomization_test(differences, permutations=40_000, seed=2)
    assert drawn == run_randomization_test(differences, permutations=40_000, seed=1)


def test_smallest_sampled_p_counts_the_observed_signs() -> None:
    assert run_randomization_test(np.ones(100), permutations=999, seed=1) == 1 / 1000


def test_holm_steps_down_and_is_monotone() -> None:
    # sorted .01 .02 .03: .01*3 = .03; .02*2 = .04; .03*1 = .03, raised to .04
    assert correct_holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert correct_holm([0.6, 0.7]) == [1.0, 1.0]
    assert correct_holm([0.2]) == [0.2]
    assert correct_holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=8))
def test_correction_keeps_order_and_never_lowers_p(chances: list[float]) -> None:
    corrected = correct_holm(chances)
    assert all(after >= before for before, after in zip(chances, corrected, strict=True))
    ranked = [corrected[at] for at in sorted(range(len(chances)), key=chances.__getitem__)]
    assert ranked == sorted(ranked)
    assert all(value <= 1 for value in corrected)


@given(DIFFERENCES)
def test_swapping_systems_flips_signs_only(differences: np.ndarray) -> None:
    one, other = (run_randomization_test(item, permutations=1000, seed=3) for item in (differences, -differences))
    assert one == other
    effects = compute_cohens_d(differences), compute_cohens_d(-differences)
    assert effects[0] is None or effects[0] == pytest.approx(-(effects[1] or 0.0))
