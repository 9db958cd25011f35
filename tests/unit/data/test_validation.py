"""drtk validate: each check reports its own problems, with line numbers, and no others."""

import gzip
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from drtk.cli.main import app
from drtk.data.config import ValidationSettings
from drtk.data.findings import CHECKS, Findings
from drtk.data.validation import validate_file
from drtk.errors import DrtkError, UsageError


def file(folder: Path, content: bytes | list[Any], name: str = "file") -> str:
    if isinstance(content, list):
        content = b"".join(orjson.dumps(row) + b"\n" for row in content)
    (folder / name).write_bytes(content)
    return str(folder / name)


def findings(source: str, kind: str, **options: Any) -> Findings:
    return validate_file(source, ValidationSettings(kind=kind, **options))  # type: ignore[arg-type]


def find_lines(found: Findings) -> dict[str, list[int]]:
    """Return {check: lines} of the findings; the line of a finding about the whole file is 0."""
    return {
        check: [int(place.rpartition(":")[2]) if ":" in place else 0 for place, _ in found.list_problems(check)]
        for check in found.counts
    }


CORPUS = [{"_id": id, "text": f"text of {id}"} for id in ("a", "b", "c")]
QUERIES = [{"_id": "1", "text": "who?"}, {"_id": "2", "text": "what?"}]
FAULTY_EXAMPLES = [
    {"query_id": "1", "positives": ["a", "a"], "negatives": ["b", "b", "a"]},
    {"query_id": "1", "positives": ["a"], "negatives": []},
    {"query_id": "2", "positives": [], "negatives": []},
]


@pytest.mark.parametrize(
    ("kind", "content", "expected"),
    [
        ("passages", CORPUS, {}),
        ("passages", [*CORPUS, CORPUS[1]], {"duplicate": [4]}),
        ("passages", [*CORPUS, {"_id": "d", "text": "text of a"}], {"same-text": [4]}),
        ("passages", [*CORPUS, {"_id": "d", "title": "T", "text": "text of a"}], {}),  # another title, another passage
        ("passages", [*CORPUS, {"_id": "d", "text": " "}, {"_id": "e", "text": ""}], {"empty-text": [4, 5]}),
        ("passages", b'{"_id":"a b","text":"x"}\n[]\n{"_id":"c","te', {"unreadable": [1, 2, 3]}),
        ("passages", b"", {}),
        ("queries", QUERIES, {}),
        ("queries", [*QUERIES, {"_id": "3", "text": "who?"}], {"same-text": [3]}),
        ("queries", [*QUERIES, {"_id": "2", "text": "why?", "answers": []}], {"duplicate": [3], "no-answers": [3]}),
        ("qrels", b"1 0 a 1\n2 0 a 1\n", {}),
        ("qrels", b"1 0 a 1\n1 0 a 1\n1 0 b x\n", {"duplicate": [2], "unreadable": [3]}),
        ("qrels", b"query-id\tcorpus-id\tscore\n1\ta\t1\n1\tb\t-1\n2\ta\t0\n", {"negative-grade": [3], "no-relevant": [4]}),
        ("run", b"1 Q0 a 1 3.0 x\n1 Q0 b 2 2.0 x\n2 Q0 a 1 1.0 x\n", {}),
        ("run", b"1 Q0 a 1 3.0 x\n1 Q0 a 2 2.0 x\n", {"duplicate": [2]}),
        ("run", b"1 Q0 a 1 nan x\n1 Q0 b one 2.0 x\n1 Q0 c 1\n1 Q0 d 1 1.0 x\n", {"unreadable": [1, 2, 3]}),
        ("run", b"1 Q0 a 1 3.0 x\n1 Q0 b 1 2.0 x\n", {"rank-order": [2], "rank-gap": [1]}),
        ("run", b"1 Q0 b 2 2.0 x\n1 Q0 a 1 3.0 x\n", {"rank-order": [2]}),  # ranks and scores agree
        ("run", b"1 Q0 a 1 2.0 x\n1 Q0 b 2 3.0 x\n1 Q0 c 3 3.0 x\n", {"score-order": [2], "tie": [3]}),
        ("run", b"1 Q0 a 0 3.0 x\n1 Q0 b 1 2.0 x\n", {"rank-gap": [1]}),
        ("run", b"1 Q0 a 1 3 x\n2 Q0 a 1 3 x\n1 Q0 b 1 2 x\n", {"split-query": [3]}),
        ("run", b"1\ta\t1\n1\ta\t2\n1\tb\tx\n", {"duplicate": [2], "unreadable": [3]}),
        ("examples", [{"query_id": "1", "positives": ["a"], "negatives": ["b"]}], {}),
        ("examples", FAULTY_EXAMPLES,
         {"positive-and-negative": [1], "repeated-positive": [1], "repeated-negative": [1], "no-negatives": [2],
          "repeated-query": [2], "unreadable": [3]}),
        ("examples", [{"query": "q", "pos": ["yes", ""], "neg": ["no"]}], {"unreadable": [1]}),
        ("examples",
         [{"question": " ", "positive_ctxs": [{"title": "", "text": text} for text in ("yes", "")],
           "negative_ctxs": [{"title": "", "text": "no"}]}],
         {"empty-text": [1, 1]}),
    ],
)  # fmt: skip
def test_a_check_finds_its_problem_and_its_line(
    tmp_path: Path, kind: str, content: bytes | list[Any], expected: dict[str, list[int]]
) -> None:
    actual = findings(file(tmp_path, content), kind)
    assert find_lines(actual) == expected
    assert actual.num_errors == sum(len(lines) for check, lines in expected.items() if CHECKS[check][0])
    assert actual.num_warnings == sum(len(lines) for check, lines in expected.items() if not CHECKS[check][0])


