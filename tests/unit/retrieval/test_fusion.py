"""Fusion: published known answers, ties, and the command."""

import itertools
import json
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from drtk.cli.main import app
from drtk.data.trec import Ranking, format_run_lines, load_run
from drtk.errors import UsageError
from drtk.retrieval.config import FuseSettings
from drtk.retrieval.fusion import FUSIONS, append_unscored, break_ties, fuse, parse_weights
from tests.run_commands import run_command

BM25 = [("p1", 12.0), ("p2", 10.0), ("p3", 9.0)]
DENSE = [("p3", 80.0), ("p1", 78.0), ("p4", 77.0)]


def make_ranking(text: str) -> Ranking:
    return [(id, -float(rank)) for rank, id in enumerate(text.split())]


def run_fusion(rankings: list[Ranking], weights: list[float] | None = None, **settings: object) -> Ranking:
    chosen = replace(FuseSettings(), **settings)  # type: ignore[arg-type]
    return fuse(rankings, weights or [1.0] * len(rankings), chosen, FUSIONS.load(chosen.method))


def test_reciprocal_rank_fusion_of_two_short_lists():
    # p1 1/61 + 1/62, p3 1/63 + 1/61, p2 1/62, p4 1/63
    actual = run_fusion([BM25, DENSE], method="rrf")
    assert [id for id, _ in actual] == ["p1", "p3", "p2", "p4"]
    assert [score for _, score in actual] == pytest.approx([0.032522, 0.032266, 0.016129, 0.015873], abs=2e-6)
    # weights 2 and 1, k = 0: p1 2/1 + 1/2, p3 2/3 + 1/1, p2 2/2, p4 1/3
    actual = run_fusion([BM25, DENSE], [2, 1], method="rrf", rrf_k=0)
    assert actual == [("p1", 2.5), ("p3", pytest.approx(5 / 3)), ("p2", 1.0), ("p4", pytest.approx(1 / 3))]


def test_linear_fusion_takes_a_lists_minimum_for_a_missing_score():
    # p1 12 + 1.1 * 78, p3 9 + 1.1 * 80, p2 10 + 1.1 * 77, p4 9 + 1.1 * 77
    actual = run_fusion([BM25, DENSE], [1, 1.1], method="linear")
    assert [id for id, _ in actual] == ["p1", "p3", "p2", "p4"]
    assert [score for _, score in actual] == pytest.approx([97.8, 97.0, 94.7, 93.7])


def test_runs_of_index_shards_become_the_run_of_the_whole_index():
    whole = [("p5", 9.0), ("p2", 7.0), ("p4", 3.0), ("p1", 2.0), ("p3", -1.0)]
    shards = [[hit for hit in whole if hit[0] in ids] for ids in (("p1", "p2"), ("p3", "p4", "p5"))]
    assert run_fusion(shards, method="max") == whole
    assert run_fusion([[("p1", 1.0)], [("p1", 2.0)], [("p1", -3.0)]], method="max") == [("p1", 2.0)]


def test_minmax_and_zscore_bring_lists_to_one_scale():
    # minmax: p1 1 + 1/3, p2 1/3 + 0, p3 0 + 1, p4 0 + 0
    actual = dict(run_fusion([BM25, DENSE], method="weighted"))
    assert actual == pytest.approx({"p1": 4 / 3, "p2": 1 / 3, "p3": 1.0, "p4": 0.0})
    # zscore of 2, 0: mean 1, deviation 1; the missing b of the second list counts as its lowest, a's 0
    actual = dict(run_fusion([[("a", 2.0), ("b", 0.0)], [("a", 5.0)]], method="zscore"))
    assert actual == pytest.approx({"a": 1.0, "b": -1.0})


def test_an_ensemble_is_the_sum_of_z_normalized_scores():
    # 6 2 1: mean 3, deviation 2.160247; 20 10 0: mean 10, deviation 8.164966
    one, two = [("c", 6.0), ("b", 2.0), ("a", 1.0)], [("b", 20.0), ("a", 10.0), ("c", 0.0)]
    sums = {"a": -0.925820, "b": 0.761835, "c": 0.163985}
    assert dict(run_fusion([one, two], method="zscore")) == pytest.approx(sums, abs=2e-6)


@pytest.mark.parametrize("options", [{"method": "zscore"}, {"method": "weighted"}])
def test_documents_that_were_not_reranked_do_not_change_an_ensemble(options):
    # 10 9 0: mean 6.333, deviation 4.497: a .815, b .593, c -1.408; .9 .5 .1: b 1.225, c 0, a -1.225. Sums: b 1.818, a -.409,
    # c -1.408. minmax: b .9 + 1, a 1 + 0, c 0 + .5. Counting down from 0 for long, the first run's 10 would outdo all else: a.
    one, two = [("a", 10.0), ("b", 9.0), ("c", 0.0)], [("b", 0.9), ("c", 0.5), ("a", 0.1)]
    settings = FuseSettings(**options)  # type: ignore[arg-type]
    method = FUSIONS.load(settings.method)
    alone = fuse([one, two], [1.0, 1.0], settings, method)
    assert [id for id, _ in alone] == ["b", "a", "c"]
    for length in (0, 1, 7, 400):
        rest = [f"t{at}" for at in range(length)]
        runs = [append_unscored(one, rest), append_unscored(two, reversed(rest))]
        actual = fuse(runs, [1.0, 1.0], settings, method, scored_depths=[3, 3])
        assert actual[:3] == alone
        assert [id for id, _ in actual[3:]] == rest
        top = fuse(runs, [1.0, 1.0], replace(settings, top=5), method, scored_depths=[3, 3])
        assert top == actual[:5]
        assert all(before > after for (_, before), (_, after) in itertools.pairwise(actual))
    assert fuse(runs, [1.0, 1.0], settings, method)[0][0] == "a"  # what is to be avoided
    # scored to rank 1 and 3: b and c count as if the first run lacked them, with the least of what it has scored, a's own
    assert [id for id, _ in fuse([one, two], [1.0, 1.0], settings, method, scored_depths=[1, None])] == ["b", "c", "a"]


