"""Masking strategies: known answers (methods: section 4) and limits; tests/property/test_masking.py has what holds of any text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from drtk.pretraining.masking.strategies import (
    Other,
    Strategy,
    bernoulli,
    complement,
    extension,
    extra_rate,
    fill_budget,
    group_words,
    keyword,
    largest_first,
    mask_budget,
    order_by_weight,
    random_tokens,
    rom,
    scale_weights,
    whole_words,
)
from drtk.text.rng import generator
from drtk.text.token_dataset import Text

LONG = 142


def text_of(sizes: Sequence[int], weights: Sequence[float] | None = None) -> Text:
    """[CLS] words [SEP]. sizes: pieces of each word; weights: of each piece"""
    words = np.array([-1, *np.arange(len(sizes)).repeat(np.array(sizes, dtype=int)), -1], dtype=np.int32)
    ids = np.arange(len(words), dtype=np.int32) + 10
    return Text(ids, words, None if weights is None else np.array([0, *weights, 0], dtype=np.float32))


class FixedRandom:
    """A numpy Generator with given U(0, 1) samples."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = np.array(numbers)

    def random(self, size: int) -> np.ndarray:
        assert size == len(self.numbers)
        return self.numbers


def fixed(*numbers: float) -> Any:
    return FixedRandom(*numbers)


def places(hidden: np.ndarray) -> list[int]:
    assert hidden.dtype == bool
    return np.flatnonzero(hidden).tolist()


@pytest.mark.parametrize(
    ("rate", "count", "budget"),
    [
        (0.15, 142, 21),
        (0.30, 144, 43),
        (0.50, 142, 71),
        (0.15, 3, 1),
        (0.15, 30, 4),  # round(4.5): half to even
        (0.15, 50, 8),  # round(7.5)
        (0.0, 142, 0),
        (0.15, 0, 0),
    ],
)
def test_mask_budget(rate: float, count: int, budget: int) -> None:
    assert mask_budget(rate, count) == budget


@pytest.mark.parametrize(
    ("order", "sizes", "budget", "expected"),
    [
        ([1, 0, 2, 3], [1, 3, 2, 1], 2, [0, 3]),  # 3 is too large; 1 fits, one is left; 2 is too large; 1 fits
        ([1, 0, 2, 3], [1, 3, 2, 1], 5, [0, 1, 3]),  # 3 + 1, then 2 would be 6; 1 fits
        ([0, 1], [3, 2], 1, []),
        ([0, 1], [3, 2], 9, [0, 1]),
        ([], [], 4, []),
    ],
)
def test_a_word_that_exceeds_the_budget_is_skipped(
    order: list[int], sizes: list[int], budget: int, expected: list[int]
) -> None:
    taken = fill_budget(np.array(order, dtype=int), np.array(sizes, dtype=int), budget)
    assert np.flatnonzero(taken).tolist() == expected


def test_words_are_runs_of_equal_numbers_between_special_tokens() -> None:
    words = group_words(np.array([-1, 0, 0, -1, 0, 1, -1]))
    assert (words.sizes.tolist(), words.begins.tolist()) == ([2, 1, 1], [0, 2, 3])
    assert places(words.expand(np.array([True, False, True]))) == [1, 2, 5]
    assert words.max_weights(np.array([9, 0.1, 0.3, 9, 0.2, 0.5, 9])).tolist() == [0.3, 0.2, 0.5]
    nothing = group_words(np.array([-1, -1]))
    assert nothing.expand(np.zeros(0, dtype=bool)).tolist() == [False, False]
    assert nothing.max_weights(np.array([3.0, 4.0])).tolist() == []


def test_random_hides_the_budget_and_every_token_alike() -> None:
    # 2 of 10 tokens, 5,000 times: 1,000 each, with a standard deviation of sqrt(5000 * .2 * .8) = 28.
    text, rng = text_of([2, 1, 3, 1, 1, 2]), generator("random")
    counts = np.sum([random_tokens(text, 0.15, rng=rng, counted=10) for _ in range(5000)], axis=0)
    assert counts.sum() == 10_000
    assert counts[[0, -1]].tolist() == [0, 0]
    assert counts[1:-1] == pytest.approx([1000] * 10, abs=4.5 * 28)


def test_bernoulli_hides_independently() -> None:
    # 30 tokens at .3: a mean of 9 and a variance of 6.3; 5,000 texts have deviations of .035 and .13.
    text, rng = text_of([1] * 30), generator("bernoulli")
    counts = [bernoulli(text, 0.3, rng=rng, counted=30).sum() for _ in range(5000)]
    assert np.mean(counts) == pytest.approx(9, abs=0.16)
    assert np.var(counts) == pytest.approx(6.3, abs=0.6)
    assert places(bernoulli(text_of([1, 2]), 1.0, rng=rng, counted=3)) == [1, 2, 3]


