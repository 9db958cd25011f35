"""drtk eval --answers and --exact-match: known answers through the command line, and input that does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from tests.data import shared_data
from tests.running import command, write
from tests.unit.text.test_answers import BEYONCE, DPR_TABLE


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(*objects: object) -> str:
    return "".join(json.dumps(item) + "\n" for item in objects)


def values(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, float]:
    printed = command(capfd, "eval", "-q", *arguments, "--format", "jsonl")
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
    return found


def test_top_k_accuracy_of_four_questions(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # the first passage with the answer stands at ranks 1, 15, 101, 3: top-1 1/4, top-5 2/4, top-20 3/4, top-100 3/4
    firsts = {"q1": 1, "q2": 15, "q3": 101, "q4": 3}
    write(
        here / "c.jsonl",
        rows({"_id": "yes", "text": "It is Paris."}, *({"_id": f"d{n}", "text": "no"} for n in range(120))),
    )
    write(here / "q.jsonl", rows(*({"id": id, "question": "where?", "answers": ["paris", ""]} for id in firsts)))
    lines = []
    for id, first in firsts.items():
        docs = [f"d{n}" for n in range(105)]
        docs.insert(first - 1, "yes")
        lines += [f"{id} Q0 {doc} {rank} {200 - rank} t\n" for rank, doc in enumerate(docs, start=1)]
    write(here / "a.run", "".join(lines))
    arguments = ["a.run", "--answers", "q.jsonl", "--corpus", "c.jsonl"]
    for workers in ("1", "2"):
        found = values(capfd, *arguments, "--workers", workers)
        assert [found[f"Answer@{k}"] for k in (1, 5, 20, 100)] == [0.25, 0.5, 0.75, 0.75]
    # RR looks at everything: (1 + 1/15 + 1/101 + 1/3) / 4
    assert values(capfd, *arguments, "--measures", "RR Hit@20")["RR"] == pytest.approx(
        (1 + 1 / 15 + 1 / 101 + 1 / 3) / 4
    )
    assert values(capfd, *arguments, "--depth", "2")["Answer@5"] == 0.25


@pytest.mark.parametrize(("answer", "text", "contained"), DPR_TABLE)
def test_dprs_table_through_the_command(
    here: Path, capfd: pytest.CaptureFixture[str], answer: str, text: str, contained: bool
) -> None:
    write(here / "c.jsonl", rows({"_id": "d", "text": text}))
    write(here / "q.jsonl", rows({"id": "q", "question": "?", "answers": [answer]}))
    write(here / "a.run", "q Q0 d 1 1 t\n")
    found = values(capfd, "a.run", "--answers", "q.jsonl", "--corpus", "c.jsonl", "--measures", "Answer@1")
    assert found["Answer@1"] == float(contained)


def test_titles_count_only_where_asked_for(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(here / "c.jsonl", rows({"_id": "d", "title": "Paris", "text": "A city."}))
    write(here / "q.jsonl", rows({"id": "q", "question": "?", "answers": ["Paris"]}))
    write(here / "a.run", "q Q0 d 1 1 t\n")
    arguments = ["a.run", "--answers", "q.jsonl", "--corpus", "c.jsonl", "--measures", "Answer@1"]
    assert values(capfd, *arguments)["Answer@1"] == 0
    assert values(capfd, *arguments, "--match-title")["Answer@1"] == 1


def test_patterns_for_curated_trec(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(here / "c.jsonl", rows({"_id": "d", "text": "born in 1984"}))
    write(here / "q.jsonl", rows({"id": "q", "question": "?", "answers": [r"19\d\d", "("]}))
    write(here / "a.run", "q Q0 d 1 1 t\n")
    arguments = ["a.run", "--answers", "q.jsonl", "--corpus", "c.jsonl", "--measures", "Answer@1"]
    assert values(capfd, *arguments)["Answer@1"] == 0
    assert values(capfd, *arguments, "--match", "regex")["Answer@1"] == 1
    app(["eval", *arguments, "--match", "regex"], standalone_mode=False)
    assert "q.jsonl:1: '(' is no regular expression and matches nothing" in capfd.readouterr().err


def test_questions_that_lack_a_ranking_or_an_answer_are_told(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # q1 is right, q2 is not in the run, q3 has no answer: 1/2, or 1/1 of those in the run
    write(here / "c.jsonl", rows({"_id": "d", "text": "Paris"}))
    questions = [("q1", ["Paris"]), ("q2", ["Rome"]), ("q3", [""])]
    write(here / "q.jsonl", rows(*({"id": id, "question": "?", "answers": a} for id, a in questions)))
    write(here / "a.run", "q1 Q0 d 1 1 t\nq9 Q0 d 1 1 t\n")
    arguments = ["a.run", "--answers", "q.jsonl", "--corpus", "c.jsonl", "--measures", "Answer@1"]
    assert command(capfd, "eval", "-q", *arguments).split()[-1] == "0.5000"
    assert command(capfd, "eval", "-q", *arguments, "--retrieved-only").split()[-1] == "1.0000"
    capfd.readouterr()
    app(["eval", *arguments, "-v"], standalone_mode=False)
    told = capfd.readouterr().err
    assert "q.jsonl: 1 of 3 questions have no answer and are left out" in told
    assert "a: 1 query of 2 with answers not in the run, counted as 0" in told
    assert "a: 1 query of the run without answers left out" in told
    assert "judge" not in told


def test_a_run_of_other_questions_is_told_in_words_of_answers(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(here / "c.jsonl", rows({"_id": "d", "text": "Paris"}))
    write(here / "q.jsonl", rows({"id": "q1", "question": "?", "answers": ["Paris"]}))
    write(here / "a.run", "x7 Q0 d 1 1 t\n")
    told = r"^a\.run: no query has answers; it has 'x7', the questions have 'q1'$"
    write(here / "b.run", "q1 Q0 d 1 1 t\n")
    for call in (["eval", "a.run"], ["compare", "a.run", "b.run"]):
        with pytest.raises(MismatchError, match=told):
            command(capfd, *call, "--answers", "q.jsonl", "--corpus", "c.jsonl")


def test_runs_that_lack_questions_are_compared_in_words_of_answers(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # both runs lack q3; a run whose first right passage another one has not is no reason to speak of judged documents
    write(here / "c.jsonl", rows({"_id": "d#1", "text": "Paris"}, {"_id": "d#2", "text": "none"}))
    write(here / "q.jsonl", rows(*({"id": f"q{n}", "question": "?", "answers": ["Paris"]} for n in (1, 2, 3))))
    write(here / "a.run", "q1 Q0 d#1 1 1 t\nq2 Q0 d#1 1 1 t\n")
    write(here / "b.run", "q1 Q0 d#2 1 1 t\nq2 Q0 d#2 1 1 t\n")
    arguments = ["--answers", "q.jsonl", "--corpus", "c.jsonl"]
    app(["compare", "a.run", "b.run", *arguments, "-v"], standalone_mode=False)
    told = capfd.readouterr().err
    assert "a: 1 query of 3 with answers not in the run, counted as 0" in told
    assert "judge" not in told
    write(here / "b.run", "q1 Q0 d#2 1 1 t\n")
    with pytest.raises(MismatchError, match="b: lacks 1 queries with answers that other runs have"):
        command(capfd, "compare", "a.run", "b.run", *arguments)


def test_questions_without_a_prediction_are_told_as_such(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(here / "q.jsonl", rows(*({"id": f"q{n}", "question": "?", "answers": ["Paris"]} for n in (1, 2))))
    write(here / "p.jsonl", rows({"query_id": "q1", "answer": "Paris"}))
    app(["eval", "p.jsonl", "--exact-match", "--answers", "q.jsonl"], standalone_mode=False)
    assert "p: 1 query of 2 with answers not among the predictions, counted as 0" in capfd.readouterr().err


def test_a_passage_that_the_corpus_lacks_is_named_with_its_line(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(here / "c.jsonl", rows({"_id": "d", "text": "no"}))
    write(here / "q.jsonl", rows({"id": "q", "question": "?", "answers": ["Paris"]}))
    write(here / "a.run", "q Q0 d 1 2 t\nq Q0 gone 2 1 t\n")
    with pytest.raises(MismatchError, match=r"^a\.run:2: passage 'gone' is not in the corpus c\.jsonl$"):
        command(capfd, "eval", "a.run", "--answers", "q.jsonl", "--corpus", "c.jsonl")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--answers", "q.jsonl"], "--corpus FILE"),
        (["--answers", "q.jsonl", "--corpus", "c.jsonl", "--qrels", "q.jsonl"], "judged by one of them"),
        (["--answers", "q.jsonl", "--corpus", "c.jsonl", "--measures", "nDCG@10"], "nDCG@10 needs judgements"),
        (["--answers", "q.jsonl", "--corpus", "c.jsonl", "--measures", "R@10"], "R@10 needs judgements"),
        (["--answers", "q.jsonl", "--corpus", "c.jsonl", "--measures", "Answer"], "Answer@20"),
        (["--answers", "q.jsonl", "--corpus", "c.jsonl", "--by", "source"], "--by source"),
        (["--qrels", "q.jsonl", "--measures", "Answer@1"], "needs --answers FILE"),
        (["--exact-match"], "--answers FILE"),
        (["--exact-match", "--answers", "q.jsonl", "--measures", "RR"], "choose from EM, F1"),
        ([], "--qrels FILE or --answers FILE"),
    ],
)
def test_what_does_not_go_together_is_said(
    here: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    write(here / "c.jsonl", rows({"_id": "d", "text": "no"}))
    write(here / "q.jsonl", rows({"id": "q", "question": "?", "answers": ["Paris"]}))
    write(here / "a.run", "q Q0 d 1 2 t\n")
    with pytest.raises(UsageError, match=said.replace("?", r"\?")):
        command(capfd, "eval", "a.run", *arguments)


def test_questions_without_any_answer_are_a_fault(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(here / "c.jsonl", rows({"_id": "d", "text": "no"}))
    write(here / "q.jsonl", rows({"id": "q", "question": "?"}))
    write(here / "a.run", "q Q0 d 1 2 t\n")
    with pytest.raises(DrtkError, match="no question has an answer"):
        command(capfd, "eval", "a.run", "--answers", "q.jsonl", "--corpus", "c.jsonl")


EXACT = [("U.S.", "US", 1), ("1,000", "1000", 1), ("rock-n-roll", "rocknroll", 1), ("rock n roll", "rock-n-roll", 0),
         (BEYONCE, "Beyonce", 0), ("the", "a", 0)]  # fmt: skip


def test_exact_match_through_the_command(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # 3 of 6 are equal; the answer "a" normalises to nothing and so equals "the", which makes it 4
    write(
        here / "q.jsonl", rows(*({"id": f"q{n}", "question": "?", "answers": [a]} for n, (_, a, _) in enumerate(EXACT)))
    )
    write(here / "p.jsonl", rows(*({"query_id": f"q{n}", "answer": p} for n, (p, _, _) in enumerate(EXACT))))
    found = values(capfd, "p.jsonl", "--exact-match", "--answers", "q.jsonl")
    assert found["EM"] == pytest.approx(4 / 6)
    # F1: 1, 1, 1, 0, 0, 1
    assert found["F1"] == pytest.approx(4 / 6)
    table = command(
        capfd, "eval", "-q", "p.jsonl", "--exact-match", "--answers", "q.jsonl", "--per-query", "--measures", "EM"
    )
    assert table.splitlines()[1].split() == ["p", "q0", "1.0000"]


def test_of_several_predictions_the_one_with_the_highest_score_counts(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(
        here / "q.jsonl",
        rows({"id": "q", "question": "?", "answers": ["Paris"]}, {"id": "r", "question": "?", "answers": ["x"]}),
    )
    several = [{"query_id": "q", "answer": "Rome", "score": 1}, {"query_id": "q", "answer": "Paris", "score": 2}]
    write(here / "p.jsonl", rows(*several))
    assert values(capfd, "p.jsonl", "--exact-match", "--answers", "q.jsonl")["EM"] == 0.5  # r has no prediction
    write(here / "p.jsonl", rows(*several, {"query_id": "q", "answer": "Oslo"}))
    with pytest.raises(RecordError, match=r"p\.jsonl:3: question 'q' has several predictions"):
        command(capfd, "eval", "p.jsonl", "--exact-match", "--answers", "q.jsonl")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"query_id": "q"}', "'answer' is missing"),
        ('{"answer": "x"}', "'query_id' is missing"),
        ('{"query_id": "q", "answer": "x", "score": "high"}', "'score' must be a number"),
        ('{"query_id": "q", "answer": 3}', "'answer'"),
    ],
)
def test_a_prediction_that_cannot_be_read_is_named(
    here: Path, capfd: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    write(here / "q.jsonl", rows({"id": "q", "question": "?", "answers": ["Paris"]}))
    write(here / "p.jsonl", rows({"query_id": "q", "answer": "Paris"}) + line + "\n")
    with pytest.raises(RecordError, match=rf"p\.jsonl:2: .*{said}"):
        command(capfd, "eval", "p.jsonl", "--exact-match", "--answers", "q.jsonl")


def test_the_paragraph_of_a_squad_question_contains_its_answer(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # every answer of SQuAD stands literally in its paragraph; a run of just these paragraphs is right almost everywhere:
    # where an answer begins or ends within a word, tokens do not match
    folder = shared_data("squad")
    judged = (folder / "qrels" / "dev.tsv").read_text().splitlines()[1:2001]
    write(here / "a.run", "".join(f"{q} Q0 {d} 1 1 t\n" for q, d, _ in (line.split("\t") for line in judged)))
    arguments = ["--answers", str(folder / "queries.jsonl.gz"), "--corpus", str(folder / "corpus.jsonl.gz")]
    found = values(capfd, "a.run", *arguments, "--measures", "Answer@1", "--retrieved-only")
    assert found["queries"] == 2000
    assert 0.98 < found["Answer@1"] <= 1


def test_passages_without_a_text_are_told_and_refused_where_none_has_one(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(here / "q.jsonl", rows(*({"id": f"q{n}", "question": "?", "answers": ["paris"]} for n in range(40))))
    write(here / "a.run", "".join(f"q{n} Q0 d{at} {at} {9 - at} t\n" for n in range(40) for at in (1, 2)))
    write(here / "bare.jsonl", rows(*({"_id": f"d{at}", "title": "Paris", "text": " "} for at in (1, 2))))
    call = ["a.run", "--answers", "q.jsonl", "--corpus", "bare.jsonl", "--measures", "Answer@5"]
    for workers in ("1", "2"):  # 40 questions of 2 passages each
        with pytest.raises(
            DrtkError, match=r"^bare.jsonl: none of the 80 passages looked up there has a text: is it the"
        ):
            values(capfd, *call, "--workers", workers)
    assert values(capfd, *call, "--match-title")["Answer@5"] == 1  # titles are looked into
    assert "text" not in capfd.readouterr().err
    with pytest.raises(DrtkError, match=r"^bare.jsonl: none of the 160 passages looked up there has a text"):
        command(capfd, "compare", "a.run", write(here / "b.run", (here / "a.run").read_text()), *call[1:])
    write(here / "some.jsonl", rows({"_id": "d1", "text": ""}, {"_id": "d2", "text": "It is Paris."}))
    assert values(capfd, *call[:3], "--corpus", "some.jsonl", "--measures", "Answer@1 Answer@5")["Answer@5"] == 1
    app(["eval", *call[:3], "--corpus", "some.jsonl", "-q"], standalone_mode=False)
    assert capfd.readouterr().err == "drtk: some.jsonl: 40 of the 80 passages looked up there have no text\n"
