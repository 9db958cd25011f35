"""A better ranking never lowers a measure, and broken ties keep the order of a ranking."""

from hypothesis import given, settings
from hypothesis import strategies as st

from drtk.data.trec import QueryHits
from drtk.evaluation.evaluate import Evaluator
from drtk.evaluation.measures import parse_measures
from drtk.retrieval.fusion import break_ties

DOCUMENTS = [f"d{at}" for at in range(12)]
rankings = st.lists(st.sampled_from(DOCUMENTS), unique=True)
judgments = st.dictionaries(st.sampled_from(DOCUMENTS), st.integers(-1, 4), min_size=1)
MEASURES = parse_measures(
    "nDCG@5 nDCG nDCG(dcg='exp-log2')@5 RR RR@3 R@5 P@5 AP AP@5 Success@3 Rprec Bpref IPrec@0.3 11pt_avg rbp rbp_resid unj_5"
)


def evaluate(ranking: list[str], grades: dict[str, int]) -> dict[str, float]:
    result = Evaluator({"q": grades}, MEASURES)("run", {"q": ranking})
    return {name: float(value) for name, value in result.overall.items()}


@settings(max_examples=60, deadline=None)
@given(ranking=rankings, grades=judgments, at=st.integers(0, 10))
def test_swapping_in_a_better_document_never_lowers_a_measure(ranking, grades, at):
    if at + 1 >= len(ranking) or grades.get(ranking[at], 0) >= grades.get(ranking[at + 1], 0):
        return
    better = [*ranking[:at], ranking[at + 1], ranking[at], *ranking[at + 2 :]]
    before, after = evaluate(ranking, grades), evaluate(better, grades)
    for name in before:
        if name not in ("rbp_resid", "unj_5", "Bpref"):  # these count unjudged documents, or judged ones only
            assert after[name] >= before[name] - 1e-9, name


@given(st.dictionaries(st.text("abc", min_size=1), st.floats(-1e30, 1e30, allow_subnormal=False), max_size=20))
def test_scores_with_broken_ties_keep_the_order_when_sorted_again(scores):
    scored = list(scores.items())
    falling = break_ties(scored)
    sorted_again = QueryHits("q", [id for id, _ in falling][::-1], [score for _, score in falling][::-1]).to_ranking()
    assert sorted_again == falling
    before = QueryHits("q", [id for id, _ in scored], [score for _, score in scored]).to_ranked_ids()
    assert [id for id, _ in falling] == before
