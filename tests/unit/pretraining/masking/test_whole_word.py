"""Whole words are hidden, as many as fit (methods: section 4.1)."""

from __future__ import annotations

import numpy as np
import pytest

from drtk.pretraining.masking.strategies import whole_words
from drtk.text.rng import generator
from tests.unit.pretraining.masking.texts import places, text_of


@pytest.mark.parametrize(
    ("rate", "counted", "hidden"), [(0.15, 142, 21), (0.3, 142, 43), (0.3, 144, 43), (0.5, 142, 71)]
)
def test_with_words_of_one_piece_the_budget_is_met(rate: float, counted: int, hidden: int) -> None:
    assert whole_words(text_of([1] * 142), rate, rng=generator(1), counted=counted).sum() == hidden


def test_a_word_is_hidden_whole_or_not_at_all() -> None:
    text = text_of([2, 3, 1, 2])
    seen = {tuple(places(whole_words(text, 0.4, rng=generator(seed), counted=8))) for seed in range(200)}
    # round(3.2) = 3 pieces. Places: 1-2, 3-5, 6, 7-8. A word of 2 first: then the 1, or the other 2 passed over and the 1 after it.
    assert seen == {(1, 2, 6), (3, 4, 5), (6, 7, 8)}


def test_where_no_word_fits_nothing_is_hidden() -> None:
    # round(.15 * 6) = 1, and both words have three pieces: slightly below the budget, never above.
    assert places(whole_words(text_of([3, 3]), 0.15, rng=generator(1), counted=6)) == []


def test_counting_special_tokens_can_hide_one_more() -> None:
    text = text_of([1] * 8)
    assert whole_words(text, 0.45, rng=generator(1), counted=8).sum() == 4  # round(3.6)
    assert whole_words(text, 0.45, rng=generator(1), counted=10).sum() == 4  # round(4.5), half to even
    assert whole_words(text, 0.55, rng=generator(1), counted=10).sum() == 6  # round(5.5)


def test_of_words_alike_each_is_as_likely() -> None:
    # Two of six words, 12,000 times: each 4,000 times, with a standard deviation of sqrt(12000 / 3 * 2 / 3) = 52.
    text, rng = text_of([2] * 6), generator("words")
    found = np.sum(
        [whole_words(text, 0.3, rng=rng, counted=12) for _ in range(12_000)], axis=0
    )  # round(3.6) = 4 pieces
    assert found[1:-1] == pytest.approx([4000] * 12, abs=4.5 * 52)
