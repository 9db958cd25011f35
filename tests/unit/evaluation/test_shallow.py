"""Measures that look further down than a run goes: one line says so, and only where it is so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drtk.cli.main import app
from drtk.evaluation import judged_runs as runs
from drtk.evaluation.curves import LossCurve
from drtk.evaluation.evaluate import Evaluation
from drtk.evaluation.measures import parse_measures
from drtk.evaluation.plots.report import draw_report
from drtk.evaluation.plots.runs import draw_curve
from tests.running import command, write


def run_of(depth: int, *queries: str) -> str:
    """A run of `depth` documents for each query: passages d0#0, d0#1, d1#0, …"""
    return "".join(f"{query} Q0 d{n // 2}#{n % 2} {n + 1} {depth - n} t\n" for query in queries for n in range(depth))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "qrels", "q1 0 d1#0 1\nq2 0 d2#0 1\n")
    write(tmp_path / "documents", "q1 0 d1 1\nq2 0 d2 1\n")
    write(tmp_path / "short.run", run_of(20, "q1", "q2"))
    write(tmp_path / "alike.run", run_of(20, "q1") + run_of(7, "q2") + run_of(200, "q3"))  # q3 is not judged
    write(tmp_path / "shorter.run", run_of(6, "q1", "q2"))
    write(tmp_path / "deep.run", run_of(100, "q1") + run_of(3, "q2"))
    return tmp_path