def test_whole_words_hides_words_that_fit() -> None:
    text = text_of([2, 3, 1, 2])
    seen = {tuple(places(whole_words(text, 0.4, rng=generator(seed), counted=8))) for seed in range(100)}
    # round(3.2) = 3 of the pieces 1-2, 3-5, 6, 7-8
    assert seen == {(1, 2, 6), (3, 4, 5), (6, 7, 8)}
    assert places(whole_words(text_of([3, 3]), 0.15, rng=generator(1), counted=6)) == []
    for rate, counted, hidden in ((0.15, 142, 21), (0.3, 144, 43), (0.45, 10, 4), (0.55, 10, 6)):
        words = text_of([1] * (LONG if counted > 10 else 8))
        assert whole_words(words, rate, rng=generator(1), counted=counted).sum() == hidden


WEIGHTS = [0.545455, 0.272727, 0.181818]
INCLUDED = [0.871212, 0.660606, 0.468182]  # word 0 first or second: .545455 + .272727 * .545455 / .727273 + …


def test_keyword_samples_words_by_weight() -> None:
    expected = [0.0, 0.0, 0.0]
    for first, second, _ in permutations(range(3)):
        chance = WEIGHTS[first] * WEIGHTS[second] / (sum(WEIGHTS) - WEIGHTS[first])
        expected[first] += chance
        expected[second] += chance
    assert expected == pytest.approx(INCLUDED, abs=2e-6)
    # 4,000 texts: standard deviations of .0053 .0075 .0079
    text, rng = text_of([1, 1, 1], WEIGHTS), generator("keywords")
    shares = np.mean([keyword(text, 0.5, rng=rng, counted=3) for _ in range(4000)], axis=0)  # round(1.5) = 2
    assert shares[1:-1] == pytest.approx(INCLUDED, abs=0.035)


def test_keyword_counts_a_word_once_and_may_exceed_the_budget() -> None:
    text = text_of([1, 3], [0.5] * 4)
    seen = {tuple(places(keyword(text, 0.5, rng=generator(seed), counted=4))) for seed in range(50)}
    assert seen == {(2, 3, 4), (1, 2, 3, 4)}
    short = np.mean([keyword(text, 0.25, rng=generator(seed), counted=4)[1] for seed in range(1000)])
    assert short == pytest.approx(0.5, abs=0.07)  # standard deviation .016
    assert places(keyword(text, 0.0, rng=generator(1), counted=3)) == []


def test_words_without_weight_come_last() -> None:
    weights, rng = np.array([0.0, 1e-30, 0.0, 5.0]), generator("last")
    orders = [order_by_weight(weights, rng=rng).tolist() for _ in range(500)]
    assert all(set(order[:2]) == {1, 3} for order in orders)
    assert np.mean([order[2] == 0 for order in orders]) == pytest.approx(0.5, abs=0.1)  # standard deviation .022


# "A stomach is the result of an allergic reaction": Figure 1 of ROM's paper.
ROM_WEIGHTS = [0, 0.4, 0, 0, 0.1, 0, 0, 0.3, 0.2]
CHANCE = [0.62, 0.15, 0.80, 0.33, 0.47, 0.90, 0.05, 0.55, 0.71]


@pytest.mark.parametrize(
    ("weights", "rate", "options", "expected"),
    [
        (ROM_WEIGHTS, 0.15, {"scale": "sum"}, [8]),  # sums .62 .55 .80 .33 .57 .90 .05 .85 .91
        (ROM_WEIGHTS, 0.34, {"scale": "sum"}, [5, 7, 8]),
        (ROM_WEIGHTS, 0.15, {}, [7]),  # divided by .4: 1.15 at 1, 1.30 at 7, 1.21 at 8
        (ROM_WEIGHTS, 0.34, {}, [1, 7, 8]),
        ([0] * 9, 0.15, {}, [5]),
        (ROM_WEIGHTS, 0.15, {"weight_scale": 0.0}, [5]),
        (ROM_WEIGHTS, 0.45, {"weight_scale": 10.0}, [1, 4, 7, 8]),  # 10 at 1, 2.5 at 4, 7.5 at 7, 5 at 8
    ],
)
def test_rom_hides_the_largest_sums(
    weights: list[float], rate: float, options: dict[str, Any], expected: list[int]
) -> None:
    hidden = rom(text_of([1] * 9, weights), rate, rng=fixed(*CHANCE), counted=9, **options)
    assert [place - 1 for place in places(hidden)] == expected


def test_rom_hides_the_first_of_equal_sums() -> None:
    assert places(rom(text_of([1, 1, 1], [0.5, 0, 0.5]), 0.15, rng=fixed(0.25, 0.75, 0.25), counted=3)) == [1]
    assert largest_first(np.arange(300) % 2).tolist() == [*range(1, 300, 2), *range(0, 300, 2)]


@pytest.mark.parametrize(
    ("chance", "expected"),
    [
        ((0.6, 0.2, 0.7), [1, 2, 3]),  # words .4 .8 .2, divided by .8: sums 1.1 1.2 .95; word 1, then word 0
        ((0.1, 0.2, 0.95), [1, 2, 3]),  # .6 1.2 1.2: the first of equals; the word of three has no room then
        ((0.1, 0.1, 0.95), [4, 5, 6]),  # .6 1.1 1.2
    ],
)
def test_rom_on_whole_words_uses_the_largest_weight(chance: tuple[float, ...], expected: list[int]) -> None:
    text = text_of([2, 1, 3], [0.4, 0.1, 0.8, 0, 0, 0.2])
    assert places(rom(text, 0.5, rng=fixed(*chance), counted=6, whole_word=True)) == expected


