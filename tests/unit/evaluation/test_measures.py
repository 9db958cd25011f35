"""Names of measures: both grammars, cut-offs, and names that are rejected."""

import pytest

from drtk.errors import UsageError
from drtk.evaluation.measures import parse_measures


def names(text: str, rel: int = 1) -> list[str]:
    return [measure.name for measure in parse_measures(text, rel=rel)]


def test_measures_have_standard_names_and_duplicates_are_merged() -> None:
    text = "nDCG@10 RR@10 R@100 Success@5 P_30 AP(rel=2) nDCG(dcg='exp-log2')@10 Compat(p=0.8, normalize=True) map Judged@10 NumQ nDCG"
    assert " ".join(names(text)) == text
    assert names("NDCG@10 ndcg@10 mrr@10 MRR@10 RECALL@5 hit@5 MAP map Map_Cut_5 nDCG@10 compat(p=.8) AP(rel=1)") == [
        "nDCG@10", "RR@10", "R@5", "Success@5", "map", "map_cut_5", "Compat(p=.8)", "AP(rel=1)"
    ]  # fmt: skip
    assert [measure.name for measure in parse_measures("answer@1,5 ANSWER@5", answers=True)] == ["Answer@1", "Answer@5"]


def test_names_are_case_insensitive_and_have_aliases() -> None:
    keys = {
        "mrr@10": "recip_rank_10", "recip_rank@10": "recip_rank_10", "ndcg@10": "ndcg_cut_10", "NDCG_CUT_10": "ndcg_cut_10",
        "recall@100": "recall_100", "RECALL_100": "recall_100", "map@100": "map_cut_100", "MAP": "map", "precision@5": "P_5",
        "p@5": "P_5", "p_5": "P_5", "Recip_Rank": "recip_rank", "unj@5": "unj", "compat": "Compat",
        **dict.fromkeys(["hits@5", "Hit@5", "hr@5", "HitRate@5", "hit_rate@5", "success@5", "Success_5"], "success_5"),
    }  # fmt: skip
    assert {name: parse_measures(name)[0].key for name in keys} == keys
    assert parse_measures("answer@5", answers=True)[0].key == "Answer"
    (measure,) = parse_measures("hits(rel=2)@5")
    assert (measure.rel, measure.cutoff) == (2, 5)


def test_names_are_separated_by_spaces_or_commas() -> None:
    assert names("mrr@10,ndcg@10, recall@100") == ["RR@10", "nDCG@10", "R@100"]
    assert names("R(rel=2)@1,5,20,map") == ["R(rel=2)@1", "R(rel=2)@5", "R(rel=2)@20", "map"]
    assert names("P.5,7,recall.20,Compat(p=0.8, normalize=True),map,11pt_avg..25,.5") == [
        "P_5", "P_7", "recall_20", "Compat(p=0.8, normalize=True)", "map", "11pt_avg_.25,.5"
    ]  # fmt: skip


def test_trec_eval_families_expand_to_all_parameters() -> None:
    assert names("P.5,7") == ["P_5", "P_7"]
    assert names("ndcg_cut_10") == ["ndcg_cut_10"]
    assert names("iprec_at_recall..10,.2") == ["iprec_at_recall_0.10", "iprec_at_recall_0.20"]
    assert [measure.key for measure in parse_measures("Hit@5 R@5")] == ["success_5", "recall_5"]
    assert len(names("all_trec")) == 100  # 99 lines of trec_eval's summary and relstring, which has no summary


def test_default_relevance_level_appears_in_names() -> None:
    assert names("RR@10 nDCG@10 AP(rel=3) map", rel=2) == ["RR(rel=2)@10", "nDCG@10", "AP(rel=3)", "map"]
    assert [measure.rel for measure in parse_measures("RR@10 AP(rel=3) map", rel=2)] == [2, 3, 2]


def test_counts_are_summed_and_gm_map_is_a_geometric_mean() -> None:
    result = {measure.name: measure.aggregate for measure in parse_measures("num_rel NumRet gm_map relstring num_q AP")}
    assert list(result.values()) == ["sum", "sum", "geometric", "none", "none", "mean"]


def test_registered_measure_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from drtk.evaluation import METRICS

    monkeypatch.setitem(METRICS._entries, "Retrieved", ("drtk.evaluation.metrics:compute_unjudged_share", "a stand-in"))
    (measure,) = parse_measures("Retrieved@7", rel=2)
    assert (measure.engine, measure.key, measure.rel, measure.params) == ("builtin", "Retrieved", 2, {"cutoff": 7})
    with pytest.raises(UsageError, match="at least 1"):
        parse_measures("Retrieved@x")


def test_cutoffs_of_measures() -> None:
    cutoffs = {
        "nDCG@10": 10, "nDCG(dcg='exp-log2')@7": 7, "ndcg_cut_5": 5, "RR@3": 3, "RR": None, "P.15": 15, "R(rel=2)@50": 50,
        "Success@5": 5, "AP@1000": 1000, "map": None, "unj_10": 10, "relative_P_5": 5, "ERR@20": 20, "Judged@10": 10,
        "iprec_at_recall_0.10": None, "IPrec@0.1": None, "SetF": None, "num_q": None, "gm_map": None,
    }  # fmt: skip
    assert {name: parse_measures(name)[0].cutoff for name in cutoffs} == cutoffs


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mmr@10", "did you mean MRR@10"),
        ("ndgc@10", "did you mean nDCG@10"),
        ("mrr_10", "did you mean MRR@10 or RR@10"),
        ("ndcg_10", "did you mean ndcg_cut_10"),
        ("hits", "'hits' requires a cut-off, such as hits@10"),
        ("unj(rel=2)@5", "requires a cut-off of at least 1, such as unj@10"),
        ("Foo@10", "unknown measure 'Foo@10'; for example nDCG@10"),
        ("P_x", "'x' is not a valid parameter of P"),
        ("utility_1,2", "'1,2' is not a valid parameter of utility"),
        ("rbp_p=2", "'p=2' is not a valid parameter of rbp"),
        ("RR@0", "cut-off of at least 1, such as RR@10"),
        ("nDCG(x=1)@10", "is not a valid measure"),
        ("   ", "`measures` is empty"),
        ("SDCG@10", "'SDCG@10' is not a valid measure: invalid param max_rel is missing"),
        ("RBP(p=.8)", "a package that is not installed"),
        ("alpha_nDCG@10", "a package that is not installed"),
    ],
)
def test_unknown_names_and_parameters_are_rejected(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse_measures(text)
