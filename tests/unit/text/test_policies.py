"""Which sentences make a passage."""

from __future__ import annotations

import pytest

from drtk.text.chunking import blocks, condenser, cotmae, greedy

LENGTHS = [60, 70, 30, 150, 10, 140, 5]


def sizes(groups):
    return [sum(end - begin for _, begin, end in group) for group in groups]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (greedy, [130, 30, 144, 16, 140, 5]),  # 60+70; 30; 144 of 150; the other 6 + 10; 140; 5
        (condenser, [130, 30, 150, 10, 140, 5]),  # the long sentence stays whole, alone
        (cotmae, [160, 150, 150, 5]),  # 60+70+30; 150; 10+140; 5: closed once over 144
    ],
)
def test_the_policies_group_the_known_lengths_as_published(policy, expected):
    assert sizes(policy(LENGTHS, 144)) == expected


def test_the_rest_of_a_long_sentence_opens_the_next_group():
    groups = greedy(LENGTHS, 144)
    assert groups[2] == [(3, 0, 144)]
    assert groups[3] == [(3, 144, 150), (4, 0, 10)]


def test_a_sentence_of_several_caps_is_cut_into_full_pieces():
    assert greedy([25], 10) == [[(0, 0, 10)], [(0, 10, 20)], [(0, 20, 25)]]
    assert greedy([20], 10) == [[(0, 0, 10)], [(0, 10, 20)]]


def test_a_cut_moves_left_to_the_boundary_it_is_given():
    # words begin at units 0, 4, 8, …; a cap of 10 must not cut at 10, which lies within a word, but at 8; then 8 + 10 -> 16
    groups = greedy([20], 10, boundary=lambda sentence, begin, latest: latest - latest % 4)
    assert groups == [[(0, 0, 8)], [(0, 8, 16)], [(0, 16, 20)]]


@pytest.mark.parametrize("policy", [greedy, condenser, cotmae])
def test_empty_sentences_belong_to_no_group_and_no_sentences_make_none(policy):
    assert policy([], 10) == []
    assert policy([0, 0], 10) == []
    assert policy([0, 3, 0, 4, 0], 10) == [[(1, 0, 3), (3, 0, 4)]]


def test_a_shorter_target_closes_groups_early_and_cuts_nothing():
    # targets 3, 10, 10: the first group closes after one sentence of 4, which is over 3 but under the cap
    groups = greedy([4, 4, 4, 4], 10, target=lambda group: 3 if group == 0 else 10)
    assert sizes(groups) == [4, 8, 4]


def test_overlap_repeats_the_last_sentences_as_far_as_they_fit():
    # cap 10: [3 3 3], then the last 3 again and 3 + 3, …
    assert greedy([3, 3, 3, 3, 3], 10, overlap=1) == [
        [(0, 0, 3), (1, 0, 3), (2, 0, 3)],
        [(2, 0, 3), (3, 0, 3), (4, 0, 3)],
    ]
    assert greedy([5, 5, 9], 10, overlap=1) == [[(0, 0, 5), (1, 0, 5)], [(2, 0, 9)]]  # 5 + 9 would exceed 10
    assert greedy([4, 4, 4], 8, overlap=5) == [[(0, 0, 4), (1, 0, 4)], [(1, 0, 4), (2, 0, 4)]]  # never the whole group


def test_words_make_blocks_of_100_and_a_shorter_last_one():
    assert [end - begin for begin, end in blocks(257, 100)] == [100, 100, 57]
    assert blocks(200, 100) == [(0, 100), (100, 200)]
    assert blocks(0, 100) == []


def test_blocks_with_overlap_end_when_the_last_word_is_reached():
    assert blocks(10, 4, overlap=1) == [(0, 4), (3, 7), (6, 10)]
    assert blocks(11, 4, overlap=1) == [(0, 4), (3, 7), (6, 10), (9, 11)]
    assert blocks(3, 4, overlap=3) == [(0, 3)]
