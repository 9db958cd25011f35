"""drtk rerank-queries label: known ranks and first passages, both engines, resume, and rejected input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.query_expansion.label import Labeler
from drtk.runtime.integrity import read_json
from tests.bm25_data import skip_without_lucene
from tests.expansion_collection import RANKS, label_expansions, make_collection, read_rows, write_collection, write_rows


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_collection(tmp_path_factory.mktemp("label"))


def arguments(place: Path, output: Path, *more: str, source: Path | None = None) -> list[str]:
    named = ["--queries", str(place / "queries.jsonl"), "--index", str(place / "bm25s"), "-o", str(output)]
    return ["rerank-queries", "label", str(source or place / "expansions.jsonl"), *named, *more]


def label(place: Path, output: Path, *more: str, source: Path | None = None) -> list[dict]:
    app([*arguments(place, output, *more, source=source), "-q"], standalone_mode=False)
    return read_rows(output)


def test_the_rank_is_that_of_the_first_passage_with_an_answer(place: Path, tmp_path: Path) -> None:
    rows = label(place, tmp_path / "out")
    assert [row["rank"] for row in rows] == [RANKS[row["made"]] for row in make_collection()[2]]
    labels = {"rank": 0, "top1": 0, "depth": 100}  # and how deep was looked, which is to survive cat
    assert [{**row, "rank": 0, "top1": 0} for row in rows] == [{**row, **labels} for row in make_collection()[2]]
    first = {row["_id"]: row for row in rows}
    assert first["q0#sentence#01"]["top1"] == {"title": "About0", "text": "key0 ans0 of a long story told here"}
    assert first["q0#sentence#03"]["top1"] == {"title": "Also0", "text": "key0 told"}  # middling: the answer is second
    assert first["q0#sentence#02"]["top1"] == {"title": "", "text": ""}  # nothing is found


def test_depth_and_max_rank_say_what_counts_as_not_found(place: Path, tmp_path: Path) -> None:
    rows = label(place, tmp_path / "out", "--depth", "1", "--set", "max_rank=250", "--set", "top1=false")
    wanted = {"good": 1, "middling": 250, "bad": 250, "nothing": 250}
    assert [row["rank"] for row in rows] == [wanted[row["made"]] for row in make_collection()[2]]
    assert {row["depth"] for row in rows} == {1}
    again = label(
        place, tmp_path / "again", "--set", "top1=false", source=tmp_path / "out"
    )  # what was said before is replaced
    assert {(row["depth"], row["made"], row["rank"]) for row in again} == {(100, *each) for each in RANKS.items()}
    assert not any("top1" in row for row in rows)


def test_titles_are_looked_into_on_request_alone(place: Path, tmp_path: Path) -> None:
    asked = [{"_id": "q0", "text": "which?", "answers": ["also0"]}]
    write_rows(tmp_path / "asked", asked)
    source = write_rows(tmp_path / "in", [{"_id": "e", "query_id": "q0", "kind": "answer", "text": "key0"}])
    named = ("--queries", str(tmp_path / "asked"))
    assert label(place, tmp_path / "text", *named, source=source)[0]["rank"] == 101
    assert label(place, tmp_path / "title", *named, "--set", "match_title=true", source=source)[0]["rank"] == 1


def test_answers_may_be_patterns(place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path / "asked", [{"_id": "q0", "text": "which?", "answers": ["ANS[0-9]$", "a[", "ans0 of"]}])
    source = write_rows(tmp_path / "in", [{"_id": "e", "query_id": "q0", "kind": "answer", "text": "key0"}])
    rows = label(place, tmp_path / "out", "--queries", str(tmp_path / "asked"), "--match", "regex", source=source)
    assert rows[0]["rank"] == 2
    assert "query 'q0': 'a[' is not a valid regular expression and matches nothing" in capfd.readouterr().err


def test_equal_queries_of_a_window_are_searched_once_and_the_rate_is_told(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    app(arguments(place, tmp_path / "out"), standalone_mode=False)
    counts = json.loads((tmp_path / "out.meta.json").read_text())["counts"]
    # 24 questions, 3 kinds of 4: a quality's text has one of two words, by its place
    texts = {(row["query_id"], row["text"]) for row in make_collection()[2]}
    assert counts["in"] == counts["out"] == 288
    assert counts["searched"] == len(texts) < 288
    assert counts["find an answer"] == 144
    said = capfd.readouterr().err
    assert f"rerank-queries label: {len(texts):,} queries searched, " in said
    assert "queries/s with their answers" in said


@pytest.fixture(scope="module")
def lucene(place: Path) -> Path:
    """The world in an index of Lucene's."""
    skip_without_lucene()
    folder = place / "lucene"
    app(["index", str(place / "corpus.jsonl"), "--type", "bm25", "-o", str(folder), "-q"], standalone_mode=False)
    return folder


def test_lucene_gives_the_labels_that_bm25s_gives(lucene: Path, place: Path, tmp_path: Path) -> None:
    mine = label(place, tmp_path / "out", "--index", str(lucene))
    assert mine == read_rows(label_expansions(place))


