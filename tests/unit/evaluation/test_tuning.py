"""Grid search over BM25 parameters and over weights of fusion."""

import pytest

from drtk.errors import UsageError
from drtk.evaluation.tuning import RankingScorer, iter_weights, parse_grid
from drtk.indexing.config import SearchSettings

QRELS = {"q1": {"a#1": 1}, "q2": {"b#1": 1}}


def test_the_scorer_averages_over_all_judged_queries() -> None:
    score = RankingScorer(QRELS, "RR@10")
    assert score({"q1": [("x", 2.0), ("a#1", 1.0)]}) == pytest.approx(0.25)  # 1/2 and 0
    assert score({"q1": [("a#1", 1.0), ("x", 1.0)], "q2": [("b#1", 1.0)]}) == pytest.approx(0.75)  # x before a#1
    by_document = RankingScorer({"q1": {"a": 1}}, "RR@10", by=lambda passage: passage.partition("#")[0])
    assert by_document({"q1": [("x#1", 3.0), ("x#2", 2.0), ("a#7", 1.0)]}) == pytest.approx(0.5)
    for measures in ("RR@10 nDCG@10", "relstring", "runid"):
        with pytest.raises(UsageError, match="exactly one measure"):
            RankingScorer(QRELS, measures)


def test_grid_contains_every_pair_of_k1_and_b() -> None:
    assert parse_grid("b=0.4 k1=0.9,1.2") == [(0.9, 0.4), (1.2, 0.4)]
    default = parse_grid(SearchSettings().grid)
    assert len(default) == 30
    assert {(0.9, 0.4), (0.82, 0.68), (1.2, 0.75)} <= set(default)


@pytest.mark.parametrize(
    "text", ["", "k1=0.9", "k1=0.9 b=", "k1=a b=0.4", "k1=1 k1=2 b=0", "k1=1 b=2", "k1=-1 b=0", "k1=nan b=0"]
)
def test_malformed_grid_is_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        parse_grid(text)


def test_weights_of_a_grid_sum_to_1() -> None:
    assert list(iter_weights(2, 0.5)) == [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)]
    assert len(list(iter_weights(3, 0.1))) == 66  # 12 choose 2