@pytest.mark.parametrize(
    ("kind", "content", "expected"),
    [
        ("qrels", b"1 0 a 1\n1 0 z 1\n9 0 a 1\n", {"unknown-passage": [2], "unknown-query": [3]}),
        ("run", b"1 Q0 a 1 3 x\n1 Q0 z 2 2 x\n9 Q0 a 1 3 x\n",  # without hits of query 2
         {"unknown-passage": [2], "unknown-query": [3], "no-hits": [0]}),
        ("examples",
         [{"query_id": "1", "positives": ["a"], "negatives": ["b", "z"]}, {"query_id": "9", "positives": ["y"], "negatives": ["z"]}],
         {"unknown-passage": [1, 2, 2], "unknown-query": [2]}),
    ],
)  # fmt: skip
def test_ids_are_compared_with_corpus_and_queries(
    tmp_path: Path, kind: str, content: bytes | list[Any], expected: dict[str, list[int]]
) -> None:
    corpus, queries = file(tmp_path, CORPUS, "corpus.jsonl"), file(tmp_path, QUERIES, "queries.jsonl")
    assert find_lines(findings(file(tmp_path, content), kind, queries=queries, corpus=corpus)) == expected


def test_a_run_of_passages_with_a_corpus_of_documents_is_explained(tmp_path: Path) -> None:
    corpus = file(tmp_path, CORPUS, "corpus.jsonl")
    actual = findings(file(tmp_path, b"1 Q0 a#0 1 3 x\n1 Q0 z#0 2 2 x\n"), "run", corpus=corpus)
    assert [message for _, message in actual.list_problems("unknown-passage")] == [
        "document 'a#0' is not in the corpus, but its document 'a' is; give the corpus of passages",
        "document 'z#0' is not in the corpus",
    ]
    chunks = file(tmp_path, [{"_id": "a#0", "text": "x"}], "chunks.jsonl")
    actual = findings(file(tmp_path, b"1 0 a 1\n1 0 z 1\n"), "qrels", corpus=chunks)
    assert [message for _, message in actual.list_problems("unknown-passage")] == [
        "document 'a' is not in the corpus, but passages of it are; give the corpus of documents",
        "document 'z' is not in the corpus",
    ]