def said(capfd: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """What a command says on stderr about how much runs hold."""
    capfd.readouterr()
    app([*arguments], standalone_mode=False)
    return [line for line in capfd.readouterr().err.splitlines() if " at most " in line]


def test_eval_says_once_of_all_runs_of_one_depth_which_measures_look_deeper(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = said(capfd, "eval", "short.run", "alike.run", "deep.run", "shorter.run", "--qrels", "qrels")
    assert found == [
        "drtk: short, alike: hold at most 20 documents for a query with judgements; R@100 looks at 100",
        "drtk: shorter: holds at most 6 documents for a query with judgements; 5 measures look further, R@100 at 100",
    ]
    (line,) = said(capfd, "eval", "shorter.run", "--qrels", "qrels", "--measures", "nDCG@10 P_20 RR")
    assert line.endswith("; nDCG@10 looks at 10, P_20 at 20")


def test_nothing_is_said_where_nothing_can_lie_deeper(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole = ["--measures", "nDCG RR AP R@20 nDCG@20 Success@5 rbp num_q num_ret iprec_at_recall_0.50 SetF"]
    assert said(capfd, "eval", "short.run", "--qrels", "qrels", *whole) == []
    assert said(capfd, "eval", "short.run", "--qrels", "qrels", "-q") == []
    # a collection of 20 passages: no run could hold more
    rows = [{"_id": f"d{n // 2}#{n % 2}", "title": "", "text": "x"} for n in range(21)]
    write(here / "c.jsonl", "".join(json.dumps(row) + "\n" for row in rows[:20]))
    for call in (["eval", "short.run"], ["compare", "short.run", "alike.run"], ["report", "short.run", "-o", "r"]):
        assert said(capfd, *call, "--qrels", "qrels", "--corpus", "c.jsonl") == []
    write(here / "more.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert len(said(capfd, "eval", "short.run", "--qrels", "qrels", "--corpus", "more.jsonl")) == 1


def test_documents_are_counted_where_documents_are_scored(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # 20 passages are 10 documents, and of those a depth of 5 is looked at, which the user knows
    options = ["--qrels", "documents", "--by", "source", "--measures", "R@10 R@11"]
    (line,) = said(capfd, "eval", "short.run", *options, "--depth", "5")
    assert line.endswith("at most 10 documents for a query with judgements; R@11 looks at 11")


def test_compare_and_report_say_it_too(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    expected = "short, alike: hold at most 20 documents for a query with judgements; R@100 looks at 100"
    assert said(capfd, "compare", "short.run", "alike.run", "deep.run", "--qrels", "qrels") == [f"drtk: {expected}"]
    assert said(capfd, "report", "short.run", "alike.run", "--qrels", "qrels", "-o", "out") == [f"drtk: {expected}"]


def test_folders_of_collections_are_told_together(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in "abcde":
        (here / "data" / name / "qrels").mkdir(parents=True)
        write(here / "data" / name / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore\nq1\td1#0\t1\n")
        (here / "mine").mkdir(exist_ok=True)
        write(here / "mine" / f"{name}.run", run_of(20, "q1"))
    (line,) = said(capfd, "eval", "mine", "--qrels", "data")
    assert line.startswith("drtk: mine: a, mine: b, mine: c and 2 more: hold at most 20 documents")


def test_answers_are_looked_for_no_deeper_than_a_run_goes(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [{"_id": f"d{n // 2}#{n % 2}", "title": "", "text": "Paris"} for n in range(200)]
    write(here / "c.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write(here / "q.jsonl", "".join(f'{{"_id":"q{n}","text":"?","answers":["Paris"]}}\n' for n in (1, 2)))
    call = ["short.run", "deep.run", "--answers", "q.jsonl", "--corpus", "c.jsonl"]
    expected = "drtk: short: holds at most 20 documents for a query with answers; Answer@100 looks at 100"
    assert said(capfd, "eval", *call) == [expected]
    assert said(capfd, "compare", *call) == [expected]
    write(here / "c.jsonl", "".join(json.dumps(row) + "\n" for row in rows[:20]))  # no more than the runs hold
    call = ["short.run", "alike.run", "--answers", "q.jsonl", "--corpus", "c.jsonl"]
    assert said(capfd, "eval", *call) == said(capfd, "compare", *call) == []


def test_large_runs_that_are_read_in_blocks_are_as_deep(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "LARGE", 1)
    monkeypatch.setattr(runs, "evaluated", None)  # not read line by line
    (line,) = said(capfd, "eval", "alike.run", "deep.run", "--qrels", "qrels")
    assert line == "drtk: alike: holds at most 20 documents for a query with judgements; R@100 looks at 100"


@pytest.mark.parametrize(
    ("name", "cutoff"),
    [
        ("nDCG@10", 10), ("nDCG(dcg='exp-log2')@7", 7), ("ndcg_cut_5", 5), ("RR@3", 3), ("RR", None), ("P.15", 15),
        ("R(rel=2)@50", 50), ("recall_100", 100), ("Success@5", 5), ("AP@1000", 1000), ("map", None), ("unj_10", 10),
        ("relative_P_5", 5), ("ERR@20", 20), ("Judged@10", 10),
        ("iprec_at_recall_0.10", None), ("IPrec@0.1", None), ("SetF", None), ("num_q", None), ("gm_map", None),
    ],
)  # fmt: skip
def test_how_far_down_a_measure_looks(name: str, cutoff: int | None) -> None:
    (measure,) = parse_measures(name)
    assert measure.cutoff == cutoff


def lines(axis: Any) -> list[tuple[str, list[int]]]:
    return [(line.get_linestyle(), list(line.get_xdata())) for line in axis.lines]


def test_recall_beyond_what_a_run_holds_is_dotted(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    axis = pytest.importorskip("matplotlib.figure").Figure().subplots()
    draw_curve(axis, (1, 2, 5, 10), (0.1, 0.2, 0.3, 0.3), 7, marker="o")
    draw_curve(axis, (1, 2, 5, 10), (0.1, 0.2, 0.3, 0.3), 10, marker="o")
    assert lines(axis) == [("-", [1, 2, 5]), (":", [5, 10]), ("-", [1, 2, 5, 10])]
    text = command(capfd, "plot", "-q", "recall", "short.run", "deep.run", "--qrels", "qrels", "--format", "json")
    assert json.loads(text)["deepest"] == {"short": 20, "deep": 100}
    for shown, dotted in ((["short.run", "deep.run"], True), (["deep.run"], False)):
        text = command(capfd, "plot", "-q", "recall", *shown, "--qrels", "qrels", "--format", "svg")
        assert ("dotted: more than a run holds" in text) == dotted


def test_the_picture_of_a_report_dots_it_too_and_has_whole_steps(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    drawn: list[Any] = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, path: drawn.append(figure))
    results = [Evaluation("a", {}, {"RR": 0.5}, 20), Evaluation("b", {}, {"RR": 0.4}, 100)]
    recall = {"a": [0.1, 0.2, 0.2], "b": [0.1, 0.3, 0.4]}
    loss = LossCurve([1, 2, 3], [3.0, 2.0, 1.0])
    draw_report(here / "x", title="t", results=results, measures=["RR"], depths=[1, 20, 100], recall=recall, loss=loss)
    drawn[0].canvas.draw()
    _, curves, steps = drawn[0].axes
    assert lines(curves) == [("-", [1, 20]), (":", [20, 100]), ("-", [1, 20, 100])]
    assert [tick for tick in steps.get_xticks() if 0 <= tick <= 3] == [0, 1, 2, 3]
