"""Evaluation of rankings: which queries count, aggregation, and the measures of other libraries."""

from math import exp, log

import pytest

from drtk.evaluation.evaluate import Evaluator
from drtk.evaluation.measures import parse_measures

JUDGMENTS = {"q1": {"d1": 1, "d7": 1}, "q2": {"d2": 1}, "q3": {"d0": 1}, "q4": {"d1": 1}}
RANKINGS = {"q1": ["d3", "d1", "d7"], "q2": ["d9", "d8", "d2"], "q3": ["d4", "d5", "d6"]}


def compute_means(measures: str, **options: bool) -> dict[str, object]:
    return dict(Evaluator(JUDGMENTS, parse_measures(measures))("run", RANKINGS, **options).overall)


def test_geometric_mean_replaces_0_by_a_small_value() -> None:
    # AP: q1 (1/2 + 2/3)/2, q2 1/3, q3 and q4 nothing, counted as 0.00001
    expected = exp((log((1 / 2 + 2 / 3) / 2) + log(1 / 3) + 2 * log(1e-5)) / 4)
    assert compute_means("gm_map")["gm_map"] == pytest.approx(expected)


def test_relevance_level_does_not_change_ndcg() -> None:
    # DCG 3 + 2/2 + 1/log2(6) = 4.386853; ideal 3 + 2/log2(3) + 2/2 + 1/log2(5) + 1/log2(6) with judged 3 2 2 1 1 0
    grades = {"d1": 3, "d2": 0, "d3": 2, "d5": 1, "d6": 2, "d7": 1}
    for rel in (1, 2):
        measures = parse_measures("nDCG@10 nDCG(dcg='exp-log2')@10 ndcg_cut_10", rel=rel)
        result = Evaluator({"q": grades}, measures)("run", {"q": ["d1", "d2", "d3", "d9", "d5"]}).overall
        assert list(result.values()) == pytest.approx([0.721594, 0.792739, 0.721594], abs=2e-6)


def test_judged_only_removes_unjudged_documents() -> None:
    # only d1 and d7 of q1's ranking are judged, d2 of q2's
    result = compute_means("RR(judged_only=True)@10 P(judged_only=True)@1")
    assert list(result.values()) == pytest.approx([(1 + 1) / 4, (1 + 1) / 4])
    evaluator = Evaluator({"q": {"a": -1, "b": 1}}, parse_measures("RR(judged_only=True)@10"))  # -1: not judged
    assert evaluator("run", {"q": ["a", "b"]}).overall["RR(judged_only=True)@10"] == 1.0
    evaluator = Evaluator({"q": {"a": 0, "b": 1}}, parse_measures("RR(judged_only=True)@10"))  # 0: judged
    assert evaluator("run", {"q": ["a", "b"]}).overall["RR(judged_only=True)@10"] == 0.5


def test_f_measures_with_several_betas_are_separate() -> None:
    # q: 1 of 2 retrieved is relevant (P 1/2), 1 of 4 relevant found (R 1/4); trec_eval's F: (1 + b) P R / (R + b P)
    evaluator = Evaluator({"q": dict.fromkeys("abcd", 1)}, parse_measures("set_F set_F_0.5 set_F_2"))
    result = evaluator("run", {"q": ["a", "z"]}).overall
    p, r = 1 / 2, 1 / 4
    expected = {name: (1 + b) * p * r / (r + b * p) for name, b in (("set_F", 1), ("set_F_0.5", 0.5), ("set_F_2", 2))}
    assert result == pytest.approx(expected)


def test_empty_run_scores_0_and_evaluator_is_reusable() -> None:
    evaluator = Evaluator(JUDGMENTS, parse_measures("RR AP R@5 nDCG num_ret rbp bpref"))
    first = evaluator("a", RANKINGS)
    empty = evaluator("b", {})
    assert set(empty.overall.values()) == {0}
    assert empty.num_queries == 4
    assert evaluator("a", RANKINGS | {"not judged": ["d1"]}) == first
    assert compute_means("num_q num_rel num_ret num_rel_ret NumRel(rel=2)") == {
        "num_q": 4, "num_rel": 5, "num_ret": 9, "num_rel_ret": 3, "NumRel(rel=2)": 0
    }  # fmt: skip


def test_query_with_only_unjudged_documents_scores_0() -> None:
    # grade -1: in the pool, not judged. pytrec_eval alone loops forever
    evaluator = Evaluator({"q": {"a": -1}}, parse_measures("AP nDCG bpref P_5 num_ret num_rel"))
    result = evaluator("run", {"q": ["a", "b"]}).overall
    assert result == {"AP": 0, "nDCG": 0, "bpref": 0, "P_5": 0, "num_ret": 2, "num_rel": 0}