def test_rom_scales_words_and_ignores_special_tokens() -> None:
    # words .6 .2, to a sum of 1: .75 .25; with .2 .6: .95 .85. Over pieces it would be .43 .14.
    text = text_of([2, 1], [0.6, 0.6, 0.2])
    assert places(rom(text, 0.6, rng=fixed(0.2, 0.6), counted=3, whole_word=True, scale="sum")) == [1, 2]
    # pieces .5 .25: 1 and 0 by min-max; a 0 at [CLS] would make it 1 and .5
    text = text_of([1, 1], [0.5, 0.25])
    assert places(rom(text, 0.5, rng=fixed(0.1, 0.9), counted=2, scale="minmax")) == [1]
    assert places(rom(text, 0.5, rng=fixed(0.1, 0.9), counted=2, scale="max")) == [2]


def test_scale_weights() -> None:
    weights = np.array([1.0, 3.0, 2.0, 2.0])
    assert scale_weights(weights, "max").tolist() == pytest.approx([1 / 3, 1, 2 / 3, 2 / 3])
    assert scale_weights(weights, "minmax").tolist() == pytest.approx([0, 1, 0.5, 0.5])
    assert scale_weights(weights, "sum").tolist() == pytest.approx([1 / 8, 3 / 8, 1 / 4, 1 / 4])
    for how in ("max", "minmax", "sum"):
        assert scale_weights(np.zeros(3), how).tolist() == [0, 0, 0]  # type: ignore[arg-type]
        assert scale_weights(np.zeros(0), how).tolist() == []  # type: ignore[arg-type]


def test_extra_rate() -> None:
    # (.50 - .30) / (1 - .30) = .285714, so that .30 + .70 * .285714 = .50
    rates = [extra_rate(rate, inner) for inner, rate in ((0.3, 0.5), (0.15, 0.3), (0.4, 0.6), (0.3, 1.0), (1.0, 1.0))]
    assert rates == pytest.approx([0.285714, 0.176471, 0.333333, 1.0, 0.0], abs=2e-6)
    with pytest.raises(ValueError, match=r"rate 0\.5 cannot have the rate 0\.3"):
        extra_rate(0.3, 0.5)


def other(rate: float) -> Other:
    return Other(whole_words(text_of([1] * LONG), rate, rng=generator("inner", str(rate)), counted=LONG), rate)


def test_extension_adds_an_independent_mask() -> None:
    # 43 of 142 words, then round(142 * .285714) = 41 of all: 43 + 99 * 41 / 142 = 71.585 on average.
    # The extra ones are hypergeometric, with a deviation of 2.9; the mean of 400 has one of .15.
    text, rng, counts = text_of([1] * LONG), generator("extension"), []
    for _ in range(400):
        inner = Other(whole_words(text, 0.3, rng=rng, counted=LONG), 0.3)
        hidden = extension(text, 0.5, rng=rng, counted=LONG, other=inner)
        assert hidden[inner.hidden].all()
        counts.append(hidden.sum())
    assert np.mean(counts) == pytest.approx(71.585, abs=0.65)
    same = other(0.3)
    before = same.hidden.copy()
    equal = extension(text, 0.3, rng=rng, counted=LONG, other=same)
    assert (equal == before).all()
    equal[:] = True
    assert (same.hidden == before).all()
    assert places(extension(text, 1.0, rng=rng, counted=LONG, other=same)) == list(range(1, LONG + 1))


def test_complement_hides_what_the_other_mask_leaves() -> None:
    inner = other(0.5)
    hidden = complement(text_of([1] * LONG), 0.5, rng=generator(1), counted=LONG, other=inner)
    assert (hidden ^ inner.hidden)[1:-1].all()
    assert not hidden[[0, -1]].any()


@pytest.mark.parametrize(("strategy", "name"), [(extension, "extension"), (complement, "complement")])
def test_a_strategy_without_its_mask_is_rejected(strategy: Strategy, name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' refers to the mask of another slot"):
        strategy(text_of([1, 1]), 0.5, rng=generator(1), counted=2)
    with pytest.raises(ValueError, match="a mask of 5 tokens for a text of 4"):
        strategy(text_of([1, 1]), 0.5, rng=generator(1), counted=2, other=Other(np.zeros(5, dtype=bool), 0.3))


@pytest.mark.parametrize(("strategy", "name"), [(keyword, "keyword"), (rom, "rom")])
def test_a_strategy_without_weights_is_rejected(strategy: Strategy, name: str) -> None:
    with pytest.raises(ValueError, match=rf"'{name}' needs weights .* drtk termweight"):
        strategy(text_of([1, 1]), 0.5, rng=generator(1), counted=2)
    with pytest.raises(ValueError, match="3 weights for 4 word pieces"):
        strategy(text_of([1, 1], [1, 1])._replace(weights=np.zeros(3)), 0.5, rng=generator(1), counted=2)
