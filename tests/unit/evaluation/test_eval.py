"""drtk eval: tables, warnings about queries and ids that do not match, and files that are rejected."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.evaluation import judged_runs
from drtk.evaluation.evaluate import Evaluation, log_shallow_runs
from drtk.evaluation.measures import parse_measures
from tests.expansion_collection import write_rows
from tests.run_commands import Capture, get_messages, run_command, write_text

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
def runs(folder: Path) -> Path:
    """Return a folder with two runs and their judgments."""
    write_text(folder / "a.run", RUN)
    write_text(folder / "b.run", RUN.replace("d3", "d1 ").replace("q1 Q0 d1 2", "q1 Q0 d3 2"))
    write_text(folder / "test.tsv", QRELS)
    return folder


def test_eval_prints_known_values(runs: Path, capfd: Capture) -> None:
    # RR@10 (1/2 + 1/3)/4, R@3 .5, R@2 .125, hit@2 .25: q4 is not in the run and counts
    arguments = ["a.run", "--qrels", "test.tsv", "--measures", "MRR@10 recall_3 R@2 success_2"]
    assert run_command(capfd, "eval", "-q", *arguments, "--set", "digits=6").splitlines() == [
        "run     RR@10  recall_3       R@2  success_2",
        "a    0.208333  0.500000  0.125000   0.250000",
    ]


def test_csv_and_json_have_values_in_full_precision(runs: Path, capfd: Capture) -> None:
    call = ["eval", "-q", "a.run", "b.run", "--qrels", "test.tsv", "--measures", "RR@10 P_5", "--format"]
    rows = list(csv.DictReader(io.StringIO(run_command(capfd, *call, "csv"))))
    assert [float(row["RR@10"]) for row in rows] == pytest.approx([(1 / 2 + 1 / 3) / 4, (1 + 1 / 3) / 4], abs=1e-15)
    first = json.loads(run_command(capfd, *call, "jsonl").splitlines()[0])
    assert first == {"run": "a", "queries": 4, "RR@10": pytest.approx((1 / 2 + 1 / 3) / 4), "P_5": pytest.approx(0.15)}


def test_many_measures_are_printed_as_rows(runs: Path, capfd: Capture) -> None:
    call = ["eval", "-q", "a.run", "b.run", "--qrels", "test.tsv", "--measures", "official relstring"]
    printed = run_command(capfd, *call)
    lines = printed.splitlines()
    assert "relstring" not in printed  # it has no average
    assert lines[0].split() == ["measure", "a", "b"]
    assert [line.split() for line in lines if line.startswith(("num_q", "recip_rank"))] == [
        ["num_q", "4", "4"],
        ["recip_rank", "0.2083", "0.3333*"],
    ]


def test_counts_are_those_of_runs_and_lines(runs: Path, capfd: Capture) -> None:
    messages = get_messages(capfd, "eval a.run --qrels test.tsv -o table.txt --measures RR@10")
    assert "eval: 1 in, 2 out, " in messages
    assert (runs / "table.txt").read_text() == "run   RR@10\na    0.2083\n"
    assert json.loads((runs / "table.txt.meta.json").read_text())["counts"] == {"in": 1, "out": 2}


def test_judged_ids_missing_from_the_corpus_are_counted(runs: Path, capfd: Capture) -> None:
    write_rows(runs / "corpus.jsonl", [{"_id": f"d{n}", "text": "t"} for n in (1, 2, 7)])
    app(["eval", "-q", "a.run", "--qrels", "test.tsv", "--corpus", "corpus.jsonl"], standalone_mode=False)
    assert "test.tsv: 1 of 4 judged passages are not in the corpus, for example 'd0'" in capfd.readouterr().err


def test_documents_are_scored_by_their_best_passage(runs: Path, capfd: Capture) -> None:
    # passages x#0, d#1, x#1, d#0: documents x, d; the judged d is second
    write_text(runs / "chunks.run", "q Q0 x#0 1 4 a\nq Q0 d#1 2 3 a\nq Q0 x#1 3 2 a\nq Q0 d#0 4 1 a\n")
    write_text(runs / "docs.tsv", "q\td\t1\n")
    arguments = ["eval", "-q", "chunks.run", "--qrels", "docs.tsv", "--measures", "RR num_ret"]
    assert run_command(capfd, *arguments, "--by", "source").split()[-2:] == ["0.5000", "2"]
    with pytest.raises(UsageError, match="use `by=source`"):
        run_command(capfd, *arguments)
    # the corpus assigns passages to documents
    sources = {"x#0": "d", "x#1": "x", "d#0": "d", "d#1": "d"}
    rows = [{"_id": id, "text": "t", "metadata": {"source_id": source}} for id, source in sources.items()]
    write_rows(runs / "corpus.jsonl", rows)
    printed = run_command(capfd, *arguments, "--by", "source", "--corpus", "corpus.jsonl")
    assert printed.split()[-2:] == ["1.0000", "2"]
    call = ["eval", "chunks.run", "--qrels", "docs.tsv", "--by", "source", "--corpus", "corpus.jsonl", "-o", "values"]
    run_command(capfd, *call)
    Path("corpus.jsonl").touch()  # its content is the same
    assert "values is up to date" in get_messages(capfd, *call, "--skip-done")


def test_run_on_stdin_loads_no_heavy_libraries(runs: Path) -> None:
    script = (
        "import sys; sys.argv = ['drtk', 'eval', '-q', '--qrels', 'test.tsv', '--measures', 'RR@10']\n"
        "from drtk.cli.main import app\n"
        "app(standalone_mode=False)\n"
        "assert not {'torch', 'transformers', 'pandas', 'nltk', 'matplotlib'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], input=RUN, capture_output=True, text=True, check=True)
    assert done.stdout == "run     RR@10\nstdin  0.2083\n"


def eval_rr(capfd: Capture, *options: str, run: str, qrels: str) -> tuple[float, str]:
    """Return RR and stderr."""
    write_text(Path("x.run"), run)
    write_text(Path("x.qrels"), qrels)
    capfd.readouterr()
    call = ["eval", "x.run", "--qrels", "x.qrels", "--measures", "RR", "--format", "jsonl", *options]
    app(call, standalone_mode=False)
    printed = capfd.readouterr()
    return float(json.loads(printed.out)["RR"]), printed.err


def test_unjudged_and_missing_queries(runs: Path, capfd: Capture) -> None:
    run, qrels = "q1 Q0 a 1 3 t\nq1 Q0 b 2 2 t\nq2 Q0 a 1 3 t\n", "q1 0 b 1\nq2 0 a 1\n"
    more = qrels + "q3 0 a 1\n"  # judged, not in the run: (1/2 + 1 + 0)/3
    value, messages = eval_rr(capfd, run=run, qrels=more)
    assert value == 0.5
    assert "x: 1 of 3 queries with judgments are not in the run and count as 0" in messages
    assert eval_rr(capfd, "--set", "retrieved_only=true", run=run, qrels=more)[0] == 0.75
    value, messages = eval_rr(capfd, "-v", run=run + "q9 Q0 a 1 1 t\n", qrels=qrels)
    assert value == 0.75
    assert "x: ignored 1 query without judgments" in messages
    value, messages = eval_rr(capfd, run="", qrels=qrels)
    assert (value, "x: the run is empty" in messages) == (0.0, True)


def test_ties_rank_order_and_dropped_documents(runs: Path, capfd: Capture) -> None:
    # of equal scores, the higher id is first; by rank, a is first
    tie = "q1 Q0 a 1 2 t\nq1 Q0 b 2 2 t\n"
    assert eval_rr(capfd, run=tie, qrels="q1 0 b 1\n")[0] == 1.0
    assert eval_rr(capfd, "--set", "order=rank", run=tie, qrels="q1 0 b 1\n")[0] == 0.5
    own = {"run": "q Q0 q 1 4 a\nq Q0 d 2 3 a\n", "qrels": "q\td\t1\n"}
    assert eval_rr(capfd, "--depth", "1", **own)[0] == 0.0
    assert eval_rr(capfd, "--depth", "1", "--drop-same-id", **own)[0] == 1.0


def test_files_without_common_queries_are_rejected(runs: Path, capfd: Capture) -> None:
    problem = r"^x\.run: no query has judgments \(run: 'x', judgments: 'q1'\); pass the judgments of these queries$"
    with pytest.raises(MismatchError, match=problem):
        eval_rr(capfd, run="x Q0 d1 1 1 a\n", qrels=QRELS)
    with pytest.raises(DrtkError, match=r"^x\.qrels: no judgments found; expected a file of judgments$"):
        eval_rr(capfd, run=RUN, qrels="")
    with pytest.raises(UsageError, match="the name 'x' is given twice"):
        run_command(capfd, "eval", "x=a.run", "x=b.run", "--qrels", "test.tsv")


def make_run(depth: int, *queries: str) -> str:
    """Return a run of `depth` passages for each query: d0#0, d0#1, d1#0, …"""
    return "".join(f"{query} Q0 d{n // 2}#{n % 2} {n + 1} {depth - n} t\n" for query in queries for n in range(depth))


