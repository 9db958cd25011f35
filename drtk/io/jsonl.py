"""Corpora, queries and examples as streams of records; every complaint says file:line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import orjson

from drtk.errors import MismatchError, RecordError
from drtk.io.formats import passage_rows, query_rows
from drtk.io.intake import Intake
from drtk.io.progress import warn
from drtk.io.rows import (
    Row,
    example_from,
    example_row,
    identifier,
    parse_row,
    passage_from,
    passage_row,
    query_from,
    query_row,
)
from drtk.io.streams import name_of
from drtk.records import Example, Passage, Query

Record = TypeVar("Record")
REMEMBERED_IDS = 10_000_000  # about 70 bytes each: the most a streaming reader spends on finding duplicates


class UniqueIds:
    """Finds an id's second use among the first ten million; beyond that `drtk validate` is the judge."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._full = False

    def check(self, id: str) -> None:
        """Remember `id`; ValueError where it was seen before."""
        if self._full:
            return
        before = len(self._seen)
        self._seen.add(hash(id))
        if len(self._seen) == before:
            raise ValueError(f"duplicate id '{id}'")
        if before + 1 == REMEMBERED_IDS:
            self._full = True
            self._seen.clear()
            warn(
                f"more than {REMEMBERED_IDS:,} records: later duplicate ids go unnoticed here; drtk validate finds them"
            )


def read_records(
    source: str,
    parse: Callable[[Row], Record],
    *,
    intake: Intake | None = None,
    id_of: Callable[[Record], str] | None = None,
) -> Iterator[Record]:
    """Records of a JSONL source in file order; blank lines are passed over. `id_of` makes duplicates an error.

    Raises RecordError (file:line) for a line that is not a record, unless `intake` forgives it.
    """
    intake = intake or Intake()
    unique = UniqueIds()
    for number, line in intake.lines(source):
        if not line.strip():
            continue
        try:
            record = parse(parse_row(line))
            if id_of is not None:
                unique.check(id_of(record))
        except ValueError as error:
            intake.forgive(RecordError(f"{name_of(source)}:{number}", str(error)))
            continue
        yield record  # outside the try: a consumer's fault is not the file's


def read_passages(source: str, *, intake: Intake | None = None, side_files: Sequence[str] = ()) -> Iterator[Passage]:
    """Passages of any corpus format drtk knows, joined by id with `side_files` (enrichments written with --bare)."""
    intake = intake or Intake()
    passages = _records(passage_rows(source, intake), passage_from, source, intake, lambda passage: passage.id)
    return join(passages, source, side_files, intake) if side_files else passages


def read_queries(source: str, *, intake: Intake | None = None) -> Iterator[Query]:
    """Queries of any format drtk knows."""
    intake = intake or Intake()
    return _records(query_rows(source, intake), query_from, source, intake, lambda query: query.id)


def read_examples(source: str, *, intake: Intake | None = None) -> Iterator[Example]:
    """Training examples of drtk's own shape; `drtk convert` makes them from others."""
    return read_records(source, example_from, intake=intake)


def _records(
    rows: Iterable[tuple[str, Row | ValueError]],
    parse: Callable[[Row], Record],
    source: str,
    intake: Intake,
    id_of: Callable[[Record], str],
) -> Iterator[Record]:
    """Records of placed rows; a row that could not be read arrives as its ValueError."""
    unique = UniqueIds()
    for place, row in rows:
        try:
            if isinstance(row, ValueError):
                raise row
            record = parse(row)
            unique.check(id_of(record))
        except ValueError as error:
            intake.forgive(RecordError(place, str(error)))
            continue
        yield record


def join(passages: Iterable[Passage], source: str, side_files: Sequence[str], intake: Intake) -> Iterator[Passage]:
    """Passages with the fields of side files added, matched line by line.

    Raises MismatchError naming both places where a side file's order or length differs.
    """
    sides = [(name, _side_rows(name, intake)) for name in side_files]
    count = 0
    for count, passage in enumerate(passages, start=1):
        extra = dict(passage.extra)
        metadata = dict(passage.metadata or {})
        for name, rows in sides:
            number, row = next(rows, (0, None))
            if row is None:
                raise MismatchError(f"{name}: ends before record {count} of {name_of(source)} ('{passage.id}')")
            if row["_id"] != passage.id:
                raise MismatchError(
                    f"{name}:{number}: id '{row['_id']}', but record {count} of {name_of(source)} is '{passage.id}'"
                )
            metadata |= row.pop("metadata", None) or {}
            extra |= {field: value for field, value in row.items() if field != "_id"}
        yield Passage(passage.id, passage.text, passage.title, metadata or passage.metadata, extra)
    for name, rows in sides:
        number, row = next(rows, (0, None))
        if row is not None:
            raise MismatchError(
                f"{name}:{number}: id '{row['_id']}' comes after the last of {count} records of {name_of(source)}"
            )


def _side_rows(name: str, intake: Intake) -> Iterator[tuple[int, Row]]:
    for number, line in intake.lines(name):
        if not line.strip():
            continue
        try:
            row = parse_row(line)
            row["_id"] = identifier(row.pop("_id", row.pop("id", None)), "_id")
        except ValueError as error:
            raise RecordError(f"{name}:{number}", str(error)) from error
        yield number, row


def dump(record: Any) -> bytes:
    """A record or a plain row as one JSON line, ended."""
    if isinstance(record, Passage):
        record = passage_row(record)
    elif isinstance(record, Query):
        record = query_row(record)
    elif isinstance(record, Example):
        record = example_row(record)
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
