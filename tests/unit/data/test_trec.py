"""Runs and judgments: parsing, ranking, errors."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drtk.data.readers import iter_hits, load_qrels
from drtk.data.trec import format_run_lines, iter_query_hits, iter_rankings, load_hits, load_run
from drtk.errors import RecordError
from drtk.records import Hit
from drtk.runtime.inputs import InputTracker
from tests.run_commands import write_text

RUN = "q1 Q0 d1 1 9.5 t\nq1 Q0 d2 2 9.25 t\nq2 Q0 d1 1 -3 t\n"


@pytest.mark.parametrize(
    "text",
    [
        RUN,
        RUN.replace(" ", "\t"),
        RUN.replace("\n", "\r\n"),
        "\ufeff" + RUN,
        RUN.replace("\n", "\n\n"),
        RUN.replace(" t\n", " t more columns are reserved\n"),
        RUN.removesuffix("\n"),
        RUN.replace(" Q0", " 0", 1),
    ],
    ids=["plain", "tabs", "crlf", "bom", "blank lines", "junk at the end", "torn last line", "second columns differ"],
)
def test_separators_and_line_ends_of_a_run_do_not_matter(tmp_path: Path, text: str) -> None:
    run = tmp_path / "a.run"
    run.write_bytes(text.encode())
    hits = [Hit("q1", "d1", 1, 9.5, "t"), Hit("q1", "d2", 2, 9.25, "t"), Hit("q2", "d1", 1, -3.0, "t")]
    assert [hit for _, hit in iter_hits(str(run), InputTracker())] == hits


RUN_LINES = ("q1 Q0 d1 1 9.5 t", "q1 Q0 d2 2 9.25 t", "q1 Q0 d4 4 8 t")
READ_RUN = {"q1": [("d1", 9.5), ("d2", 9.25), ("d4", 8.0)]}
QREL_LINES, READ_QRELS = ("q1 0 d1 1", "q1 0 d2 0", "q1 0 d3 1.0"), {"q1": {"d1": 1, "d2": 0, "d3": 1}}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("q1 Q0 d3 3 9", "expected 6 columns 'qid Q0 docid rank score tag', separated by tabs or spaces, got 5"),
        ("q1 Q0 d3 3 high t", "score 'high' is not a number"),
        ("q1 Q0 d3 3 nan t", "score 'nan' is not finite"),
        ("q1 Q0 d3 3 1_0 t", "score '1_0' is not a number"),
        ("q1 Q0 d3 third 9 t", "rank 'third' is not an integer"),
        ("q1 Q0 d\0 3 9 t", "contains a NUL byte"),
        ("q1 Q0 d1 3 9 t", "document 'd1' is listed a second time for query 'q1' (first in line 1)"),
        ("q1 0 d2", "expected 4 columns 'qid 0 docid grade', separated by tabs or spaces, got 3"),
        ("q1 0 d2 1.5", "grade '1.5' is not an integer"),
        ("q1 0 d2 1_0", "grade '1_0' is not an integer"),
        ("q1 0 d1 0", "document 'd1' is judged a second time for query 'q1'"),
        ("q1 0 d\0 1", "contains a NUL byte"),
    ],
)
def test_bad_lines_are_reported_and_can_be_skipped(tmp_path: Path, line: str, problem: str) -> None:
    load, lines, expected = (load_run, RUN_LINES, READ_RUN) if "Q0" in line else (load_qrels, QREL_LINES, READ_QRELS)
    file = write_text(tmp_path / "file", "\n".join([*lines[:2], line, *lines[2:]]) + "\n")
    with pytest.raises(RecordError) as fault:
        load(str(file))
    assert str(fault.value) == f"{file}:3: {problem}"
    tracker = InputTracker(skip_bad=1)
    assert load(str(file), tracker=tracker) == expected
    assert tracker.bad == 1


@pytest.mark.parametrize("text", ["q1\td1\t1\n", "1\t2\twho\tan answer\n", '{"question": "who?", "ctxs": []}\n'])
def test_runs_of_other_formats_can_be_converted(tmp_path: Path, text: str) -> None:
    run = write_text(tmp_path / "a.run", text)
    with pytest.raises(RecordError, match=r"a\.run:1: .*; make a run with drtk convert --as run$"):
        load_run(str(run))


def test_a_short_and_a_long_line_are_two_errors(tmp_path: Path) -> None:
    # 5 + 7 columns are as many as 6 + 6; the reader that splits many lines at once must notice
    run = write_text(tmp_path / "a.run", "q1 Q0 d1 1 9\nq1 Q0 d2 2 8 t t\nq1 Q0 d3 3 7 t\n")
    with pytest.raises(RecordError, match=r"a\.run:1: expected 6 columns"):
        load_run(str(run))


def test_equal_scores_are_ordered_by_descending_id_and_the_rank_column_only_on_request(tmp_path: Path) -> None:
    run = write_text(tmp_path / "a.run", "q Q0 a 1 1 t\nq Q0 c 3 1 t\nq Q0 b 2 2 t\n")
    assert [id for id, _ in load_run(str(run))["q"]] == ["b", "c", "a"]
    assert [id for id, _ in load_hits(str(run))["q"].to_ranking("rank")] == ["a", "b", "c"]


def test_scores_equal_in_single_precision_are_ties(tmp_path: Path) -> None:
    # trec_eval keeps scores as floats: 1.00000001 and 1 are the same number there, 1.0000002 is not
    run = write_text(tmp_path / "a.run", "q Q0 a 1 1.00000001 t\nq Q0 b 2 1 t\n\nz Q0 a 1 1.0000002 t\nz Q0 b 2 1 t\n")
    actual = load_run(str(run))
    assert [id for id, _ in actual["q"]] == ["b", "a"]
    assert [id for id, _ in actual["z"]] == ["a", "b"]


def test_load_run_groups_scattered_lines_and_iter_rankings_rejects_them(tmp_path: Path) -> None:
    run = write_text(tmp_path / "a.run", "q1 Q0 d1 1 3 t\nq2 Q0 d1 1 3 t\nq1 Q0 d2 2 2 t\n")
    assert load_run(str(run)) == {"q1": [("d1", 3.0), ("d2", 2.0)], "q2": [("d1", 3.0)]}
    lines = [(hits.query_id, hits.lines) for hits in iter_query_hits(str(run))]
    assert lines == [("q1", [1]), ("q2", [2]), ("q1", [3])]
    with pytest.raises(RecordError, match=r"a\.run:3: the lines of query 'q1' are not consecutive"):
        list(iter_rankings(str(run)))
    write_text(run, "q1 Q0 d1 1 3 t\nq2 Q0 d1 1 3 t\nq1 Q0 d1 2 2 t\n")
    with pytest.raises(RecordError, match=r"a\.run:3: document 'd1' is listed a second time for query 'q1'"):
        load_run(str(run))


@pytest.mark.parametrize(
    "text",
    [
        "query-id\tcorpus-id\tscore\nq1\td1\t2\nq2\td#1\t0\n",
        "q1\td1\t2\nq2\td#1\t0\n",
        "q1 0 d1 2\nq2 0 d#1 0\n",
        "# a comment\r\nq1\tQ0\td1\t2\r\n\r\n# another\r\nq2\tQ0\td#1\t0\r\n",
        "qid docid Rel\nq1 d1 2\nq2 d#1 0\n",
        '"query-id"\t"corpus-id"\t"score"\n"q1"\t"d1"\t2\n"q2"\t"d#1"\t0\n',
        "qid Q0 docid rel\nq1 0 d1 2\nq2 0 d#1 0\n",
        '{"query-id": "q1", "corpus-id": "d1", "score": 2}\n{"relevance": 0, "qid": "q2", "doc_id": "d#1"}\n',
        '[{"query-id": "q1", "corpus-id": "d1", "score": 2},\n{"score": 0, "query-id": "q2", "corpus-id": "d#1"}]\n',
    ],
    ids="BEIR,BEIR without a header,TREC,TREC with comments,other names,quotes,TREC with a header,JSON,JSON array".split(
        ","
    ),
)
def test_the_format_of_judgments_is_detected(tmp_path: Path, text: str) -> None:
    qrels = tmp_path / "qrels"
    qrels.write_bytes(text.encode())
    assert load_qrels(str(qrels)) == {"q1": {"d1": 2}, "q2": {"d#1": 0}}


HEADER = ":1: is a header with other columns; rename and order them as 'query-id corpus-id score'"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("corpus-id\tquery-id\tscore\nd1\tq1\t2\n", HEADER),
        ("Doc\tQuery-ID\tScore\nd1\tq1\t2\n", HEADER),
        ("article_id\ttopic_id\trelevance\nd1\tq1\t2\n", HEADER),
        ("topic doc value\nq1 d1 2\n", HEADER),
        ("qid docid rels\nq1 d1 2\n", HEADER),
        ("q1,d1,2\n", ":1: expected 4 columns 'qid 0 docid grade', separated by tabs or spaces, got 1; replace commas"),
        ('{"query-id": "q1", "corpus-id": "d1"}\n', ":1: 'score' is missing"),
        ('{"_id": "q1", "text": "t"}\n', ":1: 'query-id' is missing .or query_id, qid, topic_id.; other"),
        ("\x1c\n", ":1: expected 4 columns .*, got 0"),  # white space for str.split, but not for bytes
        ("q1\td1\t1\nq1\td 2\t1\n", ":2: expected 3 columns .*, got 4; remove white space from ids"),
    ],
)
def test_invalid_judgments_are_rejected(tmp_path: Path, text: str, problem: str) -> None:
    qrels = write_text(tmp_path / "qrels", text)
    tracker = InputTracker(skip_bad=1) if problem == HEADER else None  # would swap all columns
    with pytest.raises(RecordError, match=problem):
        load_qrels(str(qrels), tracker=tracker)


@given(st.lists(st.floats() | st.floats(width=32, min_value=-9, max_value=9) | st.integers(-3, 3) | st.just(-0.0)))
def test_scores_of_a_run_are_written_as_python_writes_floats(scores: list[float]) -> None:
    ranking = [(f"dé{at}", score) for at, score in enumerate(scores)]
    expected = [f"q Q0 {id} {rank} {float(score)!r} t\n" for rank, (id, score) in enumerate(ranking, start=1)]
    assert format_run_lines("q", ranking, "t") == "".join(expected).encode()


def test_scores_without_exponents_are_written_as_python_writes_floats() -> None:
    random = np.random.default_rng(0)
    scores = random.choice([-1, 1], 20_000) * 10 ** random.uniform(-3.9, 15.9, 20_000)
    for values in (scores.tolist(), scores.astype(np.float32).tolist()):
        lines = format_run_lines("q", [("d", value) for value in values]).decode().splitlines()
        assert [line.split()[4] for line in lines] == [*map(repr, values)]
