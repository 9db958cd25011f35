"""drtk eval on input that is not as it should be: one clear line, or a value that is worked out here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, RecordError
from tests.running import command, write

RUN = "q1 Q0 a 1 3 t\nq1 Q0 b 2 2 t\nq2 Q0 a 1 3 t\n"
QRELS = "q1 0 b 1\nq2 0 a 1\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rr(capfd: pytest.CaptureFixture[str], *options: str, run: str = RUN, qrels: str = QRELS) -> float:
    write(Path("a.run"), run)
    write(Path("qrels"), qrels)
    printed = command(
        capfd, "eval", "-q", "a.run", "--qrels", "qrels", "--measures", "RR", "--format", "jsonl", *options
    )
    return float(json.loads(printed.splitlines()[-1])["RR"])


def told(capfd: pytest.CaptureFixture[str], *options: str, run: str = RUN, qrels: str = QRELS) -> str:
    """What is said on stderr."""
    write(Path("a.run"), run)
    write(Path("qrels"), qrels)
    capfd.readouterr()
    app(["eval", "a.run", "--qrels", "qrels", "--measures", "RR", *options], standalone_mode=False)
    return capfd.readouterr().err


def test_what_is_as_it_should_be(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert rr(capfd) == (1 / 2 + 1) / 2


def test_a_document_given_twice_is_named(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    doubled = RUN + "q1 Q0 a 3 1 t\n"
    with pytest.raises(
        RecordError, match=r"^a\.run:4: document 'a' is given to query 'q1' a second time \(first in line 1\)$"
    ):
        rr(capfd, run=doubled)
    assert rr(capfd, "--skip-bad", "1", run=doubled) == 0.75


def test_a_score_that_is_text_is_named(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RecordError, match=r"^a\.run:4: score 'high' is not a number$"):
        rr(capfd, run=RUN + "q2 Q0 c 2 high t\n")
    with pytest.raises(RecordError, match=r"^a\.run:4: score 'nan' is not finite$"):
        rr(capfd, run=RUN + "q2 Q0 c 2 nan t\n")
    with pytest.raises(RecordError, match=r"^a\.run:4: score 'inf' is not finite$"):
        rr(capfd, run=RUN + "q2 Q0 c 2 inf t\n")


def test_ranks_out_of_order_and_lines_out_of_order_change_nothing(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = RUN.splitlines(keepends=True)
    assert (
        rr(capfd, run="".join([lines[2], lines[1].replace(" 2 2", " 9 2"), lines[0].replace(" 1 3", " 7 3")])) == 0.75
    )
    # trusting the ranks, b (rank 1) now stands before a (rank 7)
    assert rr(capfd, "--order", "rank", run=lines[0].replace(" 1 3", " 7 3") + lines[1].replace(" 2 2", " 1 2")) == 0.5


def test_ties_go_by_descending_id(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # q1: a and b with 2 both, b first: RR 1
    assert rr(capfd, run="q1 Q0 a 1 2 t\nq1 Q0 b 2 2 t\n", qrels="q1 0 b 1\n") == 1.0
    assert rr(capfd, run="q1 Q0 a 1 2 t\nq1 Q0 b 2 2 t\n", qrels="q1 0 a 1\n") == 0.5


def test_missing_queries_count_and_are_told(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # q3 is judged and not in the run: (1/2 + 1 + 0)/3
    more = QRELS + "q3 0 a 1\n"
    assert rr(capfd, qrels=more) == 0.5
    assert rr(capfd, "--retrieved-only", qrels=more) == 0.75
    assert "a: 1 query of 3 with judgements not in the run, counted as 0" in told(capfd, qrels=more)


def test_extra_queries_are_left_out_and_told_with_v(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    more = RUN + "q9 Q0 a 1 1 t\n"
    assert rr(capfd, run=more) == 0.75
    assert "a: 1 query of the run without judgements left out" in told(capfd, "-v", run=more)


def test_negative_grades_are_neither_relevant_nor_judged(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # q1's only judgement is negative: nothing is relevant there, RR 0; (0 + 1)/2
    assert rr(capfd, qrels="q1 0 b -1\nq2 0 a 1\n") == 0.5
    write(here / "a.run", RUN)
    write(here / "qrels", "q1 0 a -1\nq1 0 b 1\n")
    printed = command(
        capfd, "eval", "-q", "a.run", "--qrels", "qrels", "--measures", "nDCG@10 Judged@2 bpref", "--format", "jsonl"
    )
    found = json.loads(printed)
    assert found["nDCG@10"] == pytest.approx(0.630930, abs=2e-6)  # 1 / log2(3): the negative grade gains nothing


def test_a_single_query_is_enough(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert rr(capfd, qrels="q1 0 b 1\n") == 0.5


def test_nothing_relevant_and_nothing_judged(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert rr(capfd, qrels="q1 0 b 0\nq2 0 a 0\n") == 0.0  # all grades 0: nothing can be found
    assert rr(capfd, qrels="q1 0 z 1\nq2 0 z 1\n") == 0.0  # none of what is retrieved is judged
    with pytest.raises(MismatchError, match=r"^a\.run: no query has judgements; it has 'q1', the judgements have 'x'$"):
        rr(capfd, qrels="x 0 a 1\n")
    with pytest.raises(DrtkError, match=r"^qrels: holds no judgements$"):
        rr(capfd, qrels="")


def test_an_empty_run_scores_nothing_and_is_warned_about(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert rr(capfd, run="") == 0.0
    assert "a: the run is empty" in told(capfd, run="")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("q1 0 b one", "grade 'one' is not a whole number"),
        ("q1 0 b", "expected 4 columns 'qid 0 docid grade', found 3"),
        ("q1 0 b 1", "document 'b' is judged a second time for query 'q1'"),
    ],
)
def test_a_judgement_that_cannot_be_read_is_named(
    here: Path, capfd: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    with pytest.raises(RecordError, match=rf"^qrels:3: {said}"):
        rr(capfd, qrels=QRELS + line + "\n")
