"""Corpora and queries in the formats of the field, recognised by content, as rows with their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from drtk.io.intake import Intake
from drtk.io.rows import Row, parse_row
from drtk.io.streams import name_of

Placed = tuple[str, Row | ValueError]
DPR_HEADER = ["id", "text", "title"]


def passage_rows(source: str, intake: Intake) -> Iterator[Placed]:
    """(place, row) of a corpus: JSONL, MS MARCO passages or documents TSV, DPR TSV."""
    return _rows(source, intake, passage_columns)


def query_rows(source: str, intake: Intake) -> Iterator[Placed]:
    """(place, row) of a query file: JSONL or `id<TAB>text`."""
    return _rows(source, intake, query_columns)


def _rows(
    source: str, intake: Intake, columns_of: Callable[[list[str]], Callable[[list[str]], Row] | None]
) -> Iterator[Placed]:
    name = name_of(source)
    lines = ((number, line) for number, line in intake.lines(source) if line.strip())
    shape: Callable[[list[str]], Row] | None = None
    is_json: bool | None = None
    for number, line in lines:
        place = f"{name}:{number}"
        if is_json is None:
            is_json = line.lstrip()[:1] == b"{" or b"\t" not in line
            if not is_json:
                first = line.decode(errors="replace").split("\t")
                shape = columns_of(first)
                if [column.strip() for column in first] == DPR_HEADER:
                    continue
        try:
            yield place, (parse_row(line) if is_json else _tsv_row(line, shape))
        except ValueError as error:
            yield place, error


def _tsv_row(line: bytes, shape: Callable[[list[str]], Row] | None) -> Row:
    if b"\0" in line:
        raise ValueError("contains a NUL byte")
    try:
        columns = line.decode().split("\t")
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8") from error
    if shape is None:
        raise ValueError(f"expected JSON or tab-separated columns, found {len(columns)} columns")
    return shape(columns)


def passage_columns(first: list[str]) -> Callable[[list[str]], Row] | None:
    """How to read a corpus TSV that begins with the columns `first`."""
    if [column.strip() for column in first] == DPR_HEADER:
        return _dpr
    return {2: _msmarco_passage, 3: _dpr, 4: _msmarco_document}.get(len(first))


def query_columns(first: list[str]) -> Callable[[list[str]], Row] | None:
    """How to read a query TSV that begins with the columns `first`."""
    return _msmarco_passage if len(first) == 2 else None


def _columns(columns: list[str], count: int) -> list[str]:
    if len(columns) != count:
        raise ValueError(f"expected {count} columns, found {len(columns)}")
    return columns


def _msmarco_passage(columns: list[str]) -> Row:
    id, text = _columns(columns, 2)
    return {"_id": id, "text": text}


def _msmarco_document(columns: list[str]) -> Row:
    id, url, title, body = _columns(columns, 4)
    return {"_id": id, "title": title, "text": body, "metadata": {"url": url}}


def _dpr(columns: list[str]) -> Row:
    id, text, title = _columns(columns, 3)
    return {"_id": id, "title": _unquoted(title), "text": _unquoted(text)}


def _unquoted(field: str) -> str:
    """A field of DPR's TSV, which Python's csv module wrote: quotes around it go, doubled quotes become single."""
    if len(field) >= 2 and field[0] == field[-1] == '"':
        return field[1:-1].replace('""', '"')
    return field
