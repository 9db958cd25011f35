"""Masking by weight and chance: the figure of ROM's paper worked out by hand (methods: section 4.3), and its limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drtk.pretraining.masking.strategies import largest_first, rom, scale_weights
from drtk.text.rng import generator
from tests.unit.pretraining.masking.texts import places, text_of, told

# "A stomach is the result of an allergic reaction": Figure 1 of the paper.
WEIGHTS = [0, 0.4, 0, 0, 0.1, 0, 0, 0.3, 0.2]
CHANCE = [0.62, 0.15, 0.80, 0.33, 0.47, 0.90, 0.05, 0.55, 0.71]


def hidden(weights: list[float], rate: float, **options: Any) -> list[int]:
    """Numbers of the pieces hidden, [CLS] apart."""
    found = rom(text_of([1] * 9, weights), rate, rng=told(*CHANCE), counted=9, **options)
    return [place - 1 for place in places(found)]


def test_the_example_of_the_paper_hides_what_its_sums_say() -> None:
    # Sums .62 .55 .80 .33 .57 .90 .05 .85 .91: of nine pieces one is hidden, the last; of the three largest the others are 5 and 7.
    assert hidden(WEIGHTS, 0.15, scale="sum") == [8]  # the weights sum to 1 as they are
    assert hidden(WEIGHTS, 0.34, scale="sum") == [5, 7, 8]
    assert largest_first(np.array(WEIGHTS) + CHANCE).tolist()[:3] == [8, 5, 7]


def test_weights_divided_by_their_maximum_decide_otherwise() -> None:
    # .62 .15+1 .80 .33 .47+.25 .90 .05 .55+.75 .71+.5 = … 1.15 … .72 … 1.30 1.21
    assert hidden(WEIGHTS, 0.15) == [7]
    assert hidden(WEIGHTS, 0.34) == [1, 7, 8]


def test_without_weights_chance_alone_decides() -> None:
    assert hidden([0] * 9, 0.15) == [5]
    assert hidden(WEIGHTS, 0.15, weight_scale=0.0) == [5]


def test_a_larger_scale_of_weights_leaves_less_to_chance() -> None:
    # Divided by .4 and times 10: 0 10 0 0 2.5 0 0 7.5 5, to which chance adds less than 1.
    assert hidden(WEIGHTS, 0.34, weight_scale=10.0) == [1, 7, 8]
    assert hidden(WEIGHTS, 0.45, weight_scale=10.0) == [1, 4, 7, 8]  # round(4.05)


def test_of_equal_sums_the_first_is_hidden() -> None:
    # Weights 1 0 1 after scaling: 1.25 .75 1.25
    assert places(rom(text_of([1, 1, 1], [0.5, 0, 0.5]), 0.15, rng=told(0.25, 0.75, 0.25), counted=3)) == [1]


def test_equal_scores_keep_their_order_however_many_they_are() -> None:
    # 0 1 0 1 …: the odd places first, then the even ones.
    assert largest_first(np.arange(300) % 2).tolist() == [*range(1, 300, 2), *range(0, 300, 2)]


def test_weights_of_whole_words_are_scaled_against_chance_too() -> None:
    text = text_of([1, 1], [0.8, 0.4])
    # 1 .5 and .1 .9: 1.1 1.4; ten times the weights: 10.1 5.9
    assert places(rom(text, 0.5, rng=told(0.1, 0.9), counted=2, whole_word=True)) == [2]
    assert places(rom(text, 0.5, rng=told(0.1, 0.9), counted=2, whole_word=True, weight_scale=10.0)) == [1]


def test_whole_words_have_one_draw_and_the_largest_weight_of_their_pieces() -> None:
    text = text_of([2, 1, 3], [0.4, 0.1, 0.8, 0, 0, 0.2])
    # Words .4 .8 .2, divided by .8: .5 1 .25; with chance .6 .2 .7: 1.1 1.2 .95. Three of six pieces: word 1, word 0 (1 + 2 = 3).
    assert places(rom(text, 0.5, rng=told(0.6, 0.2, 0.7), counted=6, whole_word=True)) == [1, 2, 3]
    # Chance .1 .2 .95: .6 1.2 1.2, the first of equals; then the word of three has no room, that of two has.
    assert places(rom(text, 0.5, rng=told(0.1, 0.2, 0.95), counted=6, whole_word=True)) == [1, 2, 3]
    # Chance .1 .1 .95: .6 1.1 1.2: the word of three is all there is room for.
    assert places(rom(text, 0.5, rng=told(0.1, 0.1, 0.95), counted=6, whole_word=True)) == [4, 5, 6]


def test_a_sum_of_one_is_over_words_where_words_are_drawn() -> None:
    # Words .6 .2, to a sum of 1: .75 .25 (over pieces, .6 of 1.4, it would be .43 .14); with .2 .6: .95 .85. One word of 2 + 1 pieces.
    text = text_of([2, 1], [0.6, 0.6, 0.2])
    assert places(rom(text, 0.6, rng=told(0.2, 0.6), counted=3, whole_word=True, scale="sum")) == [1, 2]
    assert places(rom(text, 0.3, rng=told(0.2, 0.6), counted=3, whole_word=True, scale="sum")) == [3]


def test_special_tokens_take_no_part_in_the_scaling() -> None:
    # Piece weights .5 .25; a weight of 0 at [CLS] would otherwise be the minimum: 1 0 after min-max, 1 + .1 over 0 + .9.
    text = text_of([1, 1], [0.5, 0.25])
    assert places(rom(text, 0.5, rng=told(0.1, 0.9), counted=2, scale="minmax")) == [1]
    # Divided by the maximum: 1 .5, and chance has it the other way round: 1.1 1.4
    assert places(rom(text, 0.5, rng=told(0.1, 0.9), counted=2, scale="max")) == [2]


def test_a_text_without_weights_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'rom' needs weights .* drtk termweight"):
        rom(text_of([1, 1]), 0.15, rng=generator(1), counted=2)


def test_weights_of_another_length_are_refused() -> None:
    text = text_of([1, 1], [0.5, 0.5])
    with pytest.raises(ValueError, match="3 weights for 4 word pieces"):
        rom(text._replace(weights=np.zeros(3)), 0.15, rng=generator(1), counted=2)


def test_weights_are_scaled_by_maximum_span_or_sum() -> None:
    weights = np.array([1.0, 3.0, 2.0, 2.0])
    assert scale_weights(weights, "max").tolist() == pytest.approx([1 / 3, 1, 2 / 3, 2 / 3])
    assert scale_weights(weights, "minmax").tolist() == pytest.approx([0, 1, 0.5, 0.5])
    assert scale_weights(weights, "sum").tolist() == pytest.approx([1 / 8, 3 / 8, 1 / 4, 1 / 4])


@pytest.mark.parametrize("how", ["max", "minmax", "sum"])
def test_weights_that_are_all_alike_or_none_are_no_division_by_zero(how: str) -> None:
    assert scale_weights(np.zeros(3), how).tolist() == [0, 0, 0]  # type: ignore[arg-type]
    assert scale_weights(np.zeros(0), how).tolist() == []  # type: ignore[arg-type]