def test_round_robin_visits_the_lists_in_their_order():
    sentence, answer, title = make_ranking("p1 p2 p3 p4"), make_ranking("p2 p5 p1 p6"), make_ranking("p7 p1 p8 p9")
    actual = run_fusion([sentence, answer, title], method="round-robin", top=6)
    assert [id for id, _ in actual] == ["p1", "p2", "p7", "p5", "p3", "p8"]
    assert [score for _, score in actual] == pytest.approx([1 / rank for rank in range(1, 7)])
    lists = [make_ranking(" ".join(f"{letter}{rank}" for rank in range(1, 101))) for letter in "sat"]
    ids = [id for id, _ in run_fusion(lists, method="round-robin", top=100)]
    assert [sum(id[0] == letter for id in ids) for letter in "sat"] == [34, 33, 33]


@pytest.mark.parametrize("score", [1.0, 0.0, -1.0, 1e-40, 3e38])
def test_ties_are_ordered_by_descending_id_and_scores_decrease_in_single_precision(score):
    actual = break_ties([(f"d{at}", score * (1 + at * 1e-12)) for at in range(5)])
    single = array("f", [value for _, value in actual])
    assert all(before > after for before, after in itertools.pairwise(single))
    assert [id for id, _ in actual] == ["d4", "d3", "d2", "d1", "d0"]
    tied = run_fusion([make_ranking("p q"), make_ranking("q p")], method="rrf")  # 1/61 + 1/62 each
    assert [id for id, _ in tied] == ["q", "p"]


def test_every_method_keeps_the_order_of_a_single_list():
    for method in FUSIONS:
        assert run_fusion([[], []], method=method) == []
        for lists in ([BM25], [[], BM25]):
            assert [id for id, _ in run_fusion(lists, method=method)] == ["p1", "p2", "p3"]
    assert [id for id, _ in run_fusion([BM25, DENSE], method="rrf", depth=1)] == ["p3", "p1"]
    assert len(run_fusion([BM25, DENSE], method="rrf", top=3)) == 3


def test_weights_are_checked():
    assert parse_weights("", 3) == [1, 1, 1]
    assert parse_weights("1,1.1", 2) == [1, 1.1]
    for text in ("1", "1,x", "1,inf"):
        with pytest.raises(UsageError):
            parse_weights(text, 2)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, ranking, queries in (("bm25.run", BM25, "qb"), ("dense.run", DENSE, "dq")):
        (tmp_path / name).write_bytes(b"".join(format_run_lines(query, ranking) for query in queries))
    (tmp_path / "dev.tsv").write_text("q\tp3\t1\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_sweep_finds_and_reports_the_best_weights(runs, capfd):
    # only with most weight on the dense run is p3 first: minmax p1 w + (1 - w)/3, p3 1 - w; p3 leads where w < 2/5
    options = ["--method", "weighted", "--sweep", "--qrels", "dev.tsv", "--set", "step=0.25", "--measure", "RR"]
    app(["fuse", "bm25.run", "dense.run", *options, "-o", "out.run"], standalone_mode=False)
    assert "best weights 0.25,0.75: RR 1.0000" in capfd.readouterr().err
    assert load_run("out.run")["q"][0][0] == "p3"
    counts = json.loads((runs / "out.run.meta.json").read_text())["counts"]
    assert (counts["weights"], counts["best"]) == ([0.25, 0.75], 1.0)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["round-robin", "--weights", "1,2"], "--weights has no effect with --method round-robin"),
        (["linear", "--rrf-k", "5"], "--rrf-k has no effect with --method linear"),
        (["rrf", "--measure", "RR@10"], "--measure requires --sweep"),
        (["rrf", "--qrels", "dev.tsv"], "--qrels requires --sweep"),
        (["rrf", "--set", "tag="], "--set tag: '' must be one word"),
        (["rrf", "--set", "tag=a b"], "--set tag: 'a b' must be one word"),
        (["rrf", "--sweep"], "requires --qrels"),
        (["rrf", "--sweep", "--qrels", "other.tsv"], r"judgments in other\.tsv \(runs: 'q', judgments: 'x'\); pass"),
    ],
)
def test_wrong_usage_is_rejected(runs, capfd, given, problem):
    (runs / "other.tsv").write_text("x\tp3\t1\n")
    with pytest.raises(UsageError, match=problem):
        run_command(capfd, "fuse", "bm25.run", "dense.run", "--method", *given)


def test_the_command_writes_a_run_of_all_queries(runs, capfd):
    printed = run_command(capfd, "fuse", "-q", "bm25.run", "dense.run", "--set", "tag=both")
    assert [line.split()[0] for line in printed.splitlines()] == ["q"] * 4 + ["b"] * 3 + ["d"] * 3
    first = printed.splitlines()[0].split()
    assert (first[1:4], first[5]) == (["Q0", "p1", "1"], "both")
    assert float(first[4]) == pytest.approx(1 / 61 + 1 / 62)


@pytest.mark.parametrize("names", [("bm25.run", "empty.run"), ("empty.run", "bm25.run")])
def test_an_empty_run_is_warned_about(runs, capfd, names):
    (runs / "empty.run").write_text("")
    app(["fuse", *names, "-q"], standalone_mode=False)
    printed = capfd.readouterr()
    assert printed.out
    assert printed.err == "drtk: empty.run: the run is empty\n"
