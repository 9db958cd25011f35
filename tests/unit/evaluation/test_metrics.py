"""Measures of one query by hand-computed values."""

from __future__ import annotations

from math import log2

import pytest

from drtk.evaluation.metrics import (
    JudgedRanks,
    average_precision,
    count_relevant,
    eleven_point_average,
    ndcg,
    precision,
    precision_at_recall,
    r_precision,
    rank_biased_precision,
    rank_biased_residual,
    recall,
    reciprocal_rank,
    relevance_string,
    share_unjudged,
    success,
    utility,
)

POOL = [3, 2, 2, 1, 1, 0]  # all grades of the query


def make_ranking(*grades: int | None) -> JudgedRanks:
    """Return a ranking with these grades, None for unjudged documents."""
    ranks = [rank for rank, grade in enumerate(grades, start=1) if grade is not None]
    return JudgedRanks(ranks, [grade for grade in grades if grade is not None], len(grades))


RANKED = make_ranking(3, 0, 2, None, 1)


def test_reciprocal_rank_respects_cutoff_and_relevance_level() -> None:
    assert reciprocal_rank(make_ranking(0, 1, 2), []) == 1 / 2
    assert reciprocal_rank(make_ranking(0, 1, 2), [], rel=2) == 1 / 3
    assert reciprocal_rank(make_ranking(0, 1, 2), [], rel=2, cutoff=2) == 0
    assert reciprocal_rank(make_ranking(None, None), []) == 0


def test_precision_recall_success_and_average_precision() -> None:
    # relevant ranks 1, 3, 5 of 5 relevant documents; with grade 2: ranks 1, 3 of 3
    assert recall(RANKED, POOL) == recall(RANKED, POOL, cutoff=5) == 3 / 5
    assert [recall(RANKED, POOL, cutoff=depth) for depth in (1, 2, 3)] == [1 / 5, 1 / 5, 2 / 5]
    assert recall(RANKED, POOL, rel=2, cutoff=2) == 1 / 3
    assert [precision(RANKED, POOL, cutoff=depth) for depth in (1, 2, 10)] == [1, 1 / 2, 3 / 10]
    assert [success(make_ranking(0, 1), POOL, cutoff=depth) for depth in (1, 2)] == [0, 1]
    assert average_precision(RANKED, POOL) == pytest.approx((1 + 2 / 3 + 3 / 5) / 5)
    assert average_precision(RANKED, POOL, cutoff=3) == pytest.approx((1 + 2 / 3) / 5)
    assert r_precision(RANKED, POOL) == 3 / 5
    assert r_precision(RANKED, POOL, rel=2) == 2 / 3
    for measure in (recall, average_precision, r_precision):
        assert measure(make_ranking(0), [0]) == 0


def test_ndcg_with_linear_exponential_and_given_gains() -> None:
    # DCG 3 + 2/log2(4) + 1/log2(6) = 4.386853; ideal 3 + 2/log2(3) + 2/log2(4) + 1/log2(5) + 1/log2(6) = 6.079389
    assert ndcg(RANKED, POOL) == pytest.approx(0.721594, abs=2e-6)
    assert ndcg(RANKED, POOL, exponential=True) == pytest.approx(0.792739, abs=2e-6)
    # grade 2 gains 9, others their grade: 3 + 9/2 + 1/log2(6) over 9 + 9/log2(3) + 3/2 + 1/log2(5) + 1/log2(6)
    ideal = 9 + 9 / log2(3) + 3 / 2 + 1 / log2(5) + 1 / log2(6)
    assert ndcg(RANKED, POOL, gains={2: 9}) == pytest.approx((3 + 9 / 2 + 1 / log2(6)) / ideal)


def test_ndcg_of_the_ideal_ranking_is_one_and_negative_grades_gain_nothing() -> None:
    assert ndcg(make_ranking(*sorted(POOL, reverse=True)), POOL) == pytest.approx(1)
    assert ndcg(make_ranking(-1, 1), [1, -1]) == pytest.approx(1 / log2(3))
    assert ndcg(make_ranking(0, None), [0, -1]) == 0


def test_ndcg_is_cut_in_both_rankings() -> None:
    # first two: 3 + 0 over 3 + 2/log2(3)
    assert ndcg(RANKED, POOL, cutoff=2) == pytest.approx(3 / (3 + 2 / log2(3)))


def test_interpolated_precision_is_the_highest_at_or_above_a_recall_level() -> None:
    # relevant at ranks 1 and 4 of 2 in all: precision 1 at recall 0.5, 1/2 at recall 1
    grades = [1, 0, 0, 1]
    assert precision_at_recall(grades, [1, 1], recall=0.5) == 1
    assert precision_at_recall(grades, [1, 1], recall=1.0) == 1 / 2
    # 0.6 of 2 is 1.2, rounded 1 document; 0.8 of 2 is 1.6, rounded 2
    assert precision_at_recall(grades, [1, 1], recall=0.6) == 1
    assert precision_at_recall(grades, [1, 1], recall=0.8) == 1 / 2
    assert eleven_point_average(grades, [1, 1], levels=(0.5, 1.0)) == 3 / 4


def test_rank_biased_precision_scales_grades_above_one() -> None:
    # p .5: (1 - .5) (1 + .25) for grades 1 0 1; with a highest grade of 2 in the pool, half of it
    assert rank_biased_precision([1, 0, 1], [1, 1], p=0.5) == pytest.approx(0.625)
    assert rank_biased_precision([1, 0, 1], [1, 1, 2], p=0.5) == pytest.approx(0.3125)


def test_rank_biased_residual_counts_unjudged_documents_as_relevant() -> None:
    # unjudged at rank 2 of 3, p .5: .5 * .5 and all that comes after, .5^3
    assert rank_biased_residual([1, None, 0], [1], p=0.5) == pytest.approx(0.25 + 0.125)
    assert rank_biased_residual([1, 0, 0], [1], p=0.5) == 0


def test_unjudged_counts_missing_ranks_as_judged() -> None:
    assert share_unjudged([None, -1, 0], [0], cutoff=10) == 2 / 10


def test_utility_weights_retrieved_and_missed_documents() -> None:
    # 1 relevant and 2 others found, 1 relevant missed
    assert utility([1, 0, None], [1, 1]) == 1 - 2
    assert utility([1, 0, None], [1, 1], weights=(2, -1, -3, 0)) == 2 - 2 - 3


def test_relevance_string_and_number_of_relevant() -> None:
    assert relevance_string([None, -1, 0, 3, 12], [], cutoff=4) == "'-.03'"
    assert relevance_string([12], []) == "'>'"
    assert count_relevant([], [0, 1, 2, -1], rel=1) == 2
