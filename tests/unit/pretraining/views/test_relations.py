"""Which passages of a document belong together."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from drtk.pretraining.views.pairs import following, nearby, overlap, random_other, span_pair


def drawn(function, *arguments, times=400):
    rng = np.random.default_rng(5)
    return Counter(function(*arguments, rng=rng) for _ in range(times))


def test_the_next_passage_never_leaves_the_document():
    assert [following(position, 3) for position in range(3)] == [1, 2, None]


def test_neighbours_have_the_same_chance():
    assert set(drawn(nearby, 0, 3)) == {1}
    assert set(drawn(nearby, 2, 3)) == {1}
    middle = drawn(nearby, 1, 3)
    assert set(middle) == {0, 2}
    assert abs(middle[0] - 200) < 50  # five standard deviations: 5 * sqrt(400 / 4)
    assert set(drawn(nearby, 0, 1)) == {None}


def test_a_random_other_is_another_within_reach():
    assert set(drawn(random_other, 1, 4)) == {0, 2, 3}
    far = set(drawn(random_other, 150, 1000, times=5000))
    assert min(far) == 50
    assert max(far) == 250
    assert 150 not in far
    assert set(drawn(random_other, 0, 1)) == {None}


def test_a_pair_is_two_different_passages():
    pairs = drawn(span_pair, 3)
    assert set(pairs) == {(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)}
    assert set(drawn(span_pair, 1)) == {None}


def test_an_overlapping_passage_begins_in_the_last_half_and_goes_on_to_the_cap():
    lengths = [[2, 2, 2, 2], [3, 3], [4]]
    rng = np.random.default_rng(1)
    found = {tuple(overlap(0, lengths, 8, rng=rng)) for _ in range(50)}
    # r = 1: 2 + 3 + 3 = 8;  r = 2: 2 + 2 + 3 = 7, and 3 more would be 10
    assert found == {((0, 3), (1, 0), (1, 1)), ((0, 2), (0, 3), (1, 0))}


def test_from_the_last_passage_it_goes_backwards():
    lengths = [[2, 2], [3, 1, 1, 1]]
    rng = np.random.default_rng(1)
    found = {tuple(overlap(1, lengths, 7, rng=rng)) for _ in range(50)}
    # r = 1: 3 + 2 + 2 = 7;  r = 2: 1 + 3 + 2 = 6, and 2 more would be 8
    assert found == {((0, 0), (0, 1), (1, 0)), ((0, 1), (1, 0), (1, 1))}


@pytest.mark.parametrize("cap", [1, 5])
def test_one_sentence_is_taken_even_where_it_exceeds_the_cap(cap):
    assert overlap(0, [[9], [9]], cap, rng=np.random.default_rng(0)) == [(0, 0)]
