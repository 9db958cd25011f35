"""Masking strategies and corruptions: known answers. For properties see tests/property/test_masking.py."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from drtk.pretraining.masking import (
    MaskInput,
    Vocabulary,
    compute_mask_budget,
    corrupt_tokens,
    delete_tokens_at,
    group_words,
    insert_masks,
    insert_masks_at,
    mask_bernoulli,
    mask_extension,
    mask_keywords,
    mask_random_tokens,
    mask_rom,
    mask_whole_words,
    order_by_weight,
)
from drtk.text.rng import create_generator
from drtk.text.token_dataset import TokenizedText

LONG = 142


def make_text(sizes: Sequence[int], weights: Sequence[float] | None = None) -> TokenizedText:
    """Return [CLS] words [SEP]. sizes: pieces of each word; weights: of each piece"""
    words = np.array([-1, *np.arange(len(sizes)).repeat(np.array(sizes, dtype=int)), -1], dtype=np.int32)
    ids = np.arange(len(words), dtype=np.int32) + 10
    return TokenizedText(ids, words, None if weights is None else np.array([0, *weights, 0], dtype=np.float32))


def mask(
    strategy: Callable[..., np.ndarray],
    text: TokenizedText,
    rate: float,
    *,
    rng: Any = 1,
    counted: int,
    other: Any = None,
    other_rate: float = 0.0,
    **options: Any,
) -> np.ndarray:
    """Apply a masking strategy. rng: a random generator, or its key"""
    rng = rng if hasattr(rng, "random") else create_generator(rng)
    hidden = strategy(MaskInput(text, group_words(text.words), rate, rng, counted, other, other_rate), **options)
    assert hidden.dtype == bool
    return hidden


class FixedRandom:
    """A numpy Generator with given U(0, 1) samples."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = np.array(numbers)

    def random(self, size: int) -> np.ndarray:
        assert size == len(self.numbers)
        return self.numbers


def list_positions(hidden: np.ndarray) -> list[int]:
    return np.flatnonzero(hidden).tolist()


def test_mask_budget() -> None:
    rates = [(0.15, 142), (0.30, 144), (0.50, 142), (0.15, 3), (0.15, 30), (0.15, 50), (0.0, 142), (0.15, 0)]
    assert [compute_mask_budget(*each) for each in rates] == [21, 43, 71, 1, 4, 8, 0, 0]  # 4.5 and 7.5: half to even


def test_random_masks_budget_tokens_uniformly() -> None:
    # 2 of 10 tokens, 5,000 times: 1,000 each, with a standard deviation of sqrt(5000 * .2 * .8) = 28.
    text, rng = make_text([2, 1, 3, 1, 1, 2]), create_generator("random")
    counts = np.sum([mask(mask_random_tokens, text, 0.15, rng=rng, counted=10) for _ in range(5000)], axis=0)
    assert counts.sum() == 10_000
    assert counts[[0, -1]].tolist() == [0, 0]
    assert counts[1:-1] == pytest.approx([1000] * 10, abs=4.5 * 28)


def test_bernoulli_masks_tokens_independently() -> None:
    # 30 tokens at .3: a mean of 9 and a variance of 6.3; 5,000 texts have deviations of .035 and .13.
    text, rng = make_text([1] * 30), create_generator("bernoulli")
    counts = [mask(mask_bernoulli, text, 0.3, rng=rng, counted=30).sum() for _ in range(5000)]
    assert np.mean(counts) == pytest.approx(9, abs=0.16)
    assert np.var(counts) == pytest.approx(6.3, abs=0.6)
    assert list_positions(mask(mask_bernoulli, make_text([1, 2]), 1.0, counted=3)) == [1, 2, 3]


def test_keyword_samples_words_in_proportion_to_weight() -> None:
    # round(1.5) = 2 of 3 words; word 0 is first or second: .545455 + .272727 * .545455 / .727273 + …
    # 4,000 texts: standard deviations of .0053 .0075 .0079
    text, rng = make_text([1, 1, 1], [0.545455, 0.272727, 0.181818]), create_generator("keywords")
    masks = [mask(mask_keywords, text, 0.5, rng=rng, counted=3) for _ in range(4000)]
    assert np.mean(masks, axis=0)[1:-1] == pytest.approx([0.871212, 0.660606, 0.468182], abs=0.035)


def test_words_of_weight_zero_come_last() -> None:
    weights, rng = np.array([0.0, 1e-30, 0.0, 5.0]), create_generator("last")
    orders = [order_by_weight(weights, rng=rng).tolist() for _ in range(500)]
    assert all(set(order[:2]) == {1, 3} for order in orders)
    assert np.mean([order[2] == 0 for order in orders]) == pytest.approx(0.5, abs=0.1)  # standard deviation .022


