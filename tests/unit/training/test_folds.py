"""Folds of questions depend only on seed and question; each question has a generator trained without it."""

import json
from collections import Counter
from pathlib import Path

import pytest

from drtk.errors import DrtkError, MismatchError
from drtk.records import Query
from drtk.training.folds import QUESTIONS, TrainingQuestions, assign_folds, digest_question, write_question_record

QUESTIONS_READ = [Query(f"q{number}", f"who is number {number}?") for number in range(200)]


def write_and_read_record(folder: Path, questions: list[Query], folds: dict[str, int] | None) -> TrainingQuestions:
    write_question_record(folder, questions, folds)
    results = TrainingQuestions.read(folder, count=None if folds is None else 4)
    assert results is not None
    return results


def test_a_fold_depends_only_on_seed_and_question() -> None:
    folds = assign_folds(QUESTIONS_READ, 4, seed=42)
    some = assign_folds(QUESTIONS_READ[60:50:-1], 4, seed=42)
    assert some == {id: folds[id] for id in some}
    assert folds != assign_folds(QUESTIONS_READ, 4, seed=43)
    sizes = Counter(folds.values())
    assert set(sizes) == {0, 1, 2, 3}
    assert min(sizes.values()) > 30  # of 50 each; the standard deviation is 6.1


def test_a_question_with_two_ids_is_in_one_fold() -> None:
    again = [Query(f"a{query.id}", query.text.upper().removesuffix("?") + " ") for query in QUESTIONS_READ]
    folds = assign_folds([*QUESTIONS_READ, *again], 4, seed=42)
    assert all(folds[query.id] == folds[f"a{query.id}"] for query in QUESTIONS_READ)
    assert folds == assign_folds([*again, *QUESTIONS_READ], 4, seed=42)


def test_a_question_goes_to_the_generator_of_its_fold_whatever_its_id(tmp_path: Path) -> None:
    folds = assign_folds(QUESTIONS_READ, 4, seed=42)
    seen = write_and_read_record(tmp_path, QUESTIONS_READ, folds)
    for query in QUESTIONS_READ:
        other = Query("other-" + query.id, query.text.removesuffix("?"))
        assert [seen.find_fold(each) for each in (query, other)] == [folds[query.id]] * 2
    with pytest.raises(MismatchError, match=rf"'x0' is in no fold of {tmp_path}; expand it with one of the generators"):
        seen.find_fold(Query("x0", "new 0"))
    with pytest.raises(MismatchError, match=r"question 'q7' has another text in .*; use the training questions"):
        seen.find_fold(Query("q7", "who else?"))


def test_a_generator_records_its_training_questions(tmp_path: Path) -> None:
    seen = write_and_read_record(tmp_path, QUESTIONS_READ[:5], None)
    assert Query("other", "Who is number 3") in seen
    assert Query("q3", "who is number 5?") not in seen
    assert TrainingQuestions.read(tmp_path / "nothing", count=None) is None


def test_an_invalid_record_is_reported_with_its_line(tmp_path: Path) -> None:
    for row, message in (
        ({"_id": "q9", "question": "ab", "fold": 4}, "fold 4 is invalid"),
        ({"_id": "q9", "question": "ab"}, "fold None is invalid"),
        ({"_id": "q9", "question": digest_question("a"), "fold": 1}, "the same question is in two folds"),
        ({"_id": "q9", "question": "ab", "fold": -1}, "'fold' must be an integer of at least 0"),
    ):
        write_question_record(tmp_path, [Query("a", "a")], {"a": 0})
        record = tmp_path / QUESTIONS
        record.write_text(record.read_text() + json.dumps(row))
        with pytest.raises(DrtkError, match=f"questions.jsonl:2: {message}"):
            TrainingQuestions.read(tmp_path, count=4)
