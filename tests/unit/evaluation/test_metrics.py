"""Measures of one query by hand-computed values. For others see test_trec_eval.py and tests/property/test_run_blocks.py."""

from math import log2
from typing import Any

import pytest

from drtk.evaluation import metrics
from drtk.evaluation.metrics import JudgedRanks

POOL = [3, 2, 2, 1, 1, 0]  # all grades of the query


def make_ranking(*grades: int | None) -> JudgedRanks:
    """Return a ranking with these grades, None for unjudged documents."""
    ranks = [rank for rank, grade in enumerate(grades, start=1) if grade is not None]
    return JudgedRanks(ranks, [grade for grade in grades if grade is not None], len(grades))


RANKED = make_ranking(3, 0, 2, None, 1)  # relevant ranks 1, 3, 5 of 5; with grade 2: ranks 1, 3 of 3
# DCG 3 + 2/log2(4) + 1/log2(6) = 4.386853; ideal 3 + 2/log2(3) + 2/log2(4) + 1/log2(5) + 1/log2(6) = 6.079389
IDEAL_9 = 9 + 9 / log2(3) + 3 / 2 + 1 / log2(5) + 1 / log2(6)  # grade 2 gains 9, others their grade
FOUR = make_ranking(1, 0, 0, 1)  # relevant at ranks 1 and 4 of 2 in all


@pytest.mark.parametrize(
    ("measure", "ranking", "pool", "options", "expected"),
    [
        ("reciprocal_rank", make_ranking(0, 1, 2), [], {}, 1 / 2),
        ("reciprocal_rank", make_ranking(0, 1, 2), [], {"rel": 2}, 1 / 3),
        ("reciprocal_rank", make_ranking(0, 1, 2), [], {"rel": 2, "cutoff": 2}, 0),
        ("recall", RANKED, POOL, {"cutoff": 3}, 2 / 5),
        ("recall", RANKED, POOL, {"rel": 2, "cutoff": 2}, 1 / 3),
        ("precision", RANKED, POOL, {"cutoff": 10}, 3 / 10),
        ("success", make_ranking(0, 1), POOL, {"cutoff": 1}, 0),
        ("average_precision", RANKED, POOL, {}, (1 + 2 / 3 + 3 / 5) / 5),
        ("average_precision", RANKED, POOL, {"cutoff": 3}, (1 + 2 / 3) / 5),
        ("r_precision", RANKED, POOL, {"rel": 2}, 2 / 3),
        *((name, make_ranking(0), [0], {}, 0) for name in ("recall", "average_precision", "r_precision")),
        ("ndcg", RANKED, POOL, {}, 0.721594),
        ("ndcg", RANKED, POOL, {"exponential": True}, 0.792739),
        ("ndcg", RANKED, POOL, {"gains": {2: 9}}, (3 + 9 / 2 + 1 / log2(6)) / IDEAL_9),
        ("ndcg", RANKED, POOL, {"cutoff": 2}, 3 / (3 + 2 / log2(3))),
        ("ndcg", make_ranking(-1, 1), [1, -1], {}, 1 / log2(3)),  # negative grades gain nothing
        ("ndcg", make_ranking(0, None), [0, -1], {}, 0),
        # the highest precision at or above a recall level: 1 at .5, 1/2 at 1; .6 of 2 is rounded to 1, .8 to 2
        ("precision_at_recall", FOUR, [1, 1], {"recall": 0.6}, 1),
        ("precision_at_recall", FOUR, [1, 1], {"recall": 0.8}, 1 / 2),
        ("eleven_point_average", FOUR, [1, 1], {"levels": (0.5, 1.0)}, 3 / 4),
        # (1 - .5) (1 + .25); with a highest grade of 2 in the pool, half of it
        ("rank_biased_precision", make_ranking(1, 0, 1), [1, 1], {"p": 0.5}, 0.625),
        ("rank_biased_precision", make_ranking(1, 0, 1), [1, 1, 2], {"p": 0.5}, 0.3125),
        # unjudged: .5 * .5, and all after the ranking, .5^3
        ("rank_biased_residual", make_ranking(1, None, 0), [1], {"p": 0.5}, 0.25 + 0.125),
        ("rank_biased_residual", make_ranking(1, 0, 0), [1], {"p": 0.5}, 0),
        ("compute_unjudged_share", make_ranking(None, -1, 0), [0], {"cutoff": 10}, 2 / 10),
        ("utility", make_ranking(1, 0, None), [1, 1], {}, 1 - 2),  # 1 relevant and 2 others found, 1 missed
        ("utility", make_ranking(1, 0, None), [1, 1], {"weights": (2, -1, -3, 0)}, 2 - 2 - 3),
        ("count_relevant", RANKED, [0, 1, 2, -1], {"rel": 1}, 2),
    ],
)
def test_measures_have_known_values(
    measure: str, ranking: JudgedRanks, pool: Any, options: Any, expected: float
) -> None:
    assert getattr(metrics, measure)(ranking, pool, **options) == pytest.approx(expected, abs=2e-6)


def test_relevance_string() -> None:
    assert metrics.relevance_string(make_ranking(None, -1, 0, 3, 12), [], cutoff=4) == "'-.03'"
    assert metrics.relevance_string(make_ranking(12), []) == "'>'"
