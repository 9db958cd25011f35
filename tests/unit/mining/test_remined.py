"""Examples mined anew: all lines of a query count, wherever in the file they are, and a positive's score is its own."""

from __future__ import annotations

import gzip
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from drtk.cli.main import app
from drtk.errors import RecordError
from drtk.runtime.inputs import Intake
from tests.running import command, piped, write

TEVATRON = ["--policy", "tevatron"]


def line(query: str, positives: str, negatives: str, **more: Any) -> str:
    row = {"query_id": query, "positives": positives.split(), "negatives": negatives.split(), **more}
    return json.dumps(row) + "\n"


# Two files one after the other, as UNION=yes makes them: the second positive of q1 is a negative of its first line.
FIRST = line("q1", "doc#0", "x#3") + line("q2", "y#0", "y#2 y#3")
UNION = FIRST + line("q1", "x#1", "x#4") + line("q2", "y#0", "y#2 y#4")


def rows_of(printed: str) -> dict[str, dict[str, Any]]:
    rows = [json.loads(row) for row in printed.splitlines()]
    assert len({row["query_id"] for row in rows}) == len(rows)  # one line a query
    return {row["query_id"]: row for row in rows}


def sides(row: dict[str, Any]) -> tuple[list[str], list[str]]:
    return row["positives"], sorted(row["negatives"])


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "union.jsonl", UNION)
    # Every passage has the word of both queries: each query finds all eight.
    ids = ["doc#0", "x#1", "x#3", "x#4", "y#0", "y#2", "y#3", "y#4"]
    write(tmp_path / "corpus.jsonl", "".join(json.dumps({"_id": id, "text": "apple"}) + "\n" for id in ids))
    write(tmp_path / "queries.jsonl", "".join(json.dumps({"_id": q, "text": "apple"}) + "\n" for q in ("q1", "q2")))
    return tmp_path