# "A stomach is the result of an allergic reaction": Figure 1 of ROM's paper.
ROM_WEIGHTS = [0, 0.4, 0, 0, 0.1, 0, 0, 0.3, 0.2]
SAMPLES = (0.62, 0.15, 0.80, 0.33, 0.47, 0.90, 0.05, 0.55, 0.71)


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
def test_rom_masks_the_largest_sums(weights: list[float], rate: float, options: dict, expected: list[int]) -> None:
    hidden = mask(mask_rom, make_text([1] * 9, weights), rate, rng=FixedRandom(*SAMPLES), counted=9, **options)
    assert [place - 1 for place in list_positions(hidden)] == expected


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ((0.6, 0.2, 0.7), [1, 2, 3]),  # words .4 .8 .2, divided by .8: sums 1.1 1.2 .95; word 1, then word 0
        ((0.1, 0.2, 0.95), [1, 2, 3]),  # .6 1.2 1.2: the first of equals; the word of three has no room then
        ((0.1, 0.1, 0.95), [4, 5, 6]),  # .6 1.1 1.2
    ],
)
def test_whole_word_rom_uses_the_maximum_weight(samples: tuple[float, ...], expected: list[int]) -> None:
    text = make_text([2, 1, 3], [0.4, 0.1, 0.8, 0, 0, 0.2])
    assert list_positions(mask(mask_rom, text, 0.5, rng=FixedRandom(*samples), counted=6, whole_word=True)) == expected


def test_whole_word_rom_scales_word_weights() -> None:
    # words .6 .2, to a sum of 1: .75 .25; with .2 .6: .95 .85. Over pieces it would be .43 .14.
    text, samples = make_text([2, 1], [0.6, 0.6, 0.2]), FixedRandom(0.2, 0.6)
    assert list_positions(mask(mask_rom, text, 0.6, rng=samples, counted=3, whole_word=True, scale="sum")) == [1, 2]
    # pieces .5 .25: 1 and 0 by min-max; a 0 at [CLS] would make it 1 and .5
    text, samples = make_text([1, 1], [0.5, 0.25]), FixedRandom(0.1, 0.9)
    for scale, expected in (("minmax", [1]), ("max", [2])):
        assert list_positions(mask(mask_rom, text, 0.5, rng=samples, counted=2, scale=scale)) == expected


def test_extension_adds_an_independent_mask() -> None:
    # 43 of 142 words, then round(142 * .285714) = 41 of all: 43 + 99 * 41 / 142 = 71.585 on average.
    # The number of added words is hypergeometric, with a deviation of 2.9; the mean of 400 has a deviation of .15.
    text, rng, counts = make_text([1] * LONG), create_generator("extension"), []
    for _ in range(400):
        other = mask(mask_whole_words, text, 0.3, rng=rng, counted=LONG)
        before = other.copy()
        extended = mask(mask_extension, text, 0.5, rng=rng, counted=LONG, other=other, other_rate=0.3)
        assert extended[before].all()
        counts.append(extended.sum())
    assert np.mean(counts) == pytest.approx(71.585, abs=0.65)
    assert (other == before).all()
    for rate, expected in ((0.3, before.sum()), (1.0, LONG)):
        assert mask(mask_extension, text, rate, rng=rng, counted=LONG, other=other, other_rate=0.3).sum() == expected


def test_text_without_weights_is_rejected() -> None:
    for strategy in (mask_keywords, mask_rom):
        with pytest.raises(ValueError, match=r"requires token weights.* `drtk termweight`"):
            mask(strategy, make_text([1, 1]), 0.5, counted=2)


CLS, SEP, MASK = 101, 102, 103
VOCABULARY = Vocabulary(size=1000, mask=MASK, special=frozenset({0, 100, CLS, SEP, MASK}))
A, B, C, D, E = range(200, 205)


def make_plain_text(*ids: int) -> TokenizedText:
    """Return [CLS] ids [SEP], in which each id is a word."""
    words = np.array([-1, *range(len(ids)), -1], dtype=np.int32)
    return TokenizedText(np.array([CLS, *ids, SEP], dtype=np.int32), words)


def mask_positions(length: int, *places: int) -> np.ndarray:
    hidden = np.zeros(length, dtype=bool)
    hidden[list(places)] = True
    return hidden


@pytest.mark.parametrize("how", ["mask", "replaced"])
def test_masked_tokens_become_mask_tokens(how: str) -> None:
    text = make_plain_text(A, B, C)
    corrupted = corrupt_tokens(text.ids, mask_positions(5, 1, 3), how, create_generator(1), VOCABULARY)  # type: ignore[arg-type]
    assert (corrupted.tolist(), corrupted.dtype) == ([CLS, MASK, B, MASK, SEP], np.int32)
    assert text.ids.tolist() == [CLS, A, B, C, SEP]


