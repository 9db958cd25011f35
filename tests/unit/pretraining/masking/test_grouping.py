"""Pieces are grouped into words by their numbers, special tokens apart."""

from __future__ import annotations

import numpy as np

from drtk.pretraining.masking.strategies import group_words


def numbers(*words: int) -> np.ndarray:
    return np.array(words, dtype=np.int32)


def test_a_word_is_a_run_of_equal_numbers() -> None:
    words = group_words(numbers(-1, 0, 0, 1, 2, 2, 2, -1))
    assert words.sizes.tolist() == [2, 1, 3]
    assert words.begins.tolist() == [0, 2, 3]  # among the six pieces that are not special
    assert np.flatnonzero(words.expand(np.array([True, False, True]))).tolist() == [1, 2, 4, 5, 6]


def test_a_special_token_parts_words_of_the_same_number() -> None:
    # Two segments that both begin to count at 0: [CLS] 0 0 [SEP] 0 1 [SEP]
    words = group_words(numbers(-1, 0, 0, -1, 0, 1, -1))
    assert words.sizes.tolist() == [2, 1, 1]
    assert np.flatnonzero(words.expand(np.array([False, True, False]))).tolist() == [4]


def test_a_text_of_special_tokens_has_no_words() -> None:
    words = group_words(numbers(-1, -1))
    assert words.sizes.tolist() == []
    assert words.expand(np.zeros(0, dtype=bool)).tolist() == [False, False]
    assert words.max_weights(np.array([3.0, 4.0])).tolist() == []


def test_the_weight_of_a_word_is_the_largest_of_its_pieces() -> None:
    weights = np.array([9, 0.1, 0.3, 0.2, 9])
    assert group_words(numbers(-1, 0, 0, 1, -1)).max_weights(weights).tolist() == [0.3, 0.2]


def test_new_numbers_rise_by_one() -> None:
    assert renumbered(numbers(-1, 4, 4, 7, -1, 2, 3, 3)).tolist() == [-1, 0, 0, 1, -1, 2, 3, 3]
