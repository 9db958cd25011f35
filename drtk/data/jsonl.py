"""Read corpora, queries and examples as streams of records, with errors that name file:line; write JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import orjson

from drtk.data import formats
from drtk.data.rows import (
    Row,
    example_row,
    expansion_from,
    expansion_row,
    identifier,
    parse_row,
    passage_row,
    prediction_from,
    prediction_row,
    query_row,
)
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.records import Example, Expansion, Passage, Prediction, Query
from drtk.runtime.inputs import Intake
from drtk.runtime.progress import warn
from drtk.runtime.streams import name_of

Record = TypeVar("Record")
REMEMBERED_IDS = 10_000_000  # ids kept to find duplicates, about 70 bytes each


_ID: Callable[[Any], str] = attrgetter("id")


def read_records(
    source: str,
    parse: Callable[[Row], Record],
    *,
    intake: Intake | None = None,
    id_of: Callable[[Record], str] | None = None,
) -> Iterator[Record]:
    """Yield the records of a JSONL source in file order. With `id_of`, repeated ids are errors.

    Raises RecordError (file:line) for an invalid record, unless `intake` skips it.
    """
    intake = intake or Intake()
    return iter_valid(formats.parse_rows(formats.json_rows(source, intake), parse), source, intake, id_of)


def read_passages(source: str, *, intake: Intake | None = None, side_files: Sequence[str] = ()) -> Iterator[Passage]:
    """Yield the passages of a corpus in any format, joined by id with `side_files` (written with --bare)."""
    intake = intake or Intake()
    passages = iter_valid(formats.passages(source, intake), source, intake, _ID)
    return join(passages, source, side_files, intake) if side_files else passages


def read_queries(source: str, *, intake: Intake | None = None) -> Iterator[Query]:
    """Yield the queries of a file in any format."""
    intake = intake or Intake()
    return iter_valid(formats.queries(source, intake), source, intake, _ID)


def read_examples(source: str, *, intake: Intake | None = None) -> Iterator[Example]:
    """Yield the training examples of a file in any format with ids.

    Raises DrtkError for data with texts that have no ids, which `drtk convert` can convert.
    """
    intake = intake or Intake()
    for found in iter_valid(formats.examples(source, intake), source, intake):
        if found.has_new_ids:
            raise DrtkError(
                f"{name_of(source)}: holds texts, not ids; make a corpus and queries of them first: "
                f"drtk convert {source} --as examples --corpus-out FILE --queries-out FILE -o FILE"
            )
        yield found.example


def read_predictions(source: str, *, intake: Intake | None = None) -> Iterator[Prediction]:
    """Yield a reader's answers, `{"query_id", "answer", "score"?}`; a query may have several."""
    return read_records(source, prediction_from, intake=intake)


def read_expansions(source: str, *, intake: Intake | None = None) -> Iterator[Expansion]:
    """Yield candidate expansions of queries, as drtk expand-queries and rerank-queries write them."""
    return read_records(source, expansion_from, intake=intake, id_of=_ID)


def iter_valid(
    found: Iterable[tuple[int, Record | ValueError]],
    source: str,
    intake: Intake,
    id_of: Callable[[Record], str] | None = None,
) -> Iterator[Record]:
    """Yield the valid records; pass errors and repeated ids to `intake`."""
    seen: set[int] | None = None if id_of is None else set()
    for number, record in found:
        if isinstance(record, ValueError):
            intake.forgive(RecordError(f"{name_of(source)}:{number}", str(record)))
            continue
        if seen is not None and id_of is not None:
            known = len(seen)
            seen.add(hash(id_of(record)))
            if len(seen) == known:
                intake.forgive(RecordError(f"{name_of(source)}:{number}", f"duplicate id '{id_of(record)}'"))
                continue
            if known + 1 == REMEMBERED_IDS:
                seen = None
                warn(
                    f"{name_of(source)}: more than {REMEMBERED_IDS:,} records; "
                    "repeated ids are not noticed from here on; drtk validate finds them"
                )
        intake.line = number
        yield record


def join(passages: Iterable[Passage], source: str, side_files: Sequence[str], intake: Intake) -> Iterator[Passage]:
    """Yield passages with the fields of side files added, line by line.

    Raises MismatchError, with both places, if a side file differs in order or length.
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


_ROW_OF: dict[type, Callable[[Any], Row]] = {
    Passage: passage_row,
    Query: query_row,
    Example: example_row,
    Expansion: expansion_row,
    Prediction: prediction_row,
}


def dump(record: Any) -> bytes:
    """Return a record or a row as a JSON line with its line end."""
    to_row = _ROW_OF.get(type(record))
    return orjson.dumps(record if to_row is None else to_row(record), option=orjson.OPT_APPEND_NEWLINE)
