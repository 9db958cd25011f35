"""Reading a run in blocks gives the ranks and errors of reading it line by line."""

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drtk.data import run_blocks
from drtk.data.run_blocks import UnsupportedRunError, iter_judged_documents
from drtk.data.runs import NamedRun
from drtk.data.trec import load_hits
from drtk.errors import DrtkError
from drtk.evaluation import judged_runs as runs
from drtk.evaluation.evaluate import Evaluator, RankingBuilder
from drtk.evaluation.measures import parse_measures
from drtk.evaluation.metrics import JudgedRanks
from drtk.runtime.inputs import InputTracker

LONG_ID = "a-long-id-of-more-than-sixteen-letters"
DOCS = ["d1", "d2", "d10", LONG_ID, LONG_ID[:-1] + "z", "x" * 8, "x" * 9]
QUERIES = ["1", "q2", "a-query-with-a-long-name-01", "a-query-with-a-long-name-02"]
JUDGMENTS = {"1": {"d1": 1, "d10": 0}, "q2": {DOCS[3]: 2, "d2": -1}, QUERIES[2]: {"x" * 8: 1}, "absent": {"d1": 1}}
TEXTS = "1 2.5 0.30000001 0.3 0.30000002 -1 1e-3 12.345678329467773 7. .5 100000".split()
SCORES = st.sampled_from(TEXTS) | st.floats(-100, 100, allow_nan=False).map(repr)
LINE = st.tuples(st.sampled_from(QUERIES), st.sampled_from(DOCS), SCORES, st.sampled_from([" ", "\t"]))
LINES = st.lists(LINE, min_size=1, max_size=24, unique_by=lambda line: line[:2])
FAULTS = st.sampled_from(
    ["", "q2 Q0 d1 1 high t\n", "q2 Q0 d1\n", "q2 Q0 d1 x 1 t\n", "q2 Q0 d1 1 nan t\n", "q2 Q0 d\u00e91 1 1 t\n", "\n",
     "q2 Q0 d1 1 1_0 t\n", "q2  Q0 d1 1 1 t\n", "q2 Q0 d1 1 1 t more\n", "q2 Q0 d1 1 1 t\r\n", "q2 Q0 d1 1 1 \0\n"]
)  # fmt: skip


def write_run(folder: Path, lines: list[tuple[str, str, str, str]], *, together: bool, end: str = "\n") -> Path:
    rows = sorted(lines, key=lambda row: QUERIES.index(row[0])) if together else lines
    text = "\n".join(gap.join([q, "Q0", d, str(n), s, "tag"]) for n, (q, d, s, gap) in enumerate(rows, start=1)) + end
    path = folder / "x.run"
    path.write_text(text, encoding="utf-8")
    return path


def read_by_lines(path: Path) -> dict[str, tuple[list[tuple[int, str]], int]]:
    ranks = {}
    for query, hits in load_hits(str(path), only=JUDGMENTS).items():
        ids = hits.to_ranked_ids()
        kept_ids = {*JUDGMENTS[query], query}
        ranks[query] = ([(rank, id) for rank, id in enumerate(ids, start=1) if id in kept_ids], len(ids))
    return ranks


def read_by_blocks(path: Path) -> dict[str, tuple[list[tuple[int, str]], int]]:
    places = iter_judged_documents(str(path), JUDGMENTS, InputTracker())
    return {p.query_id: ([(rank, id) for id, rank in p.ranks.items()], p.length) for p in places if p is not None}


COMMON = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@COMMON
@given(LINES, st.sampled_from(["\n", ""]), st.sampled_from([64, 200, 1 << 22]))
def test_blocks_give_the_ranks_of_lines(tmp_path, lines, end, size):
    path = write_run(tmp_path, lines, together=True, end=end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_blocks, "BLOCK", size)
        assert read_by_blocks(path) == read_by_lines(path)


@COMMON
@given(LINES)
def test_queries_with_separated_lines_are_rejected(tmp_path, lines):
    path = write_run(tmp_path, lines, together=False)
    order = [q for at, (q, *_) in enumerate(lines) if at == 0 or lines[at - 1][0] != q]
    if len(order) == len(set(order)):
        assert read_by_blocks(path) == read_by_lines(path)
    else:
        with pytest.raises(UnsupportedRunError):
            read_by_blocks(path)


