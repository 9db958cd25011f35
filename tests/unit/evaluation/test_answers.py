"""drtk eval --answers and --exact-match, and ROUGE: known answers, rejected input."""

import json
import sys
from pathlib import Path

import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, MissingDependency, RecordError, UsageError
from drtk.evaluation.answers import compute_rouge
from tests.expansion_collection import write_rows
from tests.run_commands import Capture, get_messages, run_command, write_text
from tests.unit.text.test_answers import BEYONCE

BY_ANSWERS = ["--answers", "q.jsonl", "--corpus", "c.jsonl"]
EXACT = ["p.jsonl", "--exact-match", "--answers", "q.jsonl"]


def run_eval(capfd: Capture, *arguments: str) -> dict[str, float]:
    printed = run_command(capfd, "eval", "-q", *arguments, "--format", "jsonl")
    result: dict[str, float] = json.loads(printed.splitlines()[-1])
    return result


def write_questions(folder: Path, *answers: list[str]) -> None:
    """Write questions q0, q1, …"""
    write_rows(folder / "q.jsonl", [{"_id": f"q{n}", "text": "?", "answers": item} for n, item in enumerate(answers)])


def write_corpus(folder: Path, **texts: str) -> None:
    write_rows(folder / "c.jsonl", [{"_id": id, "text": text} for id, text in texts.items()])


def test_top_k_accuracy_of_four_questions(folder: Path, capfd: Capture) -> None:
    # the first passage with the answer has ranks 1, 15, 101, 3: top-1 1/4, top-5 2/4, top-20 3/4, top-100 3/4
    write_corpus(folder, yes="It is Paris.", **{f"d{n}": "no" for n in range(120)})
    write_questions(folder, *[["paris", ""]] * 4)
    lines = []
    for number, first in enumerate((1, 15, 101, 3)):
        docs = [f"d{n}" for n in range(105)]
        docs.insert(first - 1, "yes")
        lines += [f"q{number} Q0 {doc} {rank} {200 - rank} t\n" for rank, doc in enumerate(docs, start=1)]
    write_text(folder / "a.run", "".join(lines))
    for workers in ("1", "2"):
        result = run_eval(capfd, "a.run", *BY_ANSWERS, "--num-workers", workers)
        assert [result[f"Answer@{k}"] for k in (1, 5, 20, 100)] == [0.25, 0.5, 0.75, 0.75]
    # RR depends on all ranks: (1 + 1/15 + 1/101 + 1/3) / 4
    result = run_eval(capfd, "a.run", *BY_ANSWERS, "--measures", "RR Hit@20")
    assert result["RR"] == pytest.approx((1 + 1 / 15 + 1 / 101 + 1 / 3) / 4)
    assert run_eval(capfd, "a.run", *BY_ANSWERS, "--depth", "2")["Answer@5"] == 0.25


def test_questions_without_ranking_or_answer_are_logged(folder: Path, capfd: Capture) -> None:
    # q0 is right, q1 is not in the run, q2 has no answer: 1/2, or 1/1 of those in the run
    write_corpus(folder, d="Paris")
    write_questions(folder, ["Paris"], ["Rome"], [""])
    write_text(folder / "a.run", "q0 Q0 d 1 1 t\nq9 Q0 d 1 1 t\n")
    arguments = ["a.run", *BY_ANSWERS, "--measures", "Answer@1"]
    assert run_eval(capfd, *arguments)["Answer@1"] == 0.5
    assert run_eval(capfd, *arguments, "--set", "retrieved_only=true")["Answer@1"] == 1
    app(["eval", *arguments, "-v"], standalone_mode=False)
    messages = capfd.readouterr().err
    assert "q.jsonl: 1 of 3 questions have no answer and are ignored" in messages
    assert "a: 1 of 2 queries with answers are not in the run and count as 0" in messages
    assert "a: ignored 1 query without answers" in messages
    assert "judge" not in messages


