"""Corruptions: replaced, inserted and deleted tokens (docs/methods/masking.md, docs/methods/diffcse.md)."""

from __future__ import annotations

import numpy as np
import pytest

from drtk.pretraining.masking import Vocabulary, corrupt_tokens, delete_tokens_at, insert_masks, insert_masks_at
from drtk.text.rng import create_generator
from drtk.text.token_dataset import Text

CLS, SEP, MASK = 101, 102, 103
VOCABULARY = Vocabulary(size=1000, mask=MASK, special=frozenset({0, 100, CLS, SEP, MASK}))
A, B, C, D, E = range(200, 205)


def make_text(*ids: int) -> Text:
    """Return [CLS] ids [SEP], in which each id is a word."""
    words = np.array([-1, *range(len(ids)), -1], dtype=np.int32)
    return Text(np.array([CLS, *ids, SEP], dtype=np.int32), words)


def mask_at(length: int, *places: int) -> np.ndarray:
    hidden = np.zeros(length, dtype=bool)
    hidden[list(places)] = True
    return hidden


@pytest.mark.parametrize("how", ["mask", "replaced"])
def test_masked_tokens_become_mask_tokens(how: str) -> None:
    text = make_text(A, B, C)
    corrupted = corrupt_tokens(text.ids, mask_at(5, 1, 3), how, create_generator(1), VOCABULARY)  # type: ignore[arg-type]
    assert (corrupted.tolist(), corrupted.dtype) == ([CLS, MASK, B, MASK, SEP], np.int32)
    assert text.ids.tolist() == [CLS, A, B, C, SEP]


def test_corruption_none_returns_an_unchanged_copy() -> None:
    text = make_text(A, B)
    copy = corrupt_tokens(text.ids, mask_at(4, 1, 2), "none", create_generator(1), VOCABULARY)
    assert copy.tolist() == text.ids.tolist()
    assert copy is not text.ids


def test_bert_corruption_has_80_10_10_shares() -> None:
    # 100,000 masked tokens: deviations of sqrt(n p (1 - p)) = 126, 95, 95. One random token of 1,000 is the original.
    ids = np.full(100_000, A, dtype=np.int32)
    actual = corrupt_tokens(ids, np.ones(len(ids), dtype=bool), "bert", create_generator("bert"), VOCABULARY)
    masked, kept = int((actual == MASK).sum()), int((actual == A).sum())
    assert masked == pytest.approx(80_010, abs=4.5 * 126)  # and 10 of the swapped that drew [MASK]
    assert kept == pytest.approx(10_010, abs=4.5 * 95)
    assert len(ids) - masked - kept == pytest.approx(9_980, abs=4.5 * 95)
    assert actual.dtype == np.int32


def test_bert_corruption_samples_from_the_whole_vocabulary() -> None:
    # 10,000 swaps among 20 tokens: 500 each, with a deviation of 22; the first and the last, and special ones, are among them.
    small = Vocabulary(size=20, mask=3, special=frozenset({0, 1, 2, 3}))
    ids = np.full(100_000, 50, dtype=np.int32)
    found = corrupt_tokens(ids, np.ones(len(ids), dtype=bool), "bert", create_generator("whole"), small)
    counts = np.bincount(found, minlength=20)[:20]
    counts[3] -= 80_000
    assert np.delete(counts, 3) == pytest.approx([500] * 19, abs=4.5 * 22)
    assert counts[3] == pytest.approx(500, abs=4.5 * 126)


def test_tokens_after_deletions_are_labeled() -> None:
    # [CLS] a b c d e [SEP] minus b, e -> [CLS] a c d [SEP], labels 0 0 1 0 1
    actual = delete_tokens_at(make_text(A, B, C, D, E), mask_at(7, 2, 5))
    assert actual.text.ids.tolist() == [CLS, A, C, D, SEP]
    assert actual.edited.tolist() == [0, 0, 1, 0, 1]
    assert actual.edited.dtype == np.int64
    assert actual.text.words.tolist() == [-1, 0, 1, 2, -1]
    assert not actual.masked.any()
    actual = delete_tokens_at(make_text(A, B, C, D), mask_at(6, 1, 2, 3))  # several in a row leave one label
    assert (actual.text.ids.tolist(), actual.edited.tolist()) == ([CLS, D, SEP], [0, 1, 0])


def test_masks_are_inserted_before_the_given_positions() -> None:
    # Gaps before a (place 1) and before [SEP] (place 3), and one in the middle of a word of two pieces.
    text = Text(np.array([CLS, A, B, SEP], dtype=np.int32), np.array([-1, 0, 0, -1], dtype=np.int32))
    actual = insert_masks_at(text, np.array([1, 2, 3]), MASK)
    assert actual.text.ids.tolist() == [CLS, MASK, A, MASK, B, MASK, SEP]
    assert actual.edited.tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert actual.masked.tolist() == [False, True] * 3 + [False]
    assert actual.text.words.tolist() == [-1, 0, 1, 2, 3, 4, -1]
    assert (actual.text.ids.dtype, actual.edited.dtype, actual.text.words.dtype) == (np.int32, np.int64, np.int32)


def test_inserted_masks_get_the_token_type_of_the_next_token() -> None:
    ids, words = np.array([CLS, A, SEP, B, C, SEP], dtype=np.int32), np.array([-1, 0, -1, 1, 2, -1], dtype=np.int32)
    text = Text(ids, words, types=np.array([0, 0, 0, 1, 1, 1], dtype=np.int32))
    longer = insert_masks_at(text, np.array([2, 3, 5]), MASK)  # after the title, before the text, after the text
    assert longer.text.ids.tolist() == [CLS, A, MASK, SEP, MASK, B, C, MASK, SEP]
    assert longer.text.types is not None
    assert longer.text.types.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    shorter = delete_tokens_at(text, mask_at(6, 1, 3))
    assert shorter.text.ids.tolist() == [CLS, SEP, C, SEP]
    assert shorter.text.types is not None
    assert shorter.text.types.tolist() == [0, 0, 1, 1]


def test_insertions_are_between_the_special_tokens() -> None:
    text = make_text(*range(300, 310))
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
