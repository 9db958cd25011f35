"""drtk eval on a folder of BEIR collections: rows, averages of groups, and missing runs."""

import json
from pathlib import Path

import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, UsageError
from tests.run_commands import Capture, run_command, write_text

QRELS = "query-id\tcorpus-id\tscore\nq\tright\t1\n"


def make_run(rank: int) -> str:
    """Return a run with the relevant document at `rank` (0: nowhere), after the document with the query's id."""
    docs = ["q", *(f"d{n}" for n in range(4))]
    if rank:
        docs.insert(rank, "right")
    return "".join(f"q Q0 {doc} {place} {10 - place} t\n" for place, doc in enumerate(docs, start=1))


@pytest.fixture
def beir(folder: Path) -> Path:
    """Return a folder with judgments of four collections, and runs of one system."""
    for name, rank in (("arguana", 1), ("scifact", 2), ("cqadupstack/android", 1), ("cqadupstack/unix", 0)):
        (folder / "beir" / name / "qrels").mkdir(parents=True)
        write_text(folder / "beir" / name / "qrels" / "test.tsv", QRELS)
        (folder / "runs" / name).parent.mkdir(parents=True, exist_ok=True)
        write_text(folder / "runs" / f"{name}.run", make_run(rank))
    return folder


def run_eval(capfd: Capture, *arguments: str) -> tuple[list[list[str]], str]:
    """Return the rows of the table, and stderr."""
    capfd.readouterr()
    app(["eval", *arguments, "--qrels", "beir"], standalone_mode=False)
    out, err = capfd.readouterr()
    return [line.split() for line in out.splitlines()], err


def test_group_is_averaged_first_and_counts_once(beir: Path, capfd: Capture) -> None:
    # without the query's own document, RR is 1, .5, and for CQADupStack (1 + 0)/2 = .5; average (1 + .5 + .5)/3
    rows, messages = run_eval(capfd, "runs", "--measures", "RR@10")
    assert rows == [
        ["run", "collection", "RR@10"],
        ["runs", "arguana", "1.0000"],
        ["runs", "cqadupstack/android", "1.0000"],
        ["runs", "cqadupstack/unix", "0.0000"],
        ["runs", "cqadupstack", "0.5000"],
        ["runs", "scifact", "0.5000"],
        ["runs", "average", "0.6667"],
    ]
    assert "averages are over 3 collections (4 before averaging within groups)" in messages
    printed = run_command(capfd, "eval", "-q", "runs", "--qrels", "beir", "--measures", "RR@10", "--format", "jsonl")
    lines = [json.loads(line) for line in printed.splitlines()]
    assert lines[0] == {"run": "runs", "collection": "arguana", "RR@10": 1.0}
    assert lines[-1]["RR@10"] == pytest.approx(2 / 3)


def test_document_with_the_query_id_is_dropped_before_the_cut(beir: Path, capfd: Capture) -> None:
    depth = ["runs", "--measures", "RR@10", "--depth", "1"]
    assert run_eval(capfd, *depth)[0][1] == ["runs", "arguana", "1.0000"]
    assert run_eval(capfd, *depth, "--no-drop-same-id")[0][1] == ["runs", "arguana", "0.0000"]
    # It is kept in a single collection, as with its file of judgments.
    call = ["a=runs/scifact.run", "--measures", "RR@10", "--qrels", "beir/scifact"]
    assert run_command(capfd, "eval", "-q", *call).split() == ["run", "RR@10", "a", "0.3333"]


def test_best_system_of_each_collection_is_marked(beir: Path, capfd: Capture) -> None:
    (beir / "other").mkdir()
    for name, rank in (("arguana", 2), ("scifact", 1), ("cqadupstack-android", 1), ("cqadupstack_unix", 1)):
        write_text(beir / "other" / f"{name}.run", make_run(rank))
    rows, _ = run_eval(capfd, "a=runs", "b=other", "--measures", "RR@10")
    assert rows == [
        ["measure", "collection", "a", "b"],
        ["RR@10", "arguana", "1.0000*", "0.5000"],
        ["RR@10", "cqadupstack/android", "1.0000*", "1.0000*"],
        ["RR@10", "cqadupstack/unix", "0.0000", "1.0000*"],
        ["RR@10", "cqadupstack", "0.5000", "1.0000*"],
        ["RR@10", "scifact", "0.5000", "1.0000*"],
        ["RR@10", "average", "0.6667", "0.8333*"],
    ]


def test_systems_must_have_runs_of_the_same_collections(beir: Path, capfd: Capture) -> None:
    (beir / "other").mkdir()
    write_text(beir / "other" / "arguana.run", make_run(1))
    with pytest.raises(MismatchError, match=r"other: has no run for 3 of 4 collections \(cqadupstack/android, "):
        run_eval(capfd, "a=runs", "b=other")
    rows, messages = run_eval(capfd, "a=runs", "b=other", "--measures", "RR@10", "--set", "retrieved_only=true")
    assert rows[1:] == [["RR@10", "arguana", "1.0000*", "1.0000*"], ["RR@10", "average", "1.0000*", "1.0000*"]]
    assert "collections ignored because a run is missing: cqadupstack/android, cqadupstack/unix, scifact" in messages


def test_only_split_of_a_collection_is_used(beir: Path, capfd: Capture) -> None:
    (beir / "beir" / "scifact" / "qrels" / "test.tsv").rename(beir / "beir" / "scifact" / "qrels" / "dev.tsv")
    _, messages = run_eval(capfd, "runs")
    assert "has no split 'test'; using its only split, 'dev'" in messages


def test_wrong_usage_is_rejected(beir: Path, capfd: Capture) -> None:
    for arguments, problem in (
        (["runs", "--per-query"], "`per_query` requires a single collection"),
        (["runs", "--format", "trec"], "`format=trec` requires a single collection"),
        (["runs", "--measures", "num_ret"], "num_ret cannot be averaged"),
        (["runs/scifact.run"], "pass a folder with NAME.run"),
        (["-"], "pass a folder with NAME.run"),
        (["runs", "--corpus", "c.jsonl"], "--corpus cannot be combined with --qrels"),
    ):
        with pytest.raises(UsageError, match=problem):
            run_eval(capfd, *arguments)
    with pytest.raises(DrtkError, match=r"runs: contains no collection; expected NAME/qrels/test\.tsv"):
        run_command(capfd, "eval", "runs", "--qrels", "runs")