@pytest.fixture
def shallow(folder: Path) -> Path:
    """Return a folder with runs of 20 documents per query, judgments, answers and a corpus."""
    write_text(folder / "qrels", "q1 0 d1#0 1\nq2 0 d2#0 1\n")
    write_text(folder / "documents", "q1 0 d1 1\nq2 0 d2 1\n")
    write_text(folder / "short.run", make_run(20, "q1", "q2"))
    write_text(folder / "alike.run", make_run(20, "q1") + make_run(7, "q2") + make_run(200, "q3"))  # q3 is not judged
    write_rows(folder / "c.jsonl", [{"_id": f"d{n // 2}#{n % 2}", "title": "", "text": "Paris"} for n in range(20)])
    write_rows(folder / "q.jsonl", [{"_id": f"q{n}", "text": "?", "answers": ["Paris"]} for n in (1, 2)])
    return folder


def find_depth_messages(capfd: Capture, *arguments: str) -> list[str]:
    """Return the messages about the number of documents of runs."""
    return [line for line in get_messages(capfd, "", *arguments).splitlines() if " at most " in line]


DEEPER = "; unless the search found no more, search again with a larger -k"
SHALLOW = f"at most 20 documents for a query with judgments, fewer than the cut-off of R@100{DEEPER}"


def test_runs_shallower_than_a_cutoff_are_reported(shallow: Path, capfd: Capture) -> None:
    both = ["short.run", "alike.run", "--qrels", "qrels"]
    for call in (["eval", *both], ["compare", *both], ["report", *both, "-o", "out"]):
        assert find_depth_messages(capfd, *call) == [f"drtk: short, alike: {SHALLOW}"]
    # 20 passages are 10 documents
    options = ["--qrels", "documents", "--by", "source", "--measures", "R@10 R@11"]
    (line,) = find_depth_messages(capfd, "eval", "short.run", *options)
    assert line.endswith("at most 10 documents for a query with judgments, fewer than the cut-off of R@11" + DEEPER)
    (line,) = find_depth_messages(capfd, "eval", "short.run", "--answers", "q.jsonl", "--corpus", "c.jsonl")
    assert line == f"drtk: short: {SHALLOW.replace('judgments', 'answers').replace('R@100', 'Answer@100')}"


def test_runs_of_one_depth_are_reported_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    depths = {"a": 20, "b": 20, "deep": 100, "c": 20, "d": 20, "one": 1, "empty": 0}
    whole = "nDCG RR AP num_q num_ret iprec_at_recall_0.50 SetF "
    results = [Evaluation(name, {}, deepest=depth) for name, depth in depths.items()]
    log_shallow_runs(results, parse_measures(whole + "nDCG@10 R@10 R@20 P_30 R@50 R@100"))
    query = "for a query with judgments, fewer than the cut-off of"
    assert caplog.messages == [
        f"a, b, c and 1 more: at most 20 documents {query} P_30, R@50, R@100{DEEPER}",
        f"one: at most 1 document {query} nDCG@10, R@10, R@20 and 3 more{DEEPER}",
    ]


def test_large_runs_are_read_in_blocks(shallow: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judged_runs, "MIN_BLOCK_BYTES", 1)
    monkeypatch.setattr(judged_runs, "read_rankings", None)  # not read line by line
    assert find_depth_messages(capfd, "eval", "alike.run", "--qrels", "qrels") == [f"drtk: alike: {SHALLOW}"]
