"""Read passages, queries, judgements, runs and examples in the formats of the field, detected from the content.

Readers yield (line, record), with a ValueError in place of an invalid record.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Literal, TypeVar

import orjson

from drtk.data.examples import FoundExample, is_example, parse_example_row, parse_result_hits
from drtk.data.json_arrays import array_rows, is_array
from drtk.data.rows import Row, is_too_deep, json_fault, make_id, parse_row, passage_from, query_from
from drtk.data.sniff import is_candidate
from drtk.data.tables import is_table, table_rows
from drtk.data.tsv import Placed, parse_passage_lines, parse_query_lines
from drtk.records import Example, Hit, Passage, Qrel, Query
from drtk.runtime.inputs import Intake

Record = TypeVar("Record")
Found = Iterator[tuple[int, Record | ValueError]]


def passages(source: str, intake: Intake) -> Found[Passage]:
    """Yield the passages of a corpus, or the passages within training data, each once."""
    return _read(source, intake, parse_passage_lines, passage_from, _iter_passages)


def queries(source: str, intake: Intake) -> Found[Query]:
    """Yield the queries of a file, or those within training data, each once. A repeated generated id gets the suffix -2."""
    found: Found[Query] = _read(source, intake, parse_query_lines, query_from, _iter_queries)
    uses: dict[str, int] = {}
    for number, query in found:
        if isinstance(query, Query) and query.id[:1] == "q" and query.id == make_id("q", query.text):
            uses[query.id] = uses.get(query.id, 0) + 1
            if uses[query.id] > 1:
                query = replace(query, id=f"{query.id}-{uses[query.id]}")
        yield number, query


def examples(source: str, intake: Intake) -> Found[FoundExample]:
    """Yield training examples; an example without positives is an error."""
    for number, found in parse_rows(json_rows(source, intake), parse_example_row):
        if isinstance(found, FoundExample) and not found.example.positives:
            yield number, ValueError("has no positives")
        else:
            yield number, found


def judgements(source: str, intake: Intake) -> Found[Qrel]:
    """Yield judgements of BEIR TSV or TREC qrels, or with grade 1 each positive of training data."""
    from drtk.data.trec import read_qrels

    if not _is_json(source, intake):
        yield from read_qrels(source, intake=intake)
        return
    for number, found in examples(source, intake):
        if isinstance(found, ValueError):
            yield number, found
        else:
            for id in dict.fromkeys(found.example.positives):
                yield number, Qrel(found.example.query_id, id, 1)


def hits(source: str, intake: Intake) -> Found[Hit]:
    """Yield the hits of a TREC run, MS MARCO's ranked pairs or top-1000 candidates (score 1/rank), or DPR's results."""
    from drtk.data.trec import iter_query_hits

    if _is_json(source, intake):
        yield from _iter_result_hits(source, intake)
    elif len(_first_line(source, intake).split()) == 3:
        yield from _iter_ranked_pairs(source, intake)
    elif is_candidate(_first_line(source, intake)):
        yield from _iter_candidates(source, intake)
    else:
        for block in iter_query_hits(source, intake=intake):
            rows = zip(block.lines, block.doc_ids, block.ranks, block.scores, block.tags, strict=True)
            for number, doc_id, rank, score, tag in rows:
                yield number, Hit(block.query_id, doc_id, rank, score, tag)


def json_rows(source: str, intake: Intake) -> Iterator[Placed]:
    """Yield (line, JSON object) of JSONL, a JSON array, a Parquet file or a data set."""
    layout = _layout(source, intake)
    if layout == "table":
        return table_rows(source, intake)
    if layout == "array":
        return array_rows(intake.blocks(source))
    return _parse_jsonl(intake.lines(source))


def is_triples(source: str, intake: Intake) -> bool:
    """Return whether a file holds MS MARCO's `qid<TAB>positive<TAB>negative`: numbers, by its first ten lines.

    Grades and ranks are numbers too, so most third columns must have four digits or more.
    """
    if _is_json(source, intake):
        return False
    rows = [line.split() for line in intake.peek(source).splitlines() if line.strip()][:10]
    ids = [row for row in rows if len(row) == 3 and all(map(bytes.isdigit, row)) and len(row[2].lstrip(b"0")) > 3]
    return 2 * len(ids) > len(rows)


def triples(source: str, intake: Intake) -> Found[FoundExample]:
    """Yield one example per group of consecutive triples of a query, with the line number of the first."""
    query, start = "", 0
    positives: dict[str, None] = {}
    negatives: dict[str, None] = {}
    for number, columns in chain(_iter_columns(source, intake, "qid positive negative"), [(0, ["", "", ""])]):
        if isinstance(columns, ValueError):
            yield number, columns
            continue
        if columns[0] != query:
            if positives:
                yield start, FoundExample(Example(query, tuple(positives), tuple(negatives)))
            query, start, positives, negatives = columns[0], number, {}, {}
        positives[columns[1]] = None
        negatives[columns[2]] = None


def _first_line(source: str, intake: Intake) -> bytes:
    return next((line for line in intake.peek(source).splitlines() if line.strip()), b"")


def _layout(source: str, intake: Intake) -> Literal["lines", "array", "table"]:
    if is_table(source):
        return "table"
    return "array" if is_array(intake.peek(source)[:64]) else "lines"


def _is_json(source: str, intake: Intake) -> bool:
    return _layout(source, intake) != "lines" or intake.peek(source).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"


def _read(
    source: str,
    intake: Intake,
    tsv: Callable[[Iterator[tuple[int, bytes]]], Iterator[Placed]],
    parse: Callable[[Row], Record],
    of_examples: Callable[[Iterator[Placed]], Found[Record]],
) -> Found[Record]:
    if _layout(source, intake) == "lines":
        rows = _parse_lines(intake.lines(source), tsv)
    else:
        rows = json_rows(source, intake)
    skipped: list[tuple[int, Row | ValueError]] = []
    for number, row in rows:  # the first valid row tells whether this is training data
        skipped.append((number, row))
        if not isinstance(row, ValueError):
            rows = chain(skipped, rows)
            yield from of_examples(rows) if is_example(row) else parse_rows(rows, parse)
            return
        if len(skipped) > 100:
            break
    yield from parse_rows(chain(skipped, rows), parse)


def parse_rows(rows: Iterator[Placed], parse: Callable[[Row], Record]) -> Found[Record]:
    """Yield the records that `parse` returns for rows, or its ValueError."""
    for number, row in rows:
        if type(row) is dict:
            try:
                record = parse(row)
            except ValueError as error:
                yield number, error
                continue
            yield number, record
        else:
            yield number, row  # type: ignore[misc]


def _parse_lines(
    lines: Iterator[tuple[int, bytes]], tsv: Callable[[Iterator[tuple[int, bytes]]], Iterator[Placed]]
) -> Iterator[Placed]:
    for number, line in lines:
        if not line.isspace() and line:
            lines = chain([(number, line)], lines)
            return _parse_jsonl(lines) if _is_json_line(line) else tsv(lines)
    return iter(())


def _is_json_line(line: bytes) -> bool:
    """Return whether a first line is JSON, perhaps damaged, and not tab-separated."""
    if b"\t" not in line:
        return True
    if line.lstrip()[:1] != b"{":
        return False
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:  # a question that begins with a brace, followed by answers
        return line.rpartition(b"\t")[2].lstrip()[:1] != b"["
    return True


def _parse_jsonl(lines: Iterator[tuple[int, bytes]]) -> Iterator[Placed]:
    loads = orjson.loads
    for number, line in lines:
        try:
            row = loads(line)
        except orjson.JSONDecodeError as error:
            if line.strip():
                yield number, ValueError(json_fault(line, error))
            continue
        if type(row) is dict and not is_too_deep(line, row):
            yield number, row
        else:
            try:
                parse_row(line)
            except ValueError as error:
                yield number, error


def _iter_passages(rows: Iterator[Placed]) -> Found[Passage]:
    seen: dict[int, tuple[int, int]] = {}  # hash of id -> hash of text, line: about 200 bytes a passage
    for number, found in parse_rows(rows, parse_example_row):
        if isinstance(found, ValueError):
            yield number, found
            continue
        if not found.passages and (found.example.positives or found.example.negatives):
            yield number, ValueError("this training data holds ids, not texts: it is no corpus")
        for passage in found.passages:
            yield from _drop_repeated(number, passage, passage.id, (passage.title, passage.text), seen)


def _iter_queries(rows: Iterator[Placed]) -> Found[Query]:
    seen: dict[int, tuple[int, int]] = {}
    for number, found in parse_rows(rows, parse_example_row):
        if isinstance(found, ValueError):
            yield number, found
        elif found.query is None:
            yield number, ValueError("this training data holds ids, not texts: it has no queries")
        else:
            yield from _drop_repeated(number, found.query, found.query.id, found.query.text, seen)


def _drop_repeated(
    number: int, record: Record, id: str, text: Hashable, seen: dict[int, tuple[int, int]]
) -> Iterator[tuple[int, Record | ValueError]]:
    """Yield the record if its id is new, an error if the id had another text before."""
    digest = hash(text)
    known, line = seen.setdefault(hash(id), (digest, -1))
    if line == -1:
        seen[hash(id)] = (digest, number)
        yield number, record
    elif known != digest:
        yield number, ValueError(f"id '{id}' comes again with another text (first in line {line})")


def _iter_result_hits(source: str, intake: Intake) -> Found[Hit]:
    for number, found in parse_rows(json_rows(source, intake), parse_result_hits):
        if isinstance(found, ValueError):
            yield number, found
            continue
        query, ranking = found
        for rank, (doc_id, score) in enumerate(ranking, start=1):
            yield number, Hit(query.id, doc_id, rank, score)


def _iter_ranked_pairs(source: str, intake: Intake) -> Found[Hit]:
    for number, columns in _iter_columns(source, intake, "qid pid rank"):
        if isinstance(columns, ValueError):
            yield number, columns
        elif not columns[2].isdecimal() or not 1 <= int(columns[2]) < 1 << 63:
            yield number, ValueError(f"rank '{columns[2]}' must be an integer from 1 to 2^63 - 1")
        else:
            rank = int(columns[2])
            yield number, Hit(columns[0], columns[1], rank, 1 / rank)


def _iter_candidates(source: str, intake: Intake) -> Found[Hit]:
    """Yield hits ranked by the order of the query's lines; the file need not be grouped by query."""
    ranks: dict[str, int] = {}
    for number, columns in _iter_columns(source, intake, "qid pid query passage", separator="\t"):
        if isinstance(columns, ValueError):
            yield number, columns
            continue
        query_id, doc_id = columns[0], columns[1]
        if not (query_id.isdecimal() and doc_id.isdecimal()):
            yield number, ValueError(f"expected integers as qid and pid, found '{query_id}' and '{doc_id}'")
            continue
        ranks[query_id] = rank = ranks.get(query_id, 0) + 1
        yield number, Hit(query_id, doc_id, rank, 1 / rank)


def _iter_columns(
    source: str, intake: Intake, names: str, *, separator: str | None = None
) -> Iterator[tuple[int, list[str] | ValueError]]:
    """Yield (line number, columns) of a file, split at white space or `separator`.

    Yields a ValueError for a line that has not as many columns as `names`.
    """
    count = len(names.split())
    for number, line in intake.lines(source):
        try:
            columns = line.decode().split(separator)
        except UnicodeDecodeError as error:
            yield number, ValueError(f"not UTF-8 at byte {error.start + 1}")
            continue
        if len(columns) == count:
            yield number, columns
        elif line.strip():
            yield number, ValueError(f"expected {count} columns '{names}', found {len(columns)}")
