"""The published recipes: their figures, the answers of NQ, and the systems of the sentence-transformers file."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from drtk.errors import DrtkError, UsageError
from drtk.mining.policies import MSMARCO, NQ, SBERT, TEVATRON, first_of_each
from drtk.mining.pool import Sighting
from tests.running import command, write


def test_the_figures_are_those_of_the_recipes() -> None:
    assert (MSMARCO.depth, MSMARCO.keep, MSMARCO.floor) == (200, 200, 210)
    assert (TEVATRON.depth, TEVATRON.keep, TEVATRON.floor) == (200, 128, 0)
    assert (NQ.depth, NQ.keep, NQ.answers) == (100, None, True)
    assert (SBERT.depth, SBERT.keep, SBERT.ce_margin) == (None, 5, 3.0)


def sightings(source: str, *ids: str) -> list[Sighting]:
    return [Sighting(id, source, rank, None) for rank, id in enumerate(ids, start=1)]


def test_each_system_gives_its_first_that_no_earlier_one_gave() -> None:
    found = first_of_each({"a": sightings("a", "1", "2", "3"), "b": sightings("b", "2", "4", "1", "5")}, 2, Random(0))
    assert [(one.id, one.source) for one in found] == [("1", "a"), ("2", "a"), ("4", "b"), ("5", "b")]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """q1: gold d0; d1 and d4 hold the answer as well. q2: nothing holds its answer. q3: everything does. q4: no answers."""
    texts = ["Paris is in France", "he went to Paris", "Berlin", "the parish", "PARIS!", "Rome"]
    rows = [{"_id": f"d{at}", "title": "Paris", "text": text} for at, text in enumerate(texts)]
    write(tmp_path / "corpus.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    answers = {"q1": ["Paris"], "q2": ["Oslo"], "q3": ["in", "he", "Berlin", "the", "Paris", "Rome"], "q4": []}
    write(
        tmp_path / "queries.jsonl",
        "".join(json.dumps({"_id": id, "text": "where", "answers": found}) + "\n" for id, found in answers.items()),
    )
    order = [3, 4, 2, 1, 0, 5]
    write(
        tmp_path / "bm25.run",
        "".join(f"q{q} Q0 d{d} {rank} {9 - rank} t\n" for q in range(1, 5) for rank, d in enumerate(order, start=1)),
    )
    write(tmp_path / "gold.tsv", "q1\td0\t1\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


NQ_CALL = ["mine-negatives", "bm25.run", "--policy", "nq", "--queries", "queries.jsonl", "--corpus", "corpus.jsonl"]


def test_answers_make_positives_the_gold_passage_first_and_the_rest_negatives(
    world: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command(capfd, *NQ_CALL, "--qrels", "gold.tsv", "-o", "nq.jsonl")
    (row,) = map(json.loads, (world / "nq.jsonl").read_text().splitlines())
    assert row["query_id"] == "q1"
    assert row["positives"] == ["d0", "d4", "d1"]  # gold, then by rank; the titles hold the answer and do not count
    assert sorted(row["negatives"]) == ["d2", "d3", "d5"]  # "parish" is no match for "Paris"
    counts = json.loads((world / "nq.jsonl.meta.json").read_text())["counts"]
    assert {name: counts[name] for name in ("without_positives", "without_negatives", "without_answers")} == {
        "without_positives": 1,  # q2
        "without_negatives": 1,  # q3
        "without_answers": 1,  # q4
    }
    assert counts["passages"]["became_positives"] == 2 + 6  # of q1, and all of q3


def test_without_judgements_answers_alone_make_positives(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (line,) = command(capfd, *NQ_CALL, "-q").splitlines()
    assert json.loads(line)["positives"] == ["d4", "d1", "d0"]
    (line,) = command(capfd, *NQ_CALL, "-q", "--depth", "3").splitlines()
    assert json.loads(line)["positives"] == ["d4"]


def test_random_passages_hold_no_answer_either(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    printed = command(capfd, *NQ_CALL, "-q", "--depth", "2", "--floor", "10").splitlines()
    first = json.loads(printed[0])
    assert first["positives"] == ["d4"]
    assert sorted(first["negatives"]) == ["d2", "d3", "d5"]  # d0 and d1 were refused, though nobody retrieved them


def test_what_the_answer_policy_needs_is_named(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        UsageError, match="--policy nq looks for answers: --queries FILE has them, --corpus FILE the texts"
    ):
        command(capfd, *NQ_CALL[:4])
    with pytest.raises(UsageError, match="--qrels FILE says what is positive"):
        command(capfd, "mine-negatives", "bm25.run")


HARD = {
    "qid": 7,
    "pos": [{"pid": 1, "ce-score": 9.0}, {"pid": 2, "ce-score": 8.0}],
    "neg": {
        "bm25": [{"pid": 10 + at, "ce-score": score} for at, score in enumerate([5.1, 5.0, 4, 3, 2, 1, 0])],
        "dense": [{"pid": id, "ce-score": score} for id, score in [(10, 5.1), (12, 4), (16, 0), (30, -1), (1, 9.0)]],
    },
}


def test_the_file_of_sentence_transformers_gives_five_of_each_system_three_below_the_positives(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # the lowest positive has 8: up to 8 - 3 = 5. bm25: 10 (5.1) goes, 11 (5.0) to 15 are five; dense: 12 is taken, 16 and 30
    write(tmp_path / "hard.jsonl", json.dumps(HARD) + "\n")
    (line,) = command(capfd, "mine-negatives", "-q", tmp_path / "hard.jsonl", "--policy", "sbert").splitlines()
    row = json.loads(line)
    assert row["positives"] == ["1", "2"]
    assert row["negatives"] == ["11", "12", "13", "14", "15", "16", "30"]
    assert row["sources"]["negatives"] == ["bm25"] * 5 + ["dense"] * 2
    assert row["scores"] == {"positives": [9.0, 8.0], "negatives": [5.0, 4.0, 3.0, 2.0, 1.0, 0.0, -1.0]}


def test_margin_and_number_can_be_others(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "hard.jsonl", json.dumps(HARD) + "\n")
    call = ["mine-negatives", "-q", str(tmp_path / "hard.jsonl"), "--policy", "sbert"]
    row = json.loads(command(capfd, *call, "--ce-margin", "2.5", "--keep", "1"))
    assert row["negatives"] == ["10", "12"]  # 8 - 2.5 = 5.5 lets 10 in; dense gives the first that bm25 did not


def test_scores_that_lack_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plain = {"qid": 7, "pos": [1], "neg": {"bm25": [2, 3]}}
    write(tmp_path / "hard.jsonl", json.dumps(plain) + "\n")
    with pytest.raises(DrtkError, match="query '7': passage '1' has no score of a cross-encoder; --scorer MODEL"):
        command(capfd, "mine-negatives", "-q", tmp_path / "hard.jsonl", "--policy", "sbert")
    write(tmp_path / "bm25.run", "7 Q0 2 1 3 t\n")
    write(tmp_path / "qrels", "7 0 1 1\n")
    with pytest.raises(UsageError, match="--policy sbert goes by scores of a cross-encoder"):
        command(capfd, "mine-negatives", tmp_path / "bm25.run", "--qrels", tmp_path / "qrels", "--policy", "sbert")


def test_texts_that_are_missing_are_the_cause_that_is_told(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [json.loads(line) for line in (world / "corpus.jsonl").read_text().splitlines()]
    write(world / "corpus.jsonl", "".join(json.dumps(row | {"text": " "}) + "\n" for row in rows))
    # of q1, q2 and q3, as q4 has no answers to look for; d0 is no candidate of q1 where it is judged
    with pytest.raises(DrtkError, match=r"corpus.jsonl: none of the 18 passages looked up there has a text: is it the"):
        command(capfd, *NQ_CALL)
    with pytest.raises(DrtkError, match=r"corpus.jsonl: none of the 17 passages looked up there has a text: is it the"):
        command(capfd, *NQ_CALL, "--qrels", "gold.tsv")  # q1 has a positive, and would have false negatives
    write(
        world / "corpus.jsonl",
        "".join(json.dumps(row | {"text": row["text"] * (at > 1)}) + "\n" for at, row in enumerate(rows)),
    )
    capfd.readouterr()
    command(capfd, *NQ_CALL, "-o", "nq.jsonl", "-q")
    counts = json.loads((world / "nq.jsonl.meta.json").read_text())["counts"]
    assert counts["looked into for answers"] == {"passages": 18, "without a text": 6}  # d0 and d1, of three questions
