"""Which generator has seen which question: folds drawn by the question alone, and the record that goes with a model.

A question is expanded by a generator that was not trained with it (methods, section 7.3); one that was has its answer by heart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from drtk.data.jsonl import dump, read_records
from drtk.data.rows import Row, identifier, take, text_of
from drtk.errors import DrtkError, MismatchError
from drtk.records import Query
from drtk.runtime.atomic import write_bytes
from drtk.runtime.inputs import Intake
from drtk.text.rng import between

QUESTIONS = "questions.jsonl"  # of a folder: {"_id", "question": digest of its text, "fold"?}
KIND = "generators"  # of a folder of one generator a fold


def fold_folder(folder: Path, fold: int) -> Path:
    """Where the generator that did not see a fold lies."""
    return folder / f"fold-{fold}"


def digest_of(question: str) -> str:
    """What tells two questions apart, whatever their ids: 16 hex digits; case, white space and the last question mark do not."""
    plain = " ".join(question.split()).casefold().removesuffix("?").rstrip()
    return blake2b(plain.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def drawn_folds(questions: Iterable[Query], count: int, *, seed: int) -> dict[str, int]:
    """The fold of each question by its id, drawn from seed and id: neither order nor other questions matter.

    But for one thing: a question that is asked under several ids is in the fold of the smallest of them.
    """
    names: dict[str, str] = {}
    listed = [(query.id, digest_of(query.text)) for query in questions]
    for id, digest in listed:
        names[digest] = min(id, names.get(digest, id))
    return {id: between(0, count - 1, seed, "fold", names[digest]) for id, digest in listed}


class Seen:
    """The questions that the generator, or the generators, of a folder were made from."""

    def __init__(
        self, place: str, questions: dict[str, str], folds: dict[str, int | None], *, count: int | None
    ) -> None:
        """questions: digest by id; folds: fold by digest; count: of folds, None for a folder of one generator"""
        self.place, self.count = place, count
        self._questions, self._folds = questions, folds

    @classmethod
    def of_folder(cls, folder: Path, *, count: int | None) -> Seen | None:
        """What the record of a folder says; None where there is none.

        Raises RecordError (file:line) for a record that cannot be read, DrtkError for a fold that is none.
        """
        path = folder / QUESTIONS
        if not path.exists():
            return None
        questions: dict[str, str] = {}
        folds: dict[str, int | None] = {}
        intake = Intake()
        for id, digest, fold in read_records(str(path), _entry, intake=intake):
            if (fold is None) != (count is None) or (fold is not None and count is not None and fold >= count):
                raise DrtkError(f"{path}:{intake.line}: there is no fold {fold}")
            if folds.setdefault(digest, fold) != fold:
                raise DrtkError(f"{path}:{intake.line}: the same question is in two folds")
            questions[id] = digest
        return cls(str(folder), questions, folds, count=count)

    def __contains__(self, query: Query) -> bool:
        return digest_of(query.text) in self._folds

    def fold(self, query: Query, *, draw: bool) -> int:
        """The generator that did not see a question: that of its fold, whatever its id is now.

        draw: a question of no fold gets one by its id. Raises MismatchError for such a question otherwise, and for an id that
        stood for another question.
        """
        assert self.count is not None
        digest = digest_of(query.text)
        if self._questions.get(query.id, digest) != digest:
            raise MismatchError(
                f"'{query.id}' is another question here than the one that {self.place} was trained with"
            )
        fold = self._folds.get(digest)
        if fold is not None:
            return fold
        if not draw:
            raise MismatchError(
                f"'{query.id}' belongs to no fold of {self.place}; --outside draw gives it to one of the generators"
            )
        return between(0, self.count - 1, "outside", query.id)


def record_lines(questions: Iterable[Query], folds: dict[str, int] | None = None) -> Iterator[bytes]:
    """The record of a folder, a line a question."""
    for query in questions:
        row: dict[str, Any] = {"_id": query.id, "question": digest_of(query.text)}
        yield dump(row if folds is None else row | {"fold": folds[query.id]})


def write_record(folder: Path, questions: Iterable[Query], folds: dict[str, int] | None = None) -> None:
    """Write the record of a folder in one step."""
    write_bytes(folder / QUESTIONS, b"".join(record_lines(questions, folds)))


def _entry(row: Row) -> tuple[str, str, int | None]:
    fold = row.get("fold")
    if fold is not None and (type(fold) is not int or fold < 0):
        raise ValueError("'fold' must be a whole number from 0")
    return identifier(take(row, "_id"), "_id"), text_of(take(row, "question"), "question"), fold
