"""Read tab-separated corpora, queries and training data: MS MARCO (no quoting) and DPR (quoted as by Python's csv)."""

from __future__ import annotations

import ast
import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal

from drtk.data.rows import (
    ANCHORS,
    FAISS_ERROR,
    NEGATIVE,
    PASSAGE_IDS,
    QUERY_IDS,
    QUERY_TEXTS,
    Row,
    is_faiss_index,
    make_id,
)
from drtk.data.sniff import are_names
from drtk.runtime.progress import warn

NumberedLine = tuple[int, bytes]
ParsedRow = tuple[int, Row | ValueError]
ParseColumns = Callable[[list[str]], Row]
DPR_HEADER = ["id", "text", "title"]
QRELS_HEADER = ["query-id", "corpus-id", "score"]
# Other names of the query, the positive and the negative in a header of training data; pos and neg are FlagEmbedding's.
_EXAMPLE_NAMES = {"pos": "positive", "neg": "negative"} | dict.fromkeys(ANCHORS, "query")
RENAME_EXAMPLES = "rename or remove columns; expected query<TAB>positive<TAB>negative"
_MAX_FIELD_SIZE = 1 << 24  # characters of a quoted field; limits the memory for a quote that is not closed


def parse_passage_lines(lines: Iterator[NumberedLine], *, name: str) -> Iterator[ParsedRow]:
    """Yield the rows of a corpus in the format of its first line: a header, DPR, MS MARCO passages or documents.

    name: name of the file, for a warning
    """
    first = next(lines)
    columns = first[1].decode(errors="replace").split("\t")
    names = _read_names(columns)
    if names == DPR_HEADER:
        return _parse_quoted(lines)
    if names == QRELS_HEADER:
        return reject_lines(chain([first], lines), "is the header of judgments in BEIR's format; expected passages")
    if are_names(columns) or _has_known_names(names, {"title", *QUERY_TEXTS, *PASSAGE_IDS}):
        return _parse_lines_below(first, names, lines, PASSAGE_IDS, ("text",), ("title",))
    if len(columns) == 3 and len(columns[2]) > len(columns[1]):
        warn(
            f"{name}: read as id, text, title, but the third column is longer than the second; "
            "name the columns in the first line, such as id<TAB>title<TAB>text"
        )
    parsers: dict[int, ParseColumns] = {2: _parse_pair, 3: _parse_dpr, 4: _parse_document}
    return _parse_lines(
        chain([first], lines), parsers.get(len(columns)), "2 (pid text), 3 (id text title) or 4 (docid url title body)"
    )


def parse_query_lines(lines: Iterator[NumberedLine]) -> Iterator[ParsedRow]:
    """Yield the rows of a query file: with a header, `id<TAB>text`, or DPR's `question<TAB>['answer', …]`."""
    first = next(lines)
    columns = first[1].decode(errors="replace").split("\t")
    names = _read_names(columns)
    is_qa = len(columns) == 2 and unquote_field(columns[1].strip()).startswith("[")
    if (are_names(columns) or _has_known_names(names, {*QUERY_TEXTS, *QUERY_IDS})) and not is_qa:
        return _parse_lines_below(first, names, lines, QUERY_IDS, QUERY_TEXTS)
    return _parse_lines(
        chain([first], lines), _parse_question if is_qa else _parse_pair if len(columns) == 2 else None, "2 (qid text)"
    )


def parse_example_header(line: bytes) -> ParseColumns | ValueError | None:
    """Return the parser of the lines below the header of training data (anchor, positive, …); None for another line.

    A header with an unknown column gives a ValueError.
    """
    names = _read_names(line.decode(errors="replace").split("\t"))
    names = [_EXAMPLE_NAMES.get(name, name) for name in names]
    if "positive" not in names or "query" not in names:
        return None
    known = ("query", "positive", "score", *QUERY_IDS)
    if problem := _describe_columns(names, lambda name: name in known or NEGATIVE.fullmatch(name) is not None):
        return ValueError(f"is a header {problem}; {RENAME_EXAMPLES}")
    parse_named = _name_columns(names, line)

    def parse_columns(columns: list[str]) -> Row:
        row = parse_named(columns)
        if "score" in row:
            try:
                row["score"] = float(row["score"])
            except ValueError as error:
                raise ValueError(f"'score' must be a number, got {row['score']!r}") from error
        return row

    return parse_columns


