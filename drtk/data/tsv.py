"""Tab-separated corpora and queries: MS MARCO (no quoting) and DPR (quoted as Python's csv does)."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from drtk.data.rows import Row, minted

Line = tuple[int, bytes]
Placed = tuple[int, Row | ValueError]
Shape = Callable[[list[str]], Row]
DPR_HEADER = ["id", "text", "title"]
LONGEST_FIELD = 1_000  # lines a quoted field may go over, so that a quote never closed does not swallow the file


def passage_lines(lines: Iterator[Line]) -> Iterator[Placed]:
    """Rows of a corpus whose first line says what it is: DPR (by header or three columns), MS MARCO passages or documents."""
    first = next(lines)
    columns = first[1].decode(errors="replace").split("\t")
    if [column.strip() for column in columns] == DPR_HEADER:
        return _quoted_rows(lines)
    shapes: dict[int, Shape] = {2: _pair, 3: _dpr, 4: _document}
    return _rows(
        chain([first], lines), shapes.get(len(columns)), "2 (pid text), 3 (id text title) or 4 (docid url title body)"
    )


def query_lines(lines: Iterator[Line]) -> Iterator[Placed]:
    """Rows of a query file whose first line says what it is: `id<TAB>text`, or DPR's `question<TAB>['answer', …]`."""
    first = next(lines)
    columns = first[1].decode(errors="replace").split("\t")
    is_qa = len(columns) == 2 and _unquoted(columns[1].strip()).startswith("[")
    return _rows(chain([first], lines), _question if is_qa else _pair if len(columns) == 2 else None, "2 (qid text)")


def _rows(lines: Iterable[Line], shape: Shape | None, expected: str) -> Iterator[Placed]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            columns = _decoded(line).split("\t")
            if shape is None:
                raise ValueError(f"expected JSON, or {expected} tab-separated columns; found {len(columns)}")
            row = shape(columns)
        except ValueError as error:
            yield number, error
            continue
        yield number, row


def _decoded(line: bytes) -> str:
    if b"\0" in line:
        raise ValueError("contains a NUL byte")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from error


def _columns(columns: list[str], count: int) -> list[str]:
    if len(columns) != count:
        raise ValueError(f"expected {count} columns, found {len(columns)}")
    return columns


def _pair(columns: list[str]) -> Row:
    id, text = _columns(columns, 2)
    return {"_id": id, "text": text}


def _document(columns: list[str]) -> Row:
    id, url, title, body = _columns(columns, 4)
    return {"_id": id, "title": title, "text": body, "metadata": {"url": url}}


def _dpr(columns: list[str]) -> Row:
    id, text, title = _columns(columns, 3)
    return {"_id": id, "title": _unquoted(title), "text": _unquoted(text)}


def _question(columns: list[str]) -> Row:
    text, written = map(_unquoted, _columns(columns, 2))
    try:
        answers = ast.literal_eval(written.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError("the second column must be a list of answers, such as ['Paris']") from error
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise ValueError("the second column must be a list of strings")
    return {"_id": minted("q", text), "text": text, "answers": answers}


def _unquoted(field: str) -> str:
    """A field as Python's csv module reads it: quotes around it go, doubled quotes become single."""
    if len(field) >= 2 and field[0] == field[-1] == '"':
        return field[1:-1].replace('""', '"')
    return field


def _quoted_rows(lines: Iterator[Line]) -> Iterator[Placed]:
    """Rows of DPR's TSV; a quoted field may hold tabs and go over several lines, its row is placed at the first."""
    waiting: deque[Line] = deque()
    while (first := waiting.popleft() if waiting else next(lines, None)) is not None:
        number, line = first
        if not line.strip():
            continue
        columns = split_quoted(line)
        if columns is None:
            columns, more = _continued(line, waiting, lines)
            if len(columns) != 3:  # a quote that should not be there; the lines after it may be good
                waiting.extendleft(reversed(more))
                yield number, ValueError("a quote opens a field and is not closed before the next tab or line end")
                continue
        try:
            id, text, title = _columns([_decoded(column) for column in columns], 3)
        except ValueError as error:
            yield number, error
            continue
        yield number, {"_id": id, "title": title, "text": text}


def _continued(line: bytes, waiting: deque[Line], lines: Iterator[Line]) -> tuple[list[bytes], list[Line]]:
    """The fields of a line whose last one goes on, and the lines it goes on over; no fields where it does not end."""
    more: list[Line] = []
    while len(more) < LONGEST_FIELD:
        following = waiting.popleft() if waiting else next(lines, None)
        if following is None:
            break
        more.append(following)
        if b'"' in following[1]:  # only there can the field end
            columns = split_quoted(b"\n".join([line, *(text for _, text in more)]), strict=True)
            if columns is not None:
                return columns, more
    return [], more


def split_quoted(line: bytes, *, strict: bool = False) -> list[bytes] | None:
    """Fields of a line quoted as Python's csv does; None where a quoted field is not closed on it.

    A quote within a field that does not begin with one is an ordinary character. What follows a closing quote within
    its field belongs to it, as csv has it; with `strict` there are then no fields at all.
    """
    if b'\t"' not in line and line[:1] != b'"':
        return line.split(b"\t")
    fields, rest = [], line
    while True:
        if rest[:1] == b'"':
            end = 1
            while (end := rest.find(b'"', end)) >= 0 and rest[end + 1 : end + 2] == b'"':
                end += 2
            if end < 0:
                return None
            tab = rest.find(b"\t", end)
            after = rest[end + 1 :] if tab < 0 else rest[end + 1 : tab]
            if strict and after:
                return []
            fields.append(rest[1:end].replace(b'""', b'"') + after)
        else:
            tab = rest.find(b"\t")
            fields.append(rest if tab < 0 else rest[:tab])
        if tab < 0:
            return fields
        rest = rest[tab + 1 :]


def quoted(field: str) -> str:
    """A field as Python's csv writes it: quoted only where it holds a tab, a quote or a line end."""
    if any(mark in field for mark in '\t"\n\r'):
        return '"' + field.replace('"', '""') + '"'
    return field


def flat(text: str) -> str:
    """A text fit for a file without quoting: tabs, line ends and NULs become spaces."""
    return text.translate(_TO_SPACE)


_TO_SPACE = str.maketrans("\t\n\r\0", "    ")