def test_predictions_are_evaluated_by_exact_match_and_f1(folder: Path, capfd: Capture) -> None:
    # 3 of 6 are equal; "the" and "a" normalize to nothing, which makes it 4. F1: 1, 1, 1, 0, 0, 1
    pairs = [("U.S.", "US"), ("1,000", "1000"), ("rock-n-roll", "rocknroll"), ("rock n roll", "rock-n-roll"),
             (BEYONCE, "Beyonce"), ("the", "a")]  # fmt: skip
    write_questions(folder, *([answer] for _, answer in pairs))
    rows = [{"query_id": f"q{n}", "answer": text} for n, (text, _) in enumerate([*pairs, ("not asked", "")])]
    write_rows(folder / "p.jsonl", rows)
    assert "p: ignored 1 predictions for questions without answers" in get_messages(capfd, "eval -v", *EXACT)
    result = run_eval(capfd, *EXACT)
    assert (result["EM"], result["F1"]) == (pytest.approx(4 / 6), pytest.approx(4 / 6))
    table = run_command(capfd, "eval", "-q", *EXACT, "--per-query", "--measures", "EM")
    assert table.splitlines()[1].split() == ["p", "q0", "1.0000"]
    # Of several predictions, that with the highest score is evaluated.
    write_questions(folder, ["Paris"], ["x"])  # q1 has no prediction
    rome, paris = ({"query_id": "q0", "answer": text, "score": n} for n, text in enumerate(("Rome", "Paris")))
    for rows in ([rome, paris], [paris, rome | {"score": 1}]):  # of equal scores, the first wins
        write_rows(folder / "p.jsonl", rows)
        assert run_eval(capfd, *EXACT)["EM"] == 0.5
    write_rows(folder / "p.jsonl", [rome, paris, {"query_id": "q0", "answer": "Oslo"}])
    with pytest.raises(RecordError, match=r"p\.jsonl:3: question 'q0' has several predictions"):
        run_eval(capfd, *EXACT)


def test_empty_passages_warn_or_are_rejected(folder: Path, capfd: Capture) -> None:
    write_questions(folder, *[["paris"]] * 40)
    run = "".join(f"q{n} Q0 d{at} {at} {9 - at} t\n" for n in range(40) for at in (1, 2))
    for name in ("a.run", "b.run"):
        write_text(folder / name, run)
    write_rows(folder / "c.jsonl", [{"_id": f"d{at}", "title": "Paris", "text": " "} for at in (1, 2)])
    call = [*BY_ANSWERS, "--measures", "Answer@5"]
    problem = "^c.jsonl: none of the {} passages that were read has a text; check that it is the"
    with pytest.raises(DrtkError, match=problem.format(80)):  # 40 questions of 2 passages each
        run_eval(capfd, "a.run", *call, "--num-workers", "2")
    with pytest.raises(DrtkError, match=problem.format(160)):
        run_command(capfd, "compare", "a.run", "b.run", *call)
    assert run_eval(capfd, "a.run", *call, "--set", "match_title=true")["Answer@5"] == 1
    assert "text" not in capfd.readouterr().err
    write_corpus(folder, d1="", d2="It is Paris.")
    assert run_eval(capfd, "a.run", *call)["Answer@5"] == 1
    app(["eval", "a.run", *call, "-q"], standalone_mode=False)
    assert capfd.readouterr().err == "drtk: c.jsonl: 40 of the 80 passages that were read have no text\n"


def test_titles_and_regular_expressions_match_if_enabled(folder: Path, capfd: Capture) -> None:
    write_rows(folder / "c.jsonl", [{"_id": "d", "title": "Paris", "text": "born in ( 1984"}])
    write_text(folder / "a.run", "q0 Q0 d 1 1 t\nq1 Q0 d 1 1 t\nq2 Q0 d 1 1 t\n")
    call = ["a.run", *BY_ANSWERS, "--measures", "Answer@1"]
    write_questions(folder, ["Paris"])
    assert run_eval(capfd, *call)["Answer@1"] == 0
    assert run_eval(capfd, *call, "--set", "match_title=true")["Answer@1"] == 1
    # an invalid pattern matches nothing and counts as wrong; a question with a blank pattern only is ignored
    write_questions(folder, [r"19\d\d"])
    assert run_eval(capfd, *call)["Answer@1"] == 0
    write_questions(folder, [r"19\d\d", "("], ["("], [" "])
    assert run_eval(capfd, *call, "--match", "regex")["Answer@1"] == 0.5
    app(["eval", *call, "--match", "regex"], standalone_mode=False)
    assert "q.jsonl:1: '(' is not a valid regular expression and matches nothing" in capfd.readouterr().err


