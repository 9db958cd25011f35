"""drtk report: recall and overlap by hand-computed values; files and terminal output agree with the comparison."""

import json
import re
import sys
from pathlib import Path

import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, RecordError, UsageError
from drtk.evaluation.curves import Curve, choose_depths, compute_recall_curve, describe_loss, read_curves
from tests.expansion_collection import write_rows
from tests.run_commands import Capture, run_command, write_text


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
    curve = read_curves(str(write_rows(tmp_path / "log.jsonl", rows)), field="loss")["loss"]
    assert curve.steps[-1] == 19
    assert describe_loss(curve) == "The training loss fell from 18 to 3 in 19 steps."  # means of five losses each
    line = r"log\.jsonl:1: expected "
    for text, fault, problem in (
        ('{"step": "one", "loss": 1}', RecordError, line + "an integer 'step' and a number as 'loss'"),
        ("{}", DrtkError, "no field loss"),
        ("nonsense", RecordError, line + "a JSON object"),
    ):
        with pytest.raises(fault, match=problem):
            read_curves(str(write_text(tmp_path / "log.jsonl", text)), field="loss")
    steps = list(range(1, 11))
    assert describe_loss(Curve(steps, [2.0] * 5 + [1.0] * 5)) == "The training loss fell from 2 to 1 in 10 steps."
    assert "did not fall: from 1 to 2" in describe_loss(Curve(steps, [1.0] * 5 + [2.0] * 5))
    assert "has too few losses for a trend (3 in 12 steps)" in describe_loss(Curve([5, 10, 12], [0.4, 0.4, 0.7]))


@pytest.fixture
def runs(folder: Path) -> Path:
    """Return a folder with four queries over six documents of two chunks; at rank 1, bm25 is right for three of them."""
    for name, last in (("bm25", "d4"), ("trained", "d3")):
        lines = [
            f"q{query} Q0 {id}#{query % 2} {rank} {9 - rank} t\n"
            for query, top in enumerate(["d0", "d1", "d2", last])
            for rank, id in enumerate(dict.fromkeys([top, "d5", f"d{query}"]), start=1)
        ]
        write_text(folder / f"{name}.run", "".join(lines))
    places = [(doc, at) for doc in range(6) for at in (0, 1)]
    rows = [
        {"_id": f"d{n}#{at}", "title": f"Title {n}", "text": f"words of document {n}, part {at}"} for n, at in places
    ]
    write_rows(folder / "corpus.jsonl", rows)
    write_rows(folder / "queries.jsonl", [{"_id": f"q{n}", "text": f"which document is {n}?"} for n in range(4)])
    write_text(folder / "test.tsv", "".join(f"q{n}\td{n}\t1\n" for n in range(4)))
    write_rows(folder / "log.jsonl", [{"step": step, "loss": 3 / step} for step in range(1, 30)])
    return folder


REPORT = ["report", "bm25=bm25.run", "trained=trained.run", "--qrels", "test.tsv", "--by", "source", "-o", "out"]
TEXTS = ["--corpus", "corpus.jsonl", "--queries", "queries.jsonl", "--log", "log.jsonl"]


def test_report_files_and_terminal_output_agree(runs: Path, capfd: Capture) -> None:
    pytest.importorskip("matplotlib")
    printed = run_command(capfd, *REPORT, *TEXTS, "--moved", "1")
    content = json.loads((runs / "out" / "report.json").read_text())
    # bm25 has the right document at rank 3 for q3: RR (1 + 1 + 1 + 1/3)/4
    means = {(row["system"], row["measure"]): row["mean"] for row in content["rows"] if row["kind"] == "system"}
    assert means["bm25", "RR@10"] == pytest.approx((3 + 1 / 3) / 4)
    assert means["trained", "RR@10"] == 1
    assert (content["rows"][0]["kind"], content["rows"][0]["queries"]) == ("comparison", 4)
    assert content["recall"]["bm25"][0] == 3 / 4
    compared = next(row for row in content["rows"] if row["kind"] == "contrast")
    assert (compared["system"], compared["baseline"], compared["measure"]) == ("trained", "bm25", "nDCG@10")
    assert compared["significant"] is False  # one query of four differs
    assert content["loss"]["steps"] == list(range(1, 30))
    markdown = (runs / "out" / "report.md").read_text()
    assert "| trained | **1.0000** |" in markdown
    assert "(report.png)" in markdown
    sentence = "The training loss fell from 1.111 to 0.1161 in 29 steps."
    assert sentence in printed
    assert sentence in markdown.replace("\\", "")
    (moved,) = (row for row in content["rows"] if row["kind"] == "move")
    assert (moved["query_id"], moved["after"]) == ("q3", 1)
    assert (moved["relevant"][0]["id"], moved["relevant"][0]["before"], moved["relevant"][0]["after"]) == ("d3", 3, 1)
    assert "which document is 3?" in markdown
    assert "- first in bm25, not judged: **Title 4** (`d4`) words of document 4, part 0" in markdown
    picture = (runs / "out" / "report.png").read_bytes()
    width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == (1944, 600)  # three panels of 5.4 inches, 120 dots per inch


def test_several_runs_of_a_system_are_averaged(runs: Path, capfd: Capture) -> None:
    (runs / "again.run").write_bytes((runs / "bm25.run").read_bytes())
    run_command(capfd, "report", "bm25=again.run", "two=bm25.run", "two=trained.run", *REPORT[3:])
    assert json.loads((runs / "out" / "report.json").read_text())["recall"]["two"][0] == (3 / 4 + 1) / 2
    picture = (runs / "out" / "report.png").read_bytes()
    assert int.from_bytes(picture[16:20], "big") == 1296  # no loss, no panel


def test_report_without_matplotlib_has_no_plot(runs: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    app([*REPORT, *TEXTS], standalone_mode=False)
    assert re.search(r"report\.png was not drawn: .*pip install matplotlib", capfd.readouterr().err)
    assert not (runs / "out" / "report.png").exists()
    assert "report.png" not in (runs / "out" / "report.md").read_text()
    assert (runs / "out" / "meta.json").exists()


def test_report_explains_a_fusion_by_overlap(runs: Path, capfd: Capture) -> None:
    run_command(capfd, "fuse", "-q", "bm25.run", "trained.run", "-o", "fused.run")
    printed = run_command(capfd, *REPORT[:3], "fused=fused.run", *REPORT[3:])
    overlap = json.loads((runs / "out" / "report.json").read_text())["overlap"]
    assert overlap["relevant"] == {"both": 4, "first": 0, "second": 0, "neither": 0}
    assert overlap["kept"]["both"] == 4
    assert "Of 4 relevant documents, 4 are in the top 100 of both" in " ".join(printed.split())


def test_one_system_and_counts_are_rejected(runs: Path, capfd: Capture) -> None:
    with pytest.raises(UsageError, match="at least two systems are required"):
        run_command(capfd, *REPORT[:2], *REPORT[3:])
    with pytest.raises(UsageError, match="num_ret is not a mean over queries"):
        run_command(capfd, *REPORT, "--measures", "num_ret")
