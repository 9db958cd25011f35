"""Read corpora, queries and examples record by record, with errors that name file:line; write JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import orjson

from drtk.data import formats
from drtk.data.rows import (
    Row,
    build_example_row,
    build_expansion_row,
    build_passage_row,
    build_prediction_row,
    build_query_row,
    parse_expansion,
    parse_id,
    parse_prediction,
    parse_row,
)
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.records import Example, Expansion, Passage, Prediction, Query
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import warn
from drtk.runtime.streams import name_of

Record = TypeVar("Record")
MAX_CHECKED_IDS = 10_000_000  # ids in memory to find duplicates, about 70 bytes each


_get_id: Callable[[Any], str] = attrgetter("id")


def read_records(
    source: str,
    parse: Callable[[Row], Record],
    *,
    tracker: InputTracker | None = None,
    id_of: Callable[[Record], str] | None = None,
) -> Iterator[Record]:
    """Yield the records of a JSONL source in file order. With `id_of`, repeated ids are errors.

    Raises RecordError (file:line) for an invalid record, unless `tracker` skips it.
    """
    tracker = tracker or InputTracker()
    return iter_valid(formats.parse_rows(formats.iter_json_rows(source, tracker), parse), source, tracker, id_of)


def read_passages(
    source: str, *, tracker: InputTracker | None = None, side_files: Sequence[str] = ()
) -> Iterator[Passage]:
    """Yield the passages of a corpus in any format.

    side_files: files with further fields of the passages, written with `bare`; they are joined by id, line by line
    """
    tracker = tracker or InputTracker()
    passages = iter_valid(formats.iter_passages(source, tracker), source, tracker, _get_id)
    return join_side_files(passages, source, side_files, tracker) if side_files else passages


def read_queries(source: str, *, tracker: InputTracker | None = None) -> Iterator[Query]:
    """Yield the queries of a file in any format."""
    tracker = tracker or InputTracker()
    return iter_valid(formats.iter_queries(source, tracker), source, tracker, _get_id)


def read_examples(source: str, *, tracker: InputTracker | None = None) -> Iterator[Example]:
    """Yield the training examples of a file in any format that has ids of passages.

    Raises DrtkError for a format with texts only, which `drtk convert` can convert.
    """
    tracker = tracker or InputTracker()
    for parsed in iter_valid(formats.iter_examples(source, tracker), source, tracker):
        if parsed.has_new_ids:
            raise DrtkError(
                f"{name_of(source)}: has texts without ids; convert it first, with `as` examples, `corpus_out` and `queries_out` "
                "of drtk convert"
            )
        yield parsed.example


def read_predictions(source: str, *, tracker: InputTracker | None = None) -> Iterator[Prediction]:
    """Yield the predicted answers of a JSONL file. A query may have several."""
    return read_records(source, parse_prediction, tracker=tracker)


def read_expansions(source: str, *, tracker: InputTracker | None = None) -> Iterator[Expansion]:
    """Yield the query expansions of a JSONL file, as drtk expand-queries and rerank-queries write them."""
    return read_records(source, parse_expansion, tracker=tracker, id_of=_get_id)


def iter_valid(
    records: Iterable[tuple[int, Record | ValueError]],
    source: str,
    tracker: InputTracker,
    id_of: Callable[[Record], str] | None = None,
) -> Iterator[Record]:
    """Yield the valid records; errors and repeated ids go to `tracker`.

    records: (line number, record or error)
    id_of: returns the id of a record; None if ids may be repeated
    """
    seen: set[int] | None = None if id_of is None else set()
    for number, record in records:
        if isinstance(record, ValueError):
            tracker.skip_or_raise(RecordError(f"{name_of(source)}:{number}", str(record)))
            continue
        if seen is not None and id_of is not None:
            count = len(seen)
            seen.add(hash(id_of(record)))
            if len(seen) == count:
                tracker.skip_or_raise(RecordError(f"{name_of(source)}:{number}", f"duplicate id '{id_of(record)}'"))
                continue
            if count + 1 == MAX_CHECKED_IDS:
                seen = None
                warn(
                    f"{name_of(source)}: more than {MAX_CHECKED_IDS:,} records; "
                    "repeated ids are not detected from here on; run `drtk validate` to find them"
                )
        tracker.line = number
        yield record


def join_side_files(
    passages: Iterable[Passage], source: str, side_files: Sequence[str], tracker: InputTracker
) -> Iterator[Passage]:
    """Add the fields of side files to passages, line by line.

    Raises MismatchError, with both places, if a side file has other ids or another length.
    """
    sides = [(name, _iter_side_rows(name, tracker)) for name in side_files]
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


def _iter_side_rows(name: str, tracker: InputTracker) -> Iterator[tuple[int, Row]]:
    for number, line in tracker.iter_lines(name):
        if not line.strip():
            continue
        try:
            row = parse_row(line)
            row["_id"] = parse_id(row.pop("_id", row.pop("id", None)), "_id")
        except ValueError as error:
            raise RecordError(f"{name}:{number}", str(error)) from error
        yield number, row


_ROW_OF: dict[type, Callable[[Any], Row]] = {
    Passage: build_passage_row,
    Query: build_query_row,
    Example: build_example_row,
    Expansion: build_expansion_row,
    Prediction: build_prediction_row,
}


def dump(record: Any) -> bytes:
    """Serialize a record or a row as a JSON line, with its line end."""
    to_row = _ROW_OF.get(type(record))
    return orjson.dumps(record if to_row is None else to_row(record), option=orjson.OPT_APPEND_NEWLINE)