def parse_example_lines(lines: Iterator[NumberedLine]) -> Iterator[ParsedRow]:
    """Yield the rows of training data with texts: below a header, or MS MARCO's triples (query, positive, negative)."""
    first = next((item for item in lines if item[1].strip()), None)
    if first is None:
        return iter(())
    parse_columns = parse_example_header(first[1])
    if isinstance(parse_columns, ValueError):
        return reject_lines(chain([first], lines), str(parse_columns))
    if parse_columns is not None:
        return _parse_lines(lines, parse_columns)
    return _parse_lines(chain([first], lines), _parse_triple)


def are_text_triples(lines: Sequence[bytes]) -> bool:
    """Return whether half of the first lines of a file have three columns, as MS MARCO's triples of texts, and each column is a
    text of several words in one of them.
    """
    triples = [columns for line in lines if len(columns := line.split(b"\t")) == 3]
    has_texts = all(any(len(text.split()) > 1 for text in column) for column in zip(*triples, strict=True))
    return 2 * len(triples) >= len(lines) and has_texts


def _parse_triple(columns: list[str]) -> Row:
    query, positive, negative = _check_columns(columns, 3)
    return {"query": query, "positive": positive, "negative": negative}


def parse_candidate_lines(lines: Iterator[NumberedLine], kind: Literal["passages", "queries"]) -> Iterator[ParsedRow]:
    """Yield the passage or the query of each line of MS MARCO's top-1000 candidates; both occur repeatedly."""

    def parse_columns(columns: list[str]) -> Row:
        query_id, id, query, text = _check_columns(columns, 4)
        return {"_id": id, "text": text} if kind == "passages" else {"_id": query_id, "text": query}

    return _parse_lines(lines, parse_columns)


def _read_names(columns: list[str]) -> list[str]:
    """Return the columns of a first line as the names that they may be."""
    return [unquote_field(column.strip()).lower() for column in columns]


def _has_known_names(names: list[str], known: set[str]) -> bool:
    """Return whether a first line has known names of columns. A single one is not enough, as a text may equal it: the title Query."""
    num_known = sum(name in known for name in names)
    return names[0] in known or num_known > 1 or (num_known == 1 and len(names) == 2)


def reject_lines(lines: Iterable[NumberedLine], problem: str) -> Iterator[tuple[int, ValueError]]:
    """Yield an error for every line, so that skipping a few of them does not skip the file."""
    return ((number, ValueError(problem)) for number, _ in lines)


def _name_columns(names: list[str], header: bytes) -> ParseColumns:
    """Return a function that converts the columns of a line to a row; it unquotes them if the header is quoted."""
    unquote = unquote_field if header.startswith(b'"') else str
    return lambda columns: dict(zip(names, map(unquote, _check_columns(columns, len(names))), strict=True))


def _parse_lines_below(
    header: NumberedLine,
    names: list[str],
    lines: Iterator[NumberedLine],
    ids: Sequence[str],
    texts: Sequence[str],
    others: Sequence[str] = (),
) -> Iterator[ParsedRow]:
    """Yield the rows of the lines below a header, or errors if it does not have one of `ids`, one of `texts` and any of `others`."""
    names = ["id" if name in ids else "text" if name in texts else name for name in names]
    missing = [f"without a column '{name}'" for name in ("id", "text") if name not in names]
    if problem := _describe_columns(names, lambda name: name in ("id", "text", *others)) or "".join(missing[:1]):
        columns = "<TAB>".join(("id", *others, "text"))
        return reject_lines(
            chain([header], lines), f"is a header {problem}; rename or remove columns; expected {columns}"
        )
    return _parse_lines(lines, _name_columns(names, header[1]))


