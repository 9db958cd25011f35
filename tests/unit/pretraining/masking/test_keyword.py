"""Words are order_by_weight in proportion to their weight until the budget is covered (methods: section 4.4)."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from drtk.pretraining.masking.strategies import order_by_weight, keyword
from drtk.text.rng import generator
from tests.unit.pretraining.masking.texts import places, text_of

WEIGHTS = [0.545455, 0.272727, 0.181818]
# Word 0 first or second: .545455 + .272727 * .545455 / .727273 + .181818 * .545455 / .818182 = .871212, and so on.
INCLUDED = [0.871212, 0.660606, 0.468182]


def test_the_known_probabilities_are_those_of_draws_one_after_another() -> None:
    found = [0.0, 0.0, 0.0]
    for first, second, _ in permutations(range(3)):
        chance = WEIGHTS[first] * WEIGHTS[second] / (sum(WEIGHTS) - WEIGHTS[first])
        found[first] += chance
        found[second] += chance
    assert found == pytest.approx(INCLUDED, abs=2e-6)


def test_two_of_three_words_are_drawn_with_the_known_probabilities() -> None:
    # 40,000 texts: standard deviations of .0017 .0024 .0025.
    text, rng = text_of([1, 1, 1], WEIGHTS), generator("keywords")
    found = np.mean([keyword(text, 0.5, rng=rng, counted=3) for _ in range(40_000)], axis=0)  # round(1.5) = 2
    assert found[1:-1] == pytest.approx(INCLUDED, abs=0.01)


def test_the_last_word_is_not_passed_over() -> None:
    # Two of four pieces: the word of three is hidden whole if it comes first or second.
    text = text_of([1, 3], [0.5, 0.5, 0.5, 0.5])
    seen = {tuple(places(keyword(text, 0.5, rng=generator(seed), counted=4))) for seed in range(50)}
    assert seen == {(2, 3, 4), (1, 2, 3, 4)}


def test_a_word_weighs_once_however_many_pieces_it_has() -> None:
    # One piece is asked for; words of 1 and 3 pieces with the same weight are as likely: 4,000 texts, deviation .008.
    text, rng = text_of([1, 3], [0.5, 0.5, 0.5, 0.5]), generator("once")
    short = np.mean([keyword(text, 0.25, rng=rng, counted=4)[1] for _ in range(4000)])
    assert short == pytest.approx(0.5, abs=0.04)


def test_words_without_a_weight_come_last_as_chance_has_it() -> None:
    weights, rng = np.array([0.0, 1e-30, 0.0, 5.0]), generator("last")
    orders = [order_by_weight(weights, rng=rng).tolist() for _ in range(2000)]
    assert all(set(order[:2]) == {1, 3} for order in orders)
    assert np.mean([order[2] == 0 for order in orders]) == pytest.approx(0.5, abs=0.05)  # deviation .011


def test_no_weight_at_all_is_whole_words_by_chance() -> None:
    text, rng = text_of([1, 1, 1, 1], [0, 0, 0, 0]), generator("none")
    found = np.mean([keyword(text, 0.25, rng=rng, counted=4) for _ in range(8000)], axis=0)
    assert found[1:-1] == pytest.approx([0.25] * 4, abs=0.025)  # deviation .005


def test_a_rate_of_zero_hides_nothing_and_one_of_one_all() -> None:
    text = text_of([1, 2], [0.1, 0.2, 0.2])
    assert places(keyword(text, 0.0, rng=generator(1), counted=3)) == []
    assert places(keyword(text, 1.0, rng=generator(1), counted=5)) == [1, 2, 3]


def test_a_text_without_weights_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'keyword' needs weights .* drtk termweight"):
        keyword(text_of([1, 1]), 0.5, rng=generator(1), counted=2)
