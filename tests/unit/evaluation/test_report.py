"""Reports: what is claimed follows from the numbers, and the files say the same as the terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from drtk.errors import DrtkError, RecordError, UsageError
from drtk.evaluation.compare import compare_with_first
from drtk.evaluation.config import CompareSettings
from drtk.evaluation.curves import Curve, choose_depths, compute_recall_curve, describe_loss, read_curves
from drtk.evaluation.evaluate import Evaluation, Evaluator
from drtk.evaluation.measures import parse_measures
from drtk.evaluation.report import (
    choose_queries,
    describe_test,
    find_leaders,
    measure_overlap,
)
from tests.run_commands import run_command, write_text

JUDGMENTS = {f"q{query}": {f"d{query}": 1} for query in range(4)}


def evaluate_system(name: str, *places: int) -> Evaluation:
    """A system that has the right document of query i at rank places[i] (0: not at all)."""
    rankings = {
        f"q{query}": [*(f"x{at}" for at in range(place - 1)), f"d{query}"] if place else ["x"]
        for query, place in enumerate(places)
    }
    return Evaluator(JUDGMENTS, parse_measures("RR R@1"))(name, rankings)


def test_every_run_is_compared_with_the_first() -> None:
    results = [evaluate_system(*item) for item in (("one", 1, 2, 4, 0), ("dense", 2, 2, 2, 0), ("fused", 1, 1, 1, 1))]
    tests = compare_with_first(results, parse_measures("RR R@1"), JUDGMENTS, CompareSettings())
    assert [(test.system, test.baseline, test.measure) for test in tests] == [
        ("dense", "one", "RR"), ("fused", "one", "RR"), ("dense", "one", "R@1"), ("fused", "one", "R@1")
    ]  # fmt: skip
    # RR: one 1 1/2 1/4 0, dense 1/2 1/2 1/2 0: +1/4 and -1/2
    sentence = describe_test(tests[0], (0.375, 0.4375))
    assert sentence.startswith("dense does not differ significantly from one on RR: 0.3750 against 0.4375 (-0.0625; p")
    assert sentence.endswith("better on 1 of 4 queries, worse on 1, equal on 2.")


def test_report_corrects_p_values_and_names_the_best_system() -> None:
    # six of six queries better: p = 2 / 2^6 = .03125 in the randomization test, and twice that for two comparisons
    judgments = {f"q{query}": {f"d{query}": 1} for query in range(6)}
    measures = parse_measures("R@1")

    def evaluate(name: str, hits: int) -> Evaluation:
        rankings = {f"q{query}": [f"d{query}" if query < hits else "x"] for query in range(6)}
        return Evaluator(judgments, measures)(name, rankings)

    for others, verb in ((["b"], "is significantly better than"), (["b", "c"], "does not differ significantly from")):
        results = [evaluate("a", 0), *(evaluate(name, 6) for name in others)]
        tests = compare_with_first(results, measures, judgments, CompareSettings())
        assert [test.randomisation_p_corrected for test in tests] == [0.03125 * len(others)] * len(others)
        assert f"b {verb} a on R@1: 1.0000 against 0.0000" in describe_test(tests[0], (1.0, 0.0))
    first, tied, better = (evaluate_system(*item) for item in (("a", 1, 0, 0, 0), ("b", 0, 1, 0, 0), ("b", 1, 2, 0, 0)))
    assert find_leaders([first, tied], ["RR"]) == []
    assert find_leaders([first, better], ["RR", "R@1"]) == ["b is best on RR."]


def test_overlap_counts_relevant_documents_of_runs_and_fusion() -> None:
    judgments = {"q": {"both": 1, "first": 1, "second": 1, "neither": 1, "none": 0}}
    rankings = {"a": {"q": ["both", "first"]}, "b": {"q": ["both", "second"]}, "f": {"q": ["both", "second", "first"]}}
    result = measure_overlap(("a", "b"), "f", rankings, judgments, depth=2)
    assert result.relevant == {"both": 1, "first": 1, "second": 1, "neither": 1}
    assert result.kept == {"both": 1, "first": 0, "second": 1, "neither": 0}
    assert result.shared == 1 / 2
    assert "keeps 1 of the 2 found by one run and 1 of those found by both; 1 fall below rank 2" in result.describe()


def test_recall_is_averaged_over_all_judged_queries() -> None:
    # q0 has its two relevant at ranks 1 and 3; q1 is not in the run
    judgments = {"q0": {"a": 1, "b": 2, "c": 0}, "q1": {"a": 1}}
    assert compute_recall_curve({"q0": ["a", "c", "b"]}, judgments, [1, 2, 3]) == [1 / 4, 1 / 4, 1 / 2]
    assert compute_recall_curve({"q0": ["a", "c", "b"]}, judgments, [3], rel=2) == [1 / 2]
    assert compute_recall_curve({"q0": ["c", "a", "b"]}, judgments, [1, 2, 3], hit_rate=True) == [0, 1 / 2, 1 / 2]
    assert choose_depths([{"q": ["d"]}])[-1] == 100
    assert choose_depths([{"q": [str(at) for at in range(350)]}])[-1] == 300


def test_loss_trend_is_read_from_a_log(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 20.0 - step} for step in range(20)] + [{"step": 20, "seconds": 3}]
    log = write_text(tmp_path / "log.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    curve = read_curves(str(log), field="loss")["loss"]
    assert (curve.steps[-1], curve.first, curve.last) == (19, 18.0, 3.0)  # of five entries each
    assert Curve([1], [3.0]).first == Curve([1], [3.0]).last == 3.0
    for text, fault, problem in (
        (
            '{"step": "one", "loss": 1}\n',
            RecordError,
            r"log\.jsonl:1: expected an integer 'step' and a number as 'loss'",
        ),
        ("{}\n", DrtkError, "no field loss"),
        ("nonsense\n", RecordError, r"log\.jsonl:1: expected a JSON object"),
    ):
        with pytest.raises(fault, match=problem):
            read_curves(str(write_text(log, text)), field="loss")
    steps = list(range(1, 11))
    assert describe_loss(Curve(steps, [2.0] * 5 + [1.0] * 5)) == "The training loss fell from 2 to 1 in 10 steps."
    assert "did not fall: from 1 to 2" in describe_loss(Curve(steps, [1.0] * 5 + [2.0] * 5))
    assert "has 3 losses in 12 steps, too few" in describe_loss(Curve([5, 10, 12], [0.4, 0.4, 0.7]))


def test_example_queries_show_both_sides() -> None:
    first = {"q0": ["d0"], "q1": ["x", "d1"], "q2": ["x"], "q3": ["d3"]}
    second = {"q0": ["x", "d0"], "q1": ["d1"], "q2": ["d2"], "q3": ["d3"]}
    # the second is better on q2 (by 1) and q1 (by 1/2), the first on q0, both alike on q3
    chosen = choose_queries(first, second, JUDGMENTS, 4)
    assert chosen == [("q2", "second"), ("q0", "first"), ("q3", "alike"), ("q1", "second")]
    assert choose_queries(first, second, JUDGMENTS, 2) == chosen[:2]
    assert len(choose_queries(first, second, JUDGMENTS, 10)) == 4


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four queries over six documents of two chunks; `trained` is right at once, bm25 three times in four."""

    def run(name: str, *tops: str) -> None:
        lines = [
            f"q{query} Q0 {id}#{query % 2} {rank} {9 - rank} t\n"
            for query, top in enumerate(tops)
            for rank, id in enumerate(dict.fromkeys([top, "d5", f"d{query}"]), start=1)
        ]
        write_text(tmp_path / f"{name}.run", "".join(lines))

    run("bm25", "d0", "d1", "d2", "d4")
    run("trained", "d0", "d1", "d2", "d3")
    passages = [
        {"_id": f"d{doc}#{at}", "title": f"Title {doc}", "text": f"words of document {doc}, part {at}"}
        for doc in range(6)
        for at in range(2)
    ]
    write_text(tmp_path / "corpus.jsonl", "".join(json.dumps(row) + "\n" for row in passages))
    questions = [{"_id": f"q{query}", "text": f"which document is {query}?"} for query in range(4)]
    write_text(tmp_path / "queries.jsonl", "".join(json.dumps(row) + "\n" for row in questions))
    write_text(tmp_path / "test.tsv", "".join(f"q{query}\td{query}\t1\n" for query in range(4)))
    write_text(tmp_path / "log.jsonl", "".join(json.dumps({"step": at, "loss": 3 / at}) + "\n" for at in range(1, 30)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


REPORT = ["report", "bm25=bm25.run", "trained=trained.run", "--qrels", "test.tsv", "--by", "source", "-o", "out"]
TEXTS = ["--corpus", "corpus.jsonl", "--queries", "queries.jsonl", "--log", "log.jsonl"]


def test_report_files_and_terminal_output_agree(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    printed = run_command(capfd, *REPORT, *TEXTS, "--examples", "1")
    content = json.loads((folder / "out" / "report.json").read_text())
    # bm25 has the right document at rank 3 for q3: RR (1 + 1 + 1 + 1/3)/4
    assert content["systems"]["bm25"]["RR@10"] == pytest.approx((3 + 1 / 3) / 4)
    assert content["systems"]["trained"]["RR@10"] == 1
    assert (content["queries"], content["relevant"]) == (4, 4)
    assert content["recall"]["bm25"][0] == 3 / 4
    (compared, *_) = content["verdict"]["comparisons"]
    assert (compared["system"], compared["baseline"], compared["measure"]) == ("trained", "bm25", "nDCG@10")
    assert compared["significant"] is False  # one query of four differs
    assert content["loss"]["steps"] == list(range(1, 30))
    markdown = (folder / "out" / "report.md").read_text()
    assert "| trained | **1.0000** |" in markdown
    assert "(report.png)" in markdown
    folded = " ".join(printed.split())
    for sentence in content["verdict"]["text"]:
        assert f"- {sentence}" in markdown
        assert sentence in folded
    (example,) = content["examples"]
    assert (example["query_id"], example["why"]) == ("q3", "second")
    bm25, trained = example["hits"]
    assert (bm25["id"], bm25["title"], bm25["relevant"], bm25["rank"]) == ("d4#1", "Title 4", False, 3)
    assert (trained["id"], trained["relevant"], trained["rank"]) == ("d3#1", True, 1)
    assert "which document is 3? (trained is better)" in printed
    assert "Title 4 (first relevant document at rank 3)" in printed
    assert "words of document 3, part 1" in printed
    picture = (folder / "out" / "report.png").read_bytes()
    width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == (1944, 600)  # three panels of 5.4 inches, 120 dots per inch


def test_report_without_matplotlib_has_no_plot(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from drtk.cli.main import app

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    app([*REPORT, *TEXTS], standalone_mode=False)
    said = capfd.readouterr().err
    assert "report.png was not drawn" in said
    assert "pip install matplotlib" in said
    assert not (folder / "out" / "report.png").exists()
    assert "report.png" not in (folder / "out" / "report.md").read_text()
    assert (folder / "out" / "meta.json").exists()


def test_report_explains_a_fusion_by_overlap(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_command(capfd, "fuse", "-q", "bm25.run", "trained.run", "-o", "fused.run")
    printed = run_command(capfd, *REPORT[:3], "fused=fused.run", *REPORT[3:])
    verdict = json.loads((folder / "out" / "report.json").read_text())["verdict"]
    assert verdict["overlap"]["relevant"] == {"both": 4, "first": 0, "second": 0, "neither": 0}
    assert verdict["overlap"]["kept"]["both"] == 4
    compared = [(item["system"], item["baseline"]) for item in verdict["comparisons"] if item["measure"] == "nDCG@10"]
    assert compared == [("trained", "bm25"), ("fused", "bm25")]
    assert "Of 4 relevant documents, 4 are in the top 100 of both" in " ".join(printed.split())


def test_wrong_usage_is_rejected(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_command(capfd, *REPORT)  # texts are not needed
    picture = (folder / "out" / "report.png").read_bytes()
    assert int.from_bytes(picture[16:20], "big") == 1296  # no loss, no panel
    assert json.loads((folder / "out" / "report.json").read_text())["examples"] == []
    with pytest.raises(UsageError, match="no system is called 'x'; choose from bm25, trained"):
        run_command(capfd, *REPORT, *TEXTS, "--show", "x", "--force")
    with pytest.raises(UsageError, match="num_ret is not a mean over queries"):
        run_command(capfd, *REPORT, "--measures", "num_ret", "--force")