def test_all_lines_of_a_query_make_one_example_and_no_positive_of_any_is_a_negative(
    world: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = rows_of(command(capfd, "mine-negatives", "-q", "union.jsonl", *TEVATRON))
    assert list(found) == ["q1", "q2"]  # where the first line of each stands
    assert sides(found["q1"]) == (["doc#0", "x#1"], ["x#3", "x#4"])
    assert sides(found["q2"]) == (["y#0"], ["y#2", "y#3", "y#4"])


def test_they_do_so_beside_a_run_wherever_it_is_named(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(world / "c.run", "q1 Q0 x#1 1 3 t\nq1 Q0 x#5 2 2 t\nq1 Q0 doc#0 3 1 t\n")
    for sources in (["union.jsonl", "c.run"], ["c.run", "union.jsonl"]):
        found = rows_of(command(capfd, "mine-negatives", "-q", *sources, *TEVATRON))
        assert sides(found["q1"]) == (["doc#0", "x#1"], ["x#3", "x#4", "x#5"])
        assert sides(found["q2"]) == (["y#0"], ["y#2", "y#3", "y#4"])


def test_they_do_so_beside_an_index_and_no_query_is_said_to_lack(
    world: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command(capfd, "index", "corpus.jsonl", "--type", "bm25s", "-o", "index", "-q")
    call = ["mine-negatives", "index", "union.jsonl", "--queries", "queries.jsonl", *TEVATRON, "-o", "out.jsonl"]
    app(call, standalone_mode=False)
    assert "not_in_queries" not in capfd.readouterr().err
    assert "not_in_queries" not in json.loads((world / "out.jsonl.meta.json").read_text())["counts"]
    found = rows_of((world / "out.jsonl").read_text())
    assert sides(found["q1"]) == (["doc#0", "x#1"], ["x#3", "x#4", "y#0", "y#2", "y#3", "y#4"])
    assert sides(found["q2"]) == (["y#0"], ["doc#0", "x#1", "x#3", "x#4", "y#2", "y#3", "y#4"])


def test_a_stream_is_read_as_a_file_is(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole = command(capfd, "mine-negatives", "-q", "union.jsonl", *TEVATRON, "--source-name", "u")
    for content in (UNION.encode(), gzip.compress(UNION.encode())):
        with piped(content) as source:
            assert command(capfd, "mine-negatives", "-q", source, *TEVATRON, "--source-name", "u") == whole
    write(world / "array.json", json.dumps([json.loads(row) for row in UNION.splitlines()]))
    assert command(capfd, "mine-negatives", "-q", "array.json", *TEVATRON, "--source-name", "u") == whole


def test_sources_scores_and_fields_of_all_lines_are_kept(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    scores = [{"positives": [9.0], "negatives": [1.0, 5.0]}, {"positives": [8.0], "negatives": [3.0, 2.0]}]
    first = line("q", "p", "a r", sources={"negatives": ["bm25", "random"]}, scores=scores[0], x=1)
    second = line("q", "r", "b s", sources={"negatives": ["dense", "random"]}, scores=scores[1], z=2)
    write(world / "two.jsonl", first + second)
    row = rows_of(command(capfd, "mine-negatives", "-q", "two.jsonl", *TEVATRON))["q"]
    assert (row["x"], row["z"]) == (1, 2)
    assert row["positives"] == ["p", "r"]
    assert row["scores"]["positives"] == [9.0, 8.0]  # not the 5 that r had as a negative
    told = zip(row["negatives"], row["sources"]["negatives"], row["scores"]["negatives"], strict=True)
    assert sorted(told) == [("a", "bm25", 1.0), ("b", "dense", 3.0), ("s", "random", 2.0)]


def test_two_files_with_systems_of_one_name_lose_nothing(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    of = {"sources": {"negatives": ["random"]}}
    write(world / "one.jsonl", line("q", "p", "a", **of))
    write(world / "two.jsonl", line("q", "r", "b", **of))
    row = rows_of(command(capfd, "mine-negatives", "-q", "one.jsonl", "two.jsonl", *TEVATRON))["q"]
    assert sides(row) == (["p", "r"], ["a", "b"])


def test_faults_of_further_lines_have_their_place_and_can_be_forgiven(
    world: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(world / "union.jsonl", FIRST + "\n" + line("q1", "", "x#4") + line("q1", "x#1", "x#4"))
    with pytest.raises(RecordError, match=r"^union\.jsonl:4: 'positives' is empty$"):
        command(capfd, "mine-negatives", "-q", "union.jsonl", *TEVATRON)
    found = rows_of(command(capfd, "mine-negatives", "-q", "union.jsonl", *TEVATRON, "--skip-bad", "1"))
    assert sides(found["q1"]) == (["doc#0", "x#1"], ["x#3", "x#4"])
    write(
        world / "union.jsonl", line("q1", "", "x#3") + UNION
    )  # a first line that is bad does not take the others along
    found = rows_of(command(capfd, "mine-negatives", "-q", "union.jsonl", *TEVATRON, "--skip-bad", "1"))
    assert sides(found["q1"]) == (["doc#0", "x#1"], ["x#3", "x#4"])
    write(world / "union.jsonl", UNION + line("q2", "y#0", "zz"))
    with pytest.raises(RecordError, match=r"^union\.jsonl:5: passage 'zz' is not in the corpus$"):
        command(capfd, "mine-negatives", "-q", "union.jsonl", *TEVATRON, "--corpus", "corpus.jsonl")


def test_further_lines_are_held_only_as_far_as_they_come_too_early() -> None:
    from drtk.mining.from_examples import Later, Remined

    # the order of the second file is that of the first but for c, which comes before b
    lines = [(name, Remined({}, (f"{name}2",), {}, {})) for name in "acbd"]
    later = Later(iter(lines), dict.fromkeys("abcd", 1))
    held = []
    for name in "abcd":
        assert [one and one.positives for one in later.take(name)] == [(f"{name}2",)]
        held.append(sorted(later.held))
    assert held == [[], ["c"], [], []]


def test_an_interrupted_run_goes_on_with_what_it_would_have_made(
    world: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from drtk.mining.mine import Mining

    class KilledError(BaseException):
        pass

    mine = Mining.examples
    windows: list[int] = []

    def once(self: Mining, window: Any, **options: Any) -> Any:
        windows.append(len(window))
        if len(windows) == 2:
            raise KilledError
        return mine(self, window, **options)

    monkeypatch.setattr(import_module("drtk.cli.mine_negatives"), "WINDOW", 1)
    call = ["mine-negatives", "union.jsonl", *TEVATRON, "-o", "out.jsonl"]
    with monkeypatch.context() as patch:
        patch.setattr(Mining, "examples", once)
        with pytest.raises(KilledError):
            command(capfd, *call)
    app([*call, "--resume"], standalone_mode=False)
    assert "resuming out.jsonl after 1 records" in capfd.readouterr().err
    assert (world / "out.jsonl").read_text() == command(capfd, "mine-negatives", "-q", "union.jsonl", *TEVATRON)


def test_a_file_that_was_read_thrice_is_one_input(world: Path) -> None:
    from drtk.mining.from_examples import example_items

    intake = Intake()
    assert [query for query, _ in example_items("u", "union.jsonl", None, intake)] == ["q1", "q2"]
    (entry,) = intake.inputs
    assert entry["bytes"] == len(UNION)
    assert entry["digest"]


def test_a_positives_score_is_its_own_where_a_system_has_it_with_another(
    world: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # the limit is 8 - 3 = 5, though bm25's list gives the positive 1: 4.5 stays and 5.5 goes
    negatives = [{"pid": id, "ce-score": score} for id, score in (("p", 1.0), ("a", 4.5), ("b", 5.5))]
    row = {"qid": "q", "pos": [{"pid": "p", "ce-score": 8.0}], "neg": {"bm25": negatives}}
    write(world / "hard.jsonl", json.dumps(row) + "\n")
    found = rows_of(command(capfd, "mine-negatives", "-q", "hard.jsonl", "--policy", "sbert"))["q"]
    assert sides(found) == (["p"], ["a"])
    assert found["scores"] == {"positives": [8.0], "negatives": [4.5]}