def test_corruption_none_returns_an_unchanged_copy() -> None:
    text = make_plain_text(A, B)
    copy = corrupt_tokens(text.ids, mask_positions(4, 1, 2), "none", create_generator(1), VOCABULARY)
    assert copy.tolist() == text.ids.tolist()
    assert copy is not text.ids


def test_bert_corruption_has_80_10_10_shares() -> None:
    # 100,000 masked tokens: deviations of sqrt(n p (1 - p)) = 126, 95, 95. The 10,000 random tokens are 500 of each of 20,
    # special ones too, with a deviation of 22.
    small = Vocabulary(size=20, mask=3, special=frozenset({0, 1, 2, 3}))
    ids = np.full(100_000, 50, dtype=np.int32)
    actual = corrupt_tokens(ids, np.ones(len(ids), dtype=bool), "bert", create_generator("whole"), small)
    counts = np.bincount(actual)
    assert counts[50] == pytest.approx(10_000, abs=4.5 * 95)
    assert counts[3] == pytest.approx(80_500, abs=4.5 * 126)
    assert np.delete(counts[:20], 3) == pytest.approx([500] * 19, abs=4.5 * 22)
    assert actual.dtype == np.int32


def test_tokens_after_deletions_are_labeled() -> None:
    # [CLS] a b c d e [SEP] minus b, e -> [CLS] a c d [SEP], labels 0 0 1 0 1
    actual = delete_tokens_at(make_plain_text(A, B, C, D, E), mask_positions(7, 2, 5))
    assert actual.text.ids.tolist() == [CLS, A, C, D, SEP]
    assert actual.edited.tolist() == [0, 0, 1, 0, 1]
    assert actual.edited.dtype == np.int64
    assert actual.text.words.tolist() == [-1, 0, 1, 2, -1]
    assert not actual.masked.any()
    actual = delete_tokens_at(make_plain_text(A, B, C, D), mask_positions(6, 1, 2, 3))  # one label for several in a row
    assert (actual.text.ids.tolist(), actual.edited.tolist()) == ([CLS, D, SEP], [0, 1, 0])


def test_masks_are_inserted_before_the_given_positions() -> None:
    # Gaps before a (place 1) and before [SEP] (place 3), and one in the middle of a word of two pieces.
    text = TokenizedText(np.array([CLS, A, B, SEP], dtype=np.int32), np.array([-1, 0, 0, -1], dtype=np.int32))
    actual = insert_masks_at(text, np.array([1, 2, 3]), MASK)
    assert actual.text.ids.tolist() == [CLS, MASK, A, MASK, B, MASK, SEP]
    assert actual.edited.tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert actual.masked.tolist() == [False, True] * 3 + [False]
    assert actual.text.words.tolist() == [-1, 0, 1, 2, 3, 4, -1]
    assert (actual.text.ids.dtype, actual.edited.dtype, actual.text.words.dtype) == (np.int32, np.int64, np.int32)


def test_inserted_masks_get_the_token_type_of_the_next_token() -> None:
    ids, words = np.array([CLS, A, SEP, B, C, SEP], dtype=np.int32), np.array([-1, 0, -1, 1, 2, -1], dtype=np.int32)
    text = TokenizedText(ids, words, types=np.array([0, 0, 0, 1, 1, 1], dtype=np.int32))
    longer = insert_masks_at(text, np.array([2, 3, 5]), MASK)  # after the title, before the text, after the text
    assert longer.text.ids.tolist() == [CLS, A, MASK, SEP, MASK, B, C, MASK, SEP]
    assert longer.text.types is not None
    assert longer.text.types.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    shorter = delete_tokens_at(text, mask_positions(6, 1, 3))
    assert shorter.text.ids.tolist() == [CLS, SEP, C, SEP]
    assert shorter.text.types is not None
    assert shorter.text.types.tolist() == [0, 0, 1, 1]


def test_insertions_are_between_the_special_tokens() -> None:
    text = make_plain_text(*range(300, 310))
    gaps = set()
    for seed in range(200):
        actual = insert_masks(text, 0.15, create_generator(seed), VOCABULARY)
        assert len(actual.text.ids) == 12 + 2  # round(1.5)
        assert actual.text.ids[actual.masked].tolist() == [MASK, MASK]
        assert actual.edited.sum() == 2
        assert (actual.text.ids[0], actual.text.ids[-1]) == (CLS, SEP)
        assert actual.text.ids[~actual.masked].tolist() == text.ids.tolist()
        gaps |= {int(place) - number for number, place in enumerate(np.flatnonzero(actual.masked))}
    assert gaps == set(range(1, 12))  # before each of the ten, and after the last: 11 gaps