def test_invalid_options_and_files_are_rejected(folder: Path, capfd: Capture) -> None:
    write_corpus(folder, d="no")
    write_questions(folder, ["Paris"])
    write_rows(folder / "bare.jsonl", [{"_id": "q0", "text": "?"}])
    write_text(folder / "a.run", "q0 Q0 d 1 2 t\nq0 Q0 gone 2 1 t\n")
    write_text(folder / "x.run", "x7 Q0 d 1 1 t\n")
    write_rows(folder / "p.jsonl", [{"query_id": "q0", "answer": "Paris"}, {"query_id": "q0", "answer": 3}])
    faults: list[tuple[list[str], type[DrtkError], str]] = [
        (["a.run"], UsageError, "--qrels or --answers is required"),
        (["a.run", *BY_ANSWERS[:2]], UsageError, "--corpus FILE"),
        (["a.run", *BY_ANSWERS, "--qrels", "q.jsonl"], UsageError, "--qrels and --answers cannot be combined"),
        (["a.run", *BY_ANSWERS, "--measures", "R@10"], UsageError, r"R@10 requires `qrels`"),
        (["a.run", *BY_ANSWERS, "--measures", "Answer"], UsageError, "such as Answer@10"),
        (["a.run", *BY_ANSWERS, "--by", "source"], UsageError, "`by=source`"),
        (["a.run", "--qrels", "q.jsonl", "--measures", "Answer@1"], UsageError, "requires `answers`"),
        (["a.run", "--exact-match"], UsageError, "--answers FILE"),
        ([*EXACT, "--measures", "RR"], UsageError, "expected EM or F1"),
        (EXACT, RecordError, r"^p\.jsonl:2: .*'answer'"),
        (
            ["a.run", *BY_ANSWERS],
            MismatchError,
            r"^a\.run:2: passage 'gone' is not in the corpus c\.jsonl; pass the corpus of this run$",
        ),
        (
            ["x.run", *BY_ANSWERS],
            MismatchError,
            r"^x\.run: no query has answers \(run: 'x7', answers: 'q0'\); pass the answers of these queries$",
        ),
        (["a.run", "--answers", "bare.jsonl", *BY_ANSWERS[2:]], DrtkError, "no question has an answer"),
    ]
    for arguments, fault, problem in faults:
        with pytest.raises(fault, match=problem):
            run_command(capfd, "eval", *arguments)


def test_rouge_of_a_worked_example() -> None:
    # 4 of 5 words written are among the 6 wanted: P 4/5, R 4/6, F 8/11; pairs: "the cat", of 4 and 5: F 2/9
    # longest common subsequence the cat on mat, 4: F 8/11
    result = compute_rouge(["The cat on a mat!"], ["the cat sat on the mat"])
    assert result == pytest.approx({"rouge1": 8 / 11, "rouge2": 2 / 9, "rougeL": 8 / 11})
    result = compute_rouge(["a b", "c", ""], ["a b", "d", "e"])
    assert result == pytest.approx({"rouge1": 1 / 3, "rouge2": 1 / 3, "rougeL": 1 / 3})
    assert compute_rouge([], []) == {"rouge1": 0.0, "rouge2": 0.0, "rougeL": 0.0}


def test_rouge_tokenizes_all_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    from rouge_score.rouge_scorer import RougeScorer

    text, reference = "Re-trains `x_y` (v2.0), it's 3D", "it retrains x_y v2 0; 3d's"
    expected = RougeScorer(["rouge1", "rouge2", "rougeL"]).score(reference, text)
    values = {name: score.fmeasure for name, score in expected.items()}
    assert compute_rouge([text], [reference]) == pytest.approx(values)
    assert compute_rouge(["что такое крыло"], ["Крыло"])["rouge1"] == pytest.approx(2 * (1 / 3) / (1 / 3 + 1))
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(MissingDependency, match=r"ROUGE needs rouge-score.*pip install rouge-score"):
        compute_rouge(["a"], ["a"])