def test_a_wrong_field_name_is_shown_beside_the_accepted_ones(tmp_path: Path) -> None:
    rows = [{"_id": "1", "title": "t", "body": "b"}, {"key": "2", "text": "b"}]
    messages = [message for _, message in findings(file(tmp_path, rows), "passages").list_problems("unreadable")]
    ids = "id, docid, doc_id, passage_id, psg_id, pid"
    assert messages == [
        "'text' is missing (or contents); other fields of the record: body",
        f"'_id' is missing (or {ids}); other fields of the record: key, text",
    ]
    messages = [message for _, message in findings(file(tmp_path, rows), "queries").list_problems("unreadable")]
    assert messages == [
        "'text' is missing (or question, query, query_text); other fields of the record: title, body",
        "'_id' is missing (or id, query_id, qid); other fields of the record: key, text",
    ]


def test_examples_are_compared_with_the_judgments(tmp_path: Path) -> None:
    qrels = file(tmp_path, b"1 0 a 1\n1 0 b 2\n1 0 c 0\n", "qrels")
    rows = [
        {"query_id": "1", "positives": ["a"], "negatives": ["b", "c", "d"]},  # b is relevant
        {"query_id": "1", "positives": ["c"], "negatives": ["d"]},  # c is not
        {"query_id": "2", "positives": ["a"], "negatives": ["d"]},
    ]
    actual = findings(file(tmp_path, rows), "examples", qrels=qrels)
    assert find_lines(actual) == {"judged-relevant": [1], "not-relevant": [2], "not-judged": [3], "repeated-query": [2]}
    chunks = [{"query_id": "1", "positives": ["a#2"], "negatives": ["b#0", "c#1", "d#0"]}]  # judged by document
    assert find_lines(findings(file(tmp_path, chunks), "examples", qrels=qrels)) == {"judged-relevant": [1]}


def test_leaks_are_found_between_questions_and_in_training_data(tmp_path: Path) -> None:
    train = file(tmp_path, [{"_id": "1", "text": "Who  WROTE it?"}, {"_id": "2", "text": "who wrote it!"}], "train")
    test = file(tmp_path, [{"_id": "9", "text": " who wrote\tit? "}], "test")
    actual = findings(train, "queries", leak=test)
    assert actual.counts == {"leak": 1}
    assert actual.list_problems("leak") == [(f"{train}:1", f"'1' has the text of '9' ({test}:1)")]
    assert test in actual.compared
    test = file(tmp_path, [{"_id": "9", "text": "WHO?"}], "test")
    texted = file(tmp_path, [{"query": "who?", "pos": ["a"], "neg": ["b"]}], "texted")
    assert findings(texted, "examples", leak=test).counts == {"leak": 1}
    assert findings(test, "queries", leak=texted).counts == {"leak": 1}
    ids = file(tmp_path, [{"query_id": "1", "positives": ["a"], "negatives": ["b"]}], "ids")
    queries = file(tmp_path, QUERIES, "queries")
    assert findings(ids, "examples", leak=test, queries=queries).counts == {"leak": 1}
    with pytest.raises(DrtkError, match="ids:1: the example has only the id of query '1'"):
        findings(ids, "examples", leak=test)
    triples = file(tmp_path, b"1\t1500\t2500\n", "triples")
    assert findings(triples, "examples", leak=test, queries=queries).counts == {"leak": 1}


