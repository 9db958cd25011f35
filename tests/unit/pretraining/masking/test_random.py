"""Masking of single tokens: a fixed number of them, or a chance for each (methods: section 4.2)."""

from __future__ import annotations

import numpy as np
import pytest

from drtk.pretraining.masking.strategies import bernoulli, random_tokens
from drtk.text.rng import generator
from tests.unit.pretraining.masking.texts import places, text_of


def test_random_hides_exactly_the_budget() -> None:
    text = text_of([1] * 142)
    for seed in range(20):
        assert random_tokens(text, 0.3, rng=generator(seed), counted=142).sum() == 43  # round(42.6)


def test_random_hides_all_where_the_budget_is_larger() -> None:
    assert places(random_tokens(text_of([1, 1]), 1.0, rng=generator(1), counted=4)) == [1, 2]


def test_every_token_is_as_likely_under_random() -> None:
    # 2 of 10 tokens, 20,000 times: each in 4,000 of them, with a standard deviation of sqrt(20000 * .2 * .8) = 57.
    text, rng = text_of([2, 1, 3, 1, 1, 2]), generator("random")
    found = np.sum([random_tokens(text, 0.15, rng=rng, counted=10) for _ in range(20_000)], axis=0)
    assert found[[0, -1]].tolist() == [0, 0]
    assert found[1:-1] == pytest.approx([4000] * 10, abs=4.5 * 57)


def test_under_bernoulli_the_number_varies_as_independent_draws_do() -> None:
    # 30 tokens at .3: 9 on average, a variance of 30 * .3 * .7 = 6.3; over 20,000 texts known to about .02 and .06.
    text, rng = text_of([1] * 30), generator("bernoulli")
    counts = [bernoulli(text, 0.3, rng=rng, counted=30).sum() for _ in range(20_000)]
    assert np.mean(counts) == pytest.approx(9, abs=0.08)
    assert np.var(counts) == pytest.approx(6.3, abs=0.25)


def test_a_short_text_may_keep_all_under_bernoulli_and_not_under_random() -> None:
    # Three tokens at .15 all stay with a chance of .85^3 = .614125; 5,000 texts know it to about .007.
    text, rng = text_of([1, 1, 1]), generator("short")
    kept = [not bernoulli(text, 0.15, rng=rng, counted=3).any() for _ in range(5000)]
    assert np.mean(kept) == pytest.approx(0.614125, abs=0.03)
    assert all(random_tokens(text, 0.15, rng=rng, counted=3).sum() == 1 for _ in range(50))


def test_at_a_rate_of_one_bernoulli_hides_all_but_special_tokens() -> None:
    assert places(bernoulli(text_of([1, 2]), 1.0, rng=generator(1), counted=3)) == [1, 2, 3]