@COMMON
@given(LINES, FAULTS, st.integers(0, 24), st.booleans())
def test_values_and_errors_are_equal_for_blocks_and_lines(tmp_path, lines, fault, at, compressed):
    path = write_run(tmp_path, lines, together=True)
    rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
    rows.insert(min(at, len(rows)), fault)
    data = "".join(rows).encode()
    path.write_bytes(gzip.compress(data) if compressed else data)
    measures = parse_measures("nDCG@10 RR@2 R@3 Success@1 P_5 map num_ret recip_rank unj_5")
    evaluator, builder = Evaluator(JUDGMENTS, measures), RankingBuilder(drop_same_id=True, depth=7)

    def outcome(large: int) -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runs, "MIN_BLOCK_BYTES", large)
            try:
                scored = runs.evaluate_run(NamedRun("x", str(path)), evaluator, builder, InputTracker())
            except DrtkError as error:
                return type(error), str(error)
            return scored.per_query, scored.overall

    assert outcome(0) == outcome(1 << 40)


def test_repeated_documents_and_hash_collisions_are_not_read_by_blocks(tmp_path, monkeypatch):
    path = tmp_path / "x.run"
    for second_id in ("d1", "d2"):
        path.write_text(f"1 Q0 d1 1 2 t\n1 Q0 {second_id} 2 1 t\n")
        with pytest.raises(UnsupportedRunError):
            read_by_blocks(path)
        monkeypatch.setattr(
            run_blocks.ByteWords, "compute_hashes", lambda _, starts, ends: (ends - starts).astype("u8")
        )


RANKINGS = st.lists(st.tuples(st.integers(0, 9), st.integers(-1, 4)), max_size=8, unique_by=lambda item: item[0])


@given(RANKINGS, st.integers(0, 14), st.integers(1, 3), st.integers(1, 12), st.lists(st.integers(-1, 4), max_size=4))
def test_values_equal_those_of_pytrec_eval(judged, length, rel, cutoff, missed):
    import pytrec_eval

    known = {f"d{place}": grade for place, grade in judged} | {f"m{n}": grade for n, grade in enumerate(missed)}
    if not any(grade >= 0 for grade in known.values()):
        return  # pytrec_eval does not terminate for these
    docs = [f"d{place}" if place < 10 else f"u{place}" for place in range(length)]
    keys = [f"{family}_{cutoff}" for family in ("ndcg_cut", "recall", "P", "success", "map_cut")]
    keys += ["ndcg", "map", "recip_rank", "Rprec", "num_ret", "num_rel_ret"]
    ranks = [rank for rank, id in enumerate(docs, start=1) if id in known]
    judged_ranks = JudgedRanks(ranks, [known[docs[rank - 1]] for rank in ranks], length)
    measures = {measure.key: measure for measure in parse_measures(" ".join(keys), rel=rel)}
    computed = Evaluator({"q": known}, measures.values()).evaluate_judged_ranks("x", {"q": judged_ranks}).per_query["q"]
    ours = {key: computed[measure.name] for key, measure in measures.items()}
    run = {"q": {id: float(length - at) for at, id in enumerate(docs)}}
    engine = pytrec_eval.RelevanceEvaluator({"q": known}, set(keys), relevance_level=rel)
    theirs = engine.evaluate(run)["q"] if docs else dict.fromkeys(keys, 0.0)
    assert ours == {key: pytest.approx(theirs[key], abs=1e-12) for key in keys}


def test_cut_a_ranking_or_remove_a_document():
    judged_ranks = JudgedRanks([2, 5, 9], [1, 0, 3], 12)
    assert judged_ranks.truncate(5) == JudgedRanks([2, 5], [1, 0], 5)
    assert judged_ranks.truncate(20) is judged_ranks
    assert judged_ranks.remove(5) == JudgedRanks([2, 8], [1, 3], 11)
    assert judged_ranks.remove(1) == JudgedRanks([1, 4, 8], [1, 0, 3], 11)