def test_contradictory_settings_are_rejected() -> None:
    with pytest.raises(UsageError, match="`corpus` requires `as` to be qrels, run or examples"):
        findings("-", "queries", corpus="x")
    with pytest.raises(UsageError, match="`leak` requires `as` to be passages, queries or examples"):
        findings("-", "qrels", leak="x")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (CORPUS, None),
        ([{"id": "1", "question": "who?"}, {"id": "2", "text": "who?", "answers": []}], "queries"),
        ([{"_id": "a", "title": "T", "text": "x"}, *CORPUS], "passages"),
        ([*CORPUS, {"_id": "d", "title": "T", "text": "x"}], "passages"),
        ([{"_id": str(n), "text": "x"} for n in range(10)] + [{"_id": "d", "title": "T", "text": "x"}], None),
        ([{"_id": "a", "title": "", "text": "x"}], "passages"),
        (b'{"_id": "a", "title": "T", "text": "x"}\n{"_id"\n', "passages"),
        (b'[{"_id": "a", "title": "T", "text": "x"}]', "passages"),
        ([{"_id": "a", "title": "T", "text": "x", "answers": ["y"]}], None),
        ([{"_id": "a", "title": "T", "text": "x"}, {"_id": "b", "text": "x", "answers": ["y"]}], None),
        ([{"query_id": "1", "query": "who?", "answer": "Rome"}], None),
        (b"1 Q0 a 1 high x\n1 Q0 a 2 2.0\n", "run"),  # damaged, but still a run
        (b"1 0 a 1\n1 0 b one\n2 0 c 0\n", "qrels"),
        (b"anchor\tpositive\tnegative\nwho\tme\tyou\n", "examples"),
        (b"1\ta\t1\n", None),  # a grade, or MS MARCO's rank
        (b"", None),
    ],
)
def test_the_kind_of_a_file_is_detected(tmp_path: Path, content: Any, kind: str | None) -> None:
    source, settings = file(tmp_path, content), ValidationSettings()
    if kind is not None:
        assert validate_file(source, settings).kind == kind
        return
    with pytest.raises(UsageError, match=r"file: its kind is unclear; set `as` to one of passages"):
        validate_file(source, settings)


def test_the_kind_of_a_pipe_is_detected_without_losing_records(tmp_path: Path) -> None:
    content = b"".join(orjson.dumps({"_id": id, "question": "who?"}) + b"\n" for id in "121")
    result = CliRunner().invoke(app, ["validate"], input=content)
    assert result.stdout.startswith("<stdin>: 3 queries read\n")
    assert "<stdin>:3: id '1' is already used in line 1" in result.stdout


def test_only_the_first_problems_are_shown_and_all_are_counted(tmp_path: Path) -> None:
    source = file(tmp_path, [{"_id": f"d{number}", "text": ""} for number in range(100)])
    actual = findings(source, "passages", show=3)
    assert actual.counts == {"empty-text": 100}
    assert find_lines(actual) == {"empty-text": [1, 2, 3]}
    assert findings(source, "passages", show=0).counts == {"empty-text": 100}


def test_damaged_compressed_data_is_a_finding(tmp_path: Path) -> None:
    data = gzip.compress(b"".join(orjson.dumps({"_id": str(number), "text": "x"}) + b"\n" for number in range(9_000)))
    actual = findings(file(tmp_path, data[: len(data) // 2]), "passages")
    ((_, message),) = actual.list_problems("unreadable")
    assert "compressed data ends early; copy or download the file again; the rest of the file was not read" in message


def test_the_command_prints_its_findings_and_ends_with_1_only_for_errors(tmp_path: Path) -> None:
    def invoke(rows: list[Any], *options: str) -> Any:
        return CliRunner().invoke(app, ["validate", file(tmp_path, rows), "--as", "passages", *options])

    path, bad = tmp_path / "file", [*CORPUS, CORPUS[0]]
    result = invoke(CORPUS)
    assert (result.exit_code, result.stdout) == (0, f"{path}: 3 passages read\n\nno problems found\n")
    result = invoke([{"_id": "1", "text": ""}])
    assert result.exit_code == 0
    assert "0 errors, 1 warning" in result.stdout
    result = invoke(bad)
    assert isinstance(result.exception, DrtkError)
    assert str(result.exception) == f"{path}: 1 error"
    assert f"  {path}:4: id 'a' is already used in line 1" in result.stdout
    row = orjson.loads(invoke(bad, "--json").stdout)
    assert (row["records"], row["errors"], row["warnings"]) == (4, 1, 0)
    assert row["checks"][0]["shown"] == [{"place": f"{path}:4", "message": "id 'a' is already used in line 1"}]


def test_every_check_is_described_in_the_manual() -> None:
    page = (Path(__file__).parents[3] / "docs" / "commands" / "validate.md").read_text(encoding="utf-8")
    assert [check for check in CHECKS if f"`{check}`" not in page] == []