def _describe_columns(names: list[str], is_known: Callable[[str], bool]) -> str:
    """Return what is wrong with the first repeated or unknown column of a header; "" if there is none."""
    for name in names:
        if names.count(name) > 1:
            return f"with several columns '{name}'"
        if not is_known(name):
            return f"with the unknown column '{name}'"
    return ""


def _parse_lines(
    lines: Iterable[NumberedLine], parse_columns: ParseColumns | None, expected: str = ""
) -> Iterator[ParsedRow]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            columns = _decode_line(line).split("\t")
            if parse_columns is None:
                raise ValueError(f"expected JSON, or {expected} tab-separated columns, got {len(columns)}")
            row = parse_columns(columns)
        except ValueError as error:
            yield number, error
            continue
        yield number, row


def _decode_line(line: bytes) -> str:
    if b"\0" in line:
        raise ValueError(
            FAISS_ERROR
            if is_faiss_index(line)
            else "contains a NUL byte; convert UTF-16 to UTF-8, and files of vectors with drtk convert --as embeddings"
        )
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from error


def _check_columns(columns: list[str], count: int) -> list[str]:
    if len(columns) != count:
        raise ValueError(f"expected {count} columns, got {len(columns)}")
    return columns


def _parse_pair(columns: list[str]) -> Row:
    id, text = _check_columns(columns, 2)
    return {"_id": id, "text": text}


def _parse_document(columns: list[str]) -> Row:
    id, url, title, body = _check_columns(columns, 4)
    return {"_id": id, "title": title, "text": body, "metadata": {"url": url}}


def _parse_dpr(columns: list[str]) -> Row:
    id, text, title = map(unquote_field, _check_columns(columns, 3))
    return {"_id": id, "title": title, "text": text}


def _parse_question(columns: list[str]) -> Row:
    text, written = map(unquote_field, _check_columns(columns, 2))
    try:
        answers = ast.literal_eval(written.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError("the second column must be a list of answers, such as ['Paris']") from error
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise ValueError("the second column must be a list of strings, such as ['Paris']")
    return {"_id": make_id("q", text), "text": text, "answers": answers}


def _parse_quoted(lines: Iterator[NumberedLine]) -> Iterator[ParsedRow]:
    """Yield (number of the first line, row) for each row of DPR's TSV. A quoted field may contain tabs and line ends."""
    csv.field_size_limit(_MAX_FIELD_SIZE)
    first: list[bytes] = []  # the first line of the next row

    def read_line() -> str:
        return _decode_line(first.pop() if first else next(lines)[1]) + "\n"

    reader = csv.reader(iter(read_line, None), delimiter="\t", strict=True)
    for number, line in lines:
        if not line.strip():
            continue
        before = reader.line_num
        try:
            if b'"' in line:
                first.append(line)
                columns = next(reader)
            else:  # faster
                columns = _decode_line(line).split("\t")
            id, text, title = _check_columns(columns, 3)
        except (csv.Error, ValueError) as error:
            end, problem = number + reader.line_num - before, str(error)
            if isinstance(error, csv.Error):
                reason = "a carriage return outside quotes" if "new-line" in problem else problem
                problem = f"not quoted as by csv (lines {number} to {end - 1}): {reason}; correct the quotes"
            yield number, ValueError(problem)
            for lost in range(number + 1, end):  # each counts as skipped
                yield lost, ValueError(f"part of the invalid row of line {number}")
            continue
        yield number, {"_id": id, "title": title, "text": text}


def quote_field(field: str) -> str:
    """Quote a field as csv does, if it contains a tab, a quote or a line end."""
    if any(mark in field for mark in '\t"\n\r'):
        return '"' + field.replace('"', '""') + '"'
    return field


def unquote_field(field: str) -> str:
    """Remove the quotes of a field, as csv does."""
    if len(field) >= 2 and field[0] == field[-1] == '"':
        return field[1:-1].replace('""', '"')
    return field


def flatten_whitespace(text: str) -> str:
    """Replace tabs, line ends and NUL characters by spaces."""
    return text.translate(_TO_SPACE)


_TO_SPACE = str.maketrans("\t\n\r\0", "    ")
