"""Folds of questions for cross-fitting, and the record of a generator's training questions.

A generator memorizes the answers to its training questions. A question must therefore be expanded by a generator that was
trained without this question (docs/methods/ear.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from drtk.data.readers import read_records
from drtk.data.rows import Row, dump, parse_id, parse_text, take_field
from drtk.errors import DrtkError, MismatchError
from drtk.records import Query
from drtk.runtime.atomic import write_bytes
from drtk.runtime.inputs import InputTracker
from drtk.text.rng import sample_integer

QUESTIONS = "questions.jsonl"  # record in a model folder: {"_id", "question": digest of its text, "fold"?}
KIND = "generators"  # manifest kind of a folder with one generator per fold


def get_fold_folder(folder: Path, fold: int) -> Path:
    """Return the folder of the generator that was trained on all folds except `fold`."""
    return folder / f"fold-{fold}"


def digest_question(question: str) -> str:
    """Return a digest of a question, 16 hex digits, which ignores case, the amount of white space and a final "?"."""
    plain = " ".join(question.split()).casefold().removesuffix("?").rstrip()
    return blake2b(plain.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def assign_folds(questions: Iterable[Query], count: int, *, seed: int) -> dict[str, int]:
    """Assign each question to one of `count` folds at random; return {question id: fold, from 0}.

    The fold depends on count, seed and id. Questions with equal `digest_question` get the fold of the one with the
    smallest id.
    """
    names: dict[str, str] = {}
    digests = [(query.id, digest_question(query.text)) for query in questions]
    for id, digest in digests:
        names[digest] = min(id, names.get(digest, id))
    return {id: sample_integer(0, count - 1, seed, "fold", names[digest]) for id, digest in digests}


class TrainingQuestions:
    """Training questions of the generators in a folder, with their folds. `query in questions` compares digests."""

    def __init__(
        self, folder: str, questions: dict[str, str], folds: dict[str, int | None], *, count: int | None
    ) -> None:
        """questions: {question id: digest of the text}    folds: {digest: fold, or None with a single generator}

        count: number of folds; None: a single generator
        """
        self.folder, self.count = folder, count
        self._questions, self._folds = questions, folds

    @classmethod
    def read(cls, folder: Path, *, count: int | None) -> TrainingQuestions | None:
        """Read the record of training questions in a model folder; return None if the folder has no record.

        Raises RecordError (file:line) for an invalid line, DrtkError for inconsistent folds.
        """
        path = folder / QUESTIONS
        if not path.exists():
            return None
        questions: dict[str, str] = {}
        folds: dict[str, int | None] = {}
        tracker = InputTracker()
        for id, digest, fold in read_records(str(path), _parse_entry, tracker=tracker):
            if (fold is None) != (count is None) or (fold is not None and count is not None and fold >= count):
                raise DrtkError(f"{path}:{tracker.line}: fold {fold} is invalid; restore the file")
            if folds.setdefault(digest, fold) != fold:
                raise DrtkError(f"{path}:{tracker.line}: the same question is in two folds; restore the file")
            questions[id] = digest
        return cls(str(folder), questions, folds, count=count)

    def __contains__(self, query: Query) -> bool:
        return digest_question(query.text) in self._folds

    def find_fold(self, query: Query) -> int:
        """Return the fold of a question, found by its text. The generator of this fold was not trained on the question.

        Raises MismatchError for a question without a fold, and for one with the id of a different training question.
        """
        digest = digest_question(query.text)
        if self._questions.get(query.id, digest) != digest:
            raise MismatchError(f"question '{query.id}' has another text in {self.folder}; use the training questions")
        fold = self._folds.get(digest)
        if fold is None:
            raise MismatchError(
                f"question '{query.id}' is in no fold of {self.folder}; expand it with one of the generators, such as {self.folder}/fold-0"
            )
        return fold


def format_question_record(questions: Iterable[Query], folds: dict[str, int] | None = None) -> Iterator[bytes]:
    """Yield a JSON line per training question. folds: folds by question id; None: a single generator"""
    for query in questions:
        row: dict[str, Any] = {"_id": query.id, "question": digest_question(query.text)}
        yield dump(row if folds is None else row | {"fold": folds[query.id]})


def write_question_record(folder: Path, questions: Iterable[Query], folds: dict[str, int] | None = None) -> None:
    """Write the record of training questions to a folder. folds: folds by question id; None: a single generator"""
    write_bytes(folder / QUESTIONS, b"".join(format_question_record(questions, folds)))


def _parse_entry(row: Row) -> tuple[str, str, int | None]:
    fold = row.get("fold")
    if fold is not None and (type(fold) is not int or fold < 0):
        raise ValueError("'fold' must be an integer of at least 0; restore the file")
    return parse_id(take_field(row, "_id"), "_id"), parse_text(take_field(row, "question"), "question"), fold