def test_a_resumed_run_equals_the_uninterrupted_one(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ["--batch-size", "7"]
    whole = label(place, tmp_path / "whole", *more)
    rank = Labeler._label
    done = []

    def fail(self: Labeler, *given: Any) -> Any:
        done.append(1)
        if len(done) == 20:
            raise DrtkError("power failure")
        return rank(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Labeler, "_label", fail)
        with pytest.raises(DrtkError, match="power failure"):
            label(place, tmp_path / "out", *more)
    assert read_json(tmp_path / "out.part.json")["records"] == 19 * 7
    assert label(place, tmp_path / "out", *more, "--resume") == whole
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ({"text": "which?"}, "query 'q0' has no answers, which are required to label candidates"),
        ({"text": "which?", "answers": []}, "query 'q0' has no answers, which are required to label candidates"),
        ({"text": "which?", "answers": ["", " "]}, "none of the answers of query 'q0' can be matched"),
    ],
)
def test_questions_without_answers_are_refused_where_they_are_expanded(
    place: Path, tmp_path: Path, question: dict, told: str
) -> None:
    write_rows(tmp_path / "asked", [{"_id": "q1", "text": "a", "answers": ["b"]}, {"_id": "q0", **question}])
    rows = [{"_id": f"e{n}", "query_id": f"q{n}", "kind": "answer", "text": "key0"} for n in (1, 0)]
    source = write_rows(tmp_path / "in", rows)
    with pytest.raises(RecordError, match=f"in:2: {told}"):
        label(place, tmp_path / "out", "--queries", str(tmp_path / "asked"), source=source)
    named = ("--queries", str(tmp_path / "asked"), "--skip-bad", "1", "--force")
    assert len(label(place, tmp_path / "out", *named, source=source)) == 1


def test_invalid_patterns_alone_are_no_answers(place: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "asked", [{"_id": "q0", "text": "which?", "answers": ["a["]}])
    source = write_rows(tmp_path / "in", [{"_id": "e", "query_id": "q0", "kind": "answer", "text": "key0"}])
    with pytest.raises(RecordError, match="in:1: none of the answers of query 'q0' can be matched"):
        label(place, tmp_path / "out", "--queries", str(tmp_path / "asked"), "--match", "regex", source=source)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"query_id": "q99", "kind": "answer", "text": "a"}, "in:1: the queries have no 'q99'"),
        ({"query_id": "q1", "kind": "answer", "text": " "}, "in:1: 'text' is empty"),
        (
            {"query_id": "q1", "kind": "a/b", "text": "a"},
            "in:1: 'kind' 'a/b' must be one word, usable as a file name",
        ),
        ({"query_id": "q1", "text": "a"}, "in:1: 'kind' is missing"),
    ],
)
def test_bad_candidates_are_named(place: Path, tmp_path: Path, row: dict, told: str) -> None:
    with pytest.raises(RecordError, match=told):
        label(place, tmp_path / "out", source=write_rows(tmp_path / "in", [{"_id": "e", **row}]))
    assert not (tmp_path / "out").exists()


def test_an_index_without_its_passages_is_refused(place: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "moved.jsonl"
    corpus.write_bytes((place / "corpus.jsonl").read_bytes())
    app(["index", str(corpus), "--type", "bm25s", "-o", str(tmp_path / "index"), "-q"], standalone_mode=False)
    corpus.unlink()
    named = ("--index", str(tmp_path / "index"))
    with pytest.raises(MismatchError, match=r"index: corpus .*moved\.jsonl does not exist; give `corpus`"):
        label(place, tmp_path / "out", *named)
    write_rows(tmp_path / "other.jsonl", [{"_id": "d0", "text": "a"}])
    with pytest.raises(MismatchError, match=r"other\.jsonl: has no passage 'd?x?\d+' of index"):
        label(place, tmp_path / "out", *named, "--corpus", str(tmp_path / "other.jsonl"))
    assert len(label(place, tmp_path / "out", *named, "--corpus", str(place / "corpus.jsonl"), "--force")) == 288


def test_a_corpus_whose_passages_have_no_text_finds_no_answers_and_is_told(
    place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # The same ids, so that nothing is missing; yet no answer could ever be found.
    passages = read_rows(place / "corpus.jsonl")
    bare = write_rows(tmp_path / "bare.jsonl", [row | {"text": " "} for row in passages])
    told = r"bare\.jsonl: none of the \d+ passages that were read has a text; check that it is the right file"
    with pytest.raises(DrtkError, match=told):
        label(place, tmp_path / "out", "--corpus", str(bare))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bare.jsonl"]
    assert (
        len(label(place, tmp_path / "out", "--corpus", str(bare), "--set", "match_title=true")) == 288
    )  # titles are looked into
    some = write_rows(tmp_path / "some.jsonl", [row | {"text": row["text"] * (row["_id"] != "x0")} for row in passages])
    source = write_rows(tmp_path / "in", [{"_id": "e", "query_id": "q0", "kind": "answer", "text": "key0"}])
    rows = label(place, tmp_path / "other", "--corpus", str(some), source=source)
    assert rows[0]["rank"] == 2  # x0 and d0 have the word: both are looked into
    assert "some.jsonl: 1 of the 2 passages that were read have no text" in capfd.readouterr().err


def test_a_max_rank_that_is_a_real_rank_is_rejected(place: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`max_rank` 100: must be above `depth`, 100"):
        label(place, tmp_path / "out", "--set", "max_rank=100")
    with pytest.raises(DrtkError, match="nowhere"):
        label(place, tmp_path / "out", "--index", str(tmp_path / "nowhere"))


def test_a_java_that_does_not_start_is_reported_on_one_line(lucene: Path, place: Path, tmp_path: Path) -> None:
    # With this heap Java prints two lines of its own and calls exit() without an exception.
    done = subprocess.run(
        [sys.executable, "-m", "drtk", *arguments(place, tmp_path / "out", "--index", str(lucene)), "-q"],
        env={**os.environ, "DRTK_JAVA_OPTIONS": "-Xmx1k"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert line.startswith("drtk: Java ")
    assert "does not start: Error occurred during initialization of VM: Too small maximum heap" in line
    assert line.endswith("; check $DRTK_JAVA_OPTIONS and run drtk doctor")
    assert not list(tmp_path.iterdir())
