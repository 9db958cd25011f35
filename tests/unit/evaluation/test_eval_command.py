"""drtk eval: what reaches the eye, and what is said about queries and ids that do not fit."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from tests.running import command, write

RUN = """\
q1 Q0 d3 1 3 a
q1 Q0 d1 2 2 a
q1 Q0 d7 3 1 a
q2 Q0 d9 1 3 a
q2 Q0 d8 2 2 a
q2 Q0 d2 3 1 a
q3 Q0 d4 1 3 a
q3 Q0 d5 2 2 a
q3 Q0 d6 3 1 a
"""
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td7\t1\nq2\td2\t1\nq3\td0\t1\nq4\td1\t1\n"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path / "a.run", RUN)
    write(tmp_path / "b.run", RUN.replace("d3", "d1 ").replace("q1 Q0 d1 2", "q1 Q0 d3 2"))
    write(tmp_path / "test.tsv", QRELS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_known_answer_comes_out_of_the_command(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # RR@10 (1/2 + 1/3)/4, R@3 .5, R@2 .125, hit@2 .25: q4 is not in the run and counts
    arguments = ["a.run", "--qrels", "test.tsv", "--measures", "RR@10 R@3 R@2 Hit@2"]
    assert command(capfd, "eval", "-q", *arguments, "--digits", "6").splitlines() == [
        "run     RR@10       R@3       R@2     Hit@2",
        "a    0.208333  0.500000  0.125000  0.250000",
    ]
    assert command(capfd, "eval", "-q", *arguments, "--retrieved-only").split()[-4] == "0.2778"


def test_several_runs_stand_side_by_side_with_the_best_marked(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # in b, q1 has d1 at rank 1: RR@10 is (1 + 1/3)/4, recall stays
    printed = command(capfd, "eval", "-q", "a.run", "better=b.run", "--qrels", "test.tsv", "--measures", "RR@10 R@3")
    assert printed.splitlines() == [
        "run      RR@10      R@3",
        "a       0.2083   0.5000*",
        "better  0.3333*  0.5000*",
    ]


def test_other_formats_hold_the_same_values(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def lines(format: str) -> list[str]:
        arguments = ["a.run", "b.run", "--qrels", "test.tsv", "--measures", "RR@10 P_5", "--format", format]
        return command(capfd, "eval", "-q", *arguments).splitlines()

    assert lines("markdown") == [
        "| run | RR@10 | P_5 |",
        "| :--- | ---: | ---: |",
        "| a | 0.2083 | **0.1500** |",
        "| b | **0.3333** | **0.1500** |",
    ]
    assert lines("latex")[2:6] == [
        "run & RR@10 & P\\_5 \\\\",
        "\\hline",
        "a & 0.2083 & \\textbf{0.1500} \\\\",
        "b & \\textbf{0.3333} & \\textbf{0.1500} \\\\",
    ]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines("csv")))))
    assert [float(row["RR@10"]) for row in rows] == pytest.approx([(1 / 2 + 1 / 3) / 4, (1 + 1 / 3) / 4], abs=1e-15)
    objects = [json.loads(line) for line in lines("jsonl")]
    assert objects[0] == {
        "run": "a",
        "queries": 4,
        "RR@10": pytest.approx((1 / 2 + 1 / 3) / 4),
        "P_5": pytest.approx(0.15),
    }


def test_per_query_values_are_followed_by_their_mean(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    printed = command(capfd, "eval", "-q", "a.run", "--qrels", "test.tsv", "--measures", "RR@10", "--per-query")
    assert [line.split() for line in printed.splitlines()] == [
        ["run", "query", "RR@10"],
        ["a", "q1", "0.5000"],
        ["a", "q2", "0.3333"],
        ["a", "q3", "0.0000"],
        ["a", "q4", "0.0000"],
        ["a", "all", "0.2083"],
    ]


def test_many_measures_stand_below_each_other(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    printed = command(capfd, "eval", "-q", "a.run", "b.run", "--qrels", "test.tsv", "--measures", "official")
    lines = printed.splitlines()
    assert lines[0].split() == ["measure", "a", "b"]
    assert [line.split() for line in lines if line.startswith(("num_q", "recip_rank"))] == [
        ["num_q", "4", "4"],
        ["recip_rank", "0.2083", "0.3333*"],
    ]


def test_a_named_output_has_a_manifest_that_lists_its_inputs(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["eval", "a.run", "--qrels", "test.tsv", "-o", "table.txt", "--measures", "RR@10"]
    command(capfd, *arguments)
    assert (world / "table.txt").read_text() == "run   RR@10\na    0.2083\n"
    manifest = json.loads((world / "table.txt.meta.json").read_text())
    assert {entry["path"] for entry in manifest["inputs"]} == {"a.run", "test.tsv"}
    with pytest.raises(DrtkError, match="exists already"):
        command(capfd, *arguments)


def test_it_says_which_queries_differ(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(world / "c.run", RUN + "q9 Q0 d1 1 1 a\n")
    from drtk.cli.main import app

    app(["eval", "c.run", "--qrels", "test.tsv"], standalone_mode=False)
    assert "without judgements left out" not in capfd.readouterr().err  # as trec_eval does, and it changes no figure
    app(["eval", "c.run", "--qrels", "test.tsv", "-v"], standalone_mode=False)
    said = capfd.readouterr().err
    assert "c: 1 query of the run without judgements left out" in said
    assert "c: 1 query of 4 with judgements not in the run, counted as 0" in said


def test_judged_ids_the_corpus_lacks_are_counted(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(world / "corpus.jsonl", "".join(json.dumps({"_id": f"d{n}", "text": "t"}) + "\n" for n in (1, 2, 7)))
    from drtk.cli.main import app

    app(["eval", "-q", "a.run", "--qrels", "test.tsv", "--corpus", "corpus.jsonl"], standalone_mode=False)
    assert "test.tsv: 1 of 4 judged passages are not in the corpus, for example 'd0'" in capfd.readouterr().err


def test_documents_are_scored_by_their_best_passage(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # passages x#0, d#1, x#1, d#0: documents x, d; the judged d is second
    write(world / "chunks.run", "q Q0 x#0 1 4 a\nq Q0 d#1 2 3 a\nq Q0 x#1 3 2 a\nq Q0 d#0 4 1 a\n")
    write(world / "docs.tsv", "q\td\t1\n")
    arguments = ["eval", "-q", "chunks.run", "--qrels", "docs.tsv", "--measures", "RR num_ret"]
    assert command(capfd, *arguments, "--by", "source").split()[-2:] == ["0.5000", "2"]
    from drtk.cli.main import app

    app(arguments, standalone_mode=False)
    assert "--by source scores documents" in capfd.readouterr().err


def test_the_corpus_says_which_document_a_passage_is_of(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(world / "own.run", "q Q0 p1 1 4 a\nq Q0 p2 2 3 a\nq Q0 p3 3 2 a\n")
    write(world / "docs.tsv", "q\td\t1\n")
    rows = [
        {"_id": id, "text": "t", "metadata": {"source_id": of}} for id, of in (("p1", "x"), ("p2", "x"), ("p3", "d"))
    ]
    write(world / "corpus.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["eval", "-q", "own.run", "--qrels", "docs.tsv", "--measures", "RR", "--by", "source"]
    assert command(capfd, *arguments, "--corpus", "corpus.jsonl").split()[-1] == "0.5000"


def test_a_querys_own_document_goes_before_the_cut(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(world / "own.run", "q Q0 q 1 4 a\nq Q0 d 2 3 a\n")
    write(world / "own.tsv", "q\td\t1\n")
    arguments = ["eval", "-q", "own.run", "--qrels", "own.tsv", "--measures", "RR", "--depth", "1"]
    assert command(capfd, *arguments).split()[-1] == "0.0000"
    assert command(capfd, *arguments, "--drop-same-id").split()[-1] == "1.0000"


def test_the_rank_column_counts_only_on_request(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(world / "own.run", "q Q0 d 1 1 a\nq Q0 e 2 2 a\n")
    write(world / "own.tsv", "q\td\t1\n")
    arguments = ["eval", "-q", "own.run", "--qrels", "own.tsv", "--measures", "RR"]
    assert command(capfd, *arguments).split()[-1] == "0.5000"
    assert command(capfd, *arguments, "--order", "rank").split()[-1] == "1.0000"


@pytest.mark.parametrize(
    ("run", "qrels", "fault", "problem"),
    [
        ("x Q0 d1 1 1 a\n", QRELS, MismatchError, "no query has judgements; it has 'x', the judgements have 'q1'"),
        (RUN, "", DrtkError, "holds no judgements"),
        (RUN, "query-id\tcorpus-id\tscore\nq1\td1\n", RecordError, r"bad\.tsv:2: expected 3 columns"),
        (RUN + "q3 Q0 d7 4 nan a\n", QRELS, RecordError, r"bad\.run:10: score 'nan' is not finite"),
    ],
)
def test_faults_are_named(
    world: Path, capfd: pytest.CaptureFixture[str], run: str, qrels: str, fault: type[DrtkError], problem: str
) -> None:
    write(world / "bad.run", run)
    write(world / "bad.tsv", qrels)
    with pytest.raises(fault, match=problem):
        command(capfd, "eval", "bad.run", "--qrels", "bad.tsv")


def test_runs_need_names_of_their_own(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="two runs are called 'x'"):
        command(capfd, "eval", "x=a.run", "x=b.run", "--qrels", "test.tsv")
    (world / "sub").mkdir()
    write(world / "sub" / "a.run", RUN)
    printed = command(capfd, "eval", "-q", "a.run", "sub/a.run", "--qrels", "test.tsv", "--measures", "RR")
    assert [line.split()[0] for line in printed.splitlines()] == ["run", "a", "sub/a"]


def test_an_empty_run_scores_zero_and_says_so(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(world / "empty.run", "")
    from drtk.cli.main import app

    app(["eval", "empty.run", "--qrels", "test.tsv", "--measures", "RR"], standalone_mode=False)
    captured = capfd.readouterr()
    assert captured.out.split()[-1] == "0.0000"
    assert "the run is empty" in captured.err


def test_a_run_on_stdin_needs_neither_name_nor_heavy_libraries(world: Path) -> None:
    script = (
        "import sys; sys.argv = ['drtk', 'eval', '-q', '--qrels', 'test.tsv', '--measures', 'RR@10']\n"
        "from drtk.cli.main import app\n"
        "app(standalone_mode=False)\n"
        "assert not {'torch', 'transformers', 'pandas', 'nltk', 'matplotlib'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], input=RUN, capture_output=True, text=True, check=True)
    assert done.stdout == "run     RR@10\nstdin  0.2083\n"
