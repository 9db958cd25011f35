"""Read passages, queries, judgments, runs and examples in the common formats, which are detected from the content.

`read_*` functions yield valid records and raise errors that name file:line. `iter_*` functions of a source yield (line
number, record), with a ValueError in place of an invalid record; `iter_valid` yields only their valid records. Invalid
lines of TREC runs, and of judgments as text, are passed to the tracker instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from glob import escape, glob
from itertools import chain, dropwhile
from typing import Any, Literal, TypeVar

import orjson

from drtk.data.examples import ParsedExample, parse_example_row, parse_result_hits
from drtk.data.json_arrays import iter_array_rows
from drtk.data.rows import (
    EXAMPLE,
    Row,
    describe_json_error,
    is_example,
    is_json_array,
    is_too_deep,
    make_id,
    parse_expansion,
    parse_id,
    parse_passage,
    parse_prediction,
    parse_query,
    parse_row,
)
from drtk.data.sniff import MAX_LINES, are_names, is_candidate_line, is_id_triple
from drtk.data.tables import is_table, iter_table_rows
from drtk.data.trec import Judgments, iter_qrel_lines, iter_query_hits, parse_qrel_row
from drtk.data.tsv import (
    QRELS_HEADER,
    RENAME_EXAMPLES,
    ParsedRow,
    are_text_triples,
    parse_candidate_lines,
    parse_example_header,
    parse_example_lines,
    parse_passage_lines,
    parse_query_lines,
    reject_lines,
)
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.records import Example, Expansion, Hit, Passage, Prediction, Qrel, Query
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import log, warn
from drtk.runtime.streams import get_source_name

Record = TypeVar("Record")
Text = TypeVar("Text", Passage, Query)
ParsedRecords = Iterator[tuple[int, Record | ValueError]]
_DOCUMENT_SUFFIXES = (".md", ".txt", ".html", ".htm", ".pdf", ".docx", ".csv", ".json", ".eml", ".ipynb")
MAX_CHECKED_IDS = 10_000_000  # ids in memory to find duplicates, about 70 bytes each


def read_records(
    source: str,
    parse: Callable[[Row], Record],
    *,
    tracker: InputTracker | None = None,
    has_ids: bool = False,
) -> Iterator[Record]:
    """Yield the records of a JSONL file, JSON array or table in file order. With `has_ids`, repeated ids are errors.

    parse: converts a JSON object to a record; raises ValueError for an invalid object
    Raises RecordError (file:line) for an invalid record, unless `tracker` skips it.
    """
    tracker = tracker or InputTracker()
    return iter_valid(parse_rows(iter_json_rows(source, tracker), parse), source, tracker, has_ids=has_ids)


def read_passages(
    source: str, *, tracker: InputTracker | None = None, side_files: Sequence[str] = ()
) -> Iterator[Passage]:
    """Yield the passages of a corpus in any format.

    side_files: files with further fields of the passages, written with `bare`; they are joined by id, line by line
    """
    tracker = tracker or InputTracker()
    passages = iter_valid(iter_passages(source, tracker), source, tracker, has_ids=True)
    return join_side_files(passages, source, side_files, tracker) if side_files else passages


def read_queries(source: str, *, tracker: InputTracker | None = None) -> Iterator[Query]:
    """Yield the queries of a file in any format."""
    tracker = tracker or InputTracker()
    return iter_valid(iter_queries(source, tracker), source, tracker, has_ids=True)


def read_examples(source: str, *, tracker: InputTracker | None = None) -> Iterator[Example]:
    """Yield the training examples of a file in any format that has ids of passages.

    Raises DrtkError for a format with texts only, which `drtk convert` can convert.
    """
    tracker = tracker or InputTracker()
    for parsed in iter_valid(iter_examples(source, tracker), source, tracker):
        if parsed.has_new_ids:
            raise DrtkError(
                f"{get_source_name(source)}: has texts without ids; run drtk convert three times, with "
                "`as` examples, passages and queries"
            )
        yield parsed.example


def read_predictions(source: str, *, tracker: InputTracker | None = None) -> Iterator[Prediction]:
    """Yield the predicted answers of a JSONL file. A query may have several."""
    return read_records(source, parse_prediction, tracker=tracker)


def read_expansions(source: str, *, tracker: InputTracker | None = None) -> Iterator[Expansion]:
    """Yield the query expansions of a JSONL file, as drtk expand-queries and rerank-queries write them."""
    return read_records(source, parse_expansion, tracker=tracker, has_ids=True)


def iter_valid(
    records: Iterable[tuple[int, Record | ValueError]],
    source: str,
    tracker: InputTracker,
    *,
    has_ids: bool = False,
) -> Iterator[Record]:
    """Yield the valid records; `tracker` skips or raises errors and repeated ids.

    records: (line number, record or error)
    has_ids: whether records have an `id`; repeated ids in the first MAX_CHECKED_IDS records are errors
    """
    seen: set[int] | None = set() if has_ids else None
    for number, record in records:
        if isinstance(record, ValueError):
            tracker.skip_line(source, number, record)
            continue
        if seen is not None:
            id, count = record.id, len(seen)  # type: ignore[attr-defined]
            seen.add(hash(id))
            if len(seen) == count:
                tracker.skip_line(source, number, f"duplicate id '{id}'")
                continue
            if count + 1 == MAX_CHECKED_IDS:
                seen = None
                warn(
                    f"{get_source_name(source)}: repeated ids are not detected after {MAX_CHECKED_IDS:,} records; "
                    "`drtk validate` finds them in passages and queries"
                )
        tracker.line = number
        yield record


def join_side_files(
    passages: Iterable[Passage], source: str, side_files: Sequence[str], tracker: InputTracker
) -> Iterator[Passage]:
    """Add the fields of side files to passages, line by line.

    Raises MismatchError if a side file has other ids or another length, RecordError (file:line) for its invalid lines.
    """
    sides = [(name, _iter_side_rows(name, tracker)) for name in side_files]
    count = 0
    for count, passage in enumerate(passages, start=1):
        extra = dict(passage.extra)
        metadata = dict(passage.metadata or {})
        for name, rows in sides:
            number, row = next(rows, (0, None))
            if row is None:
                raise MismatchError(
                    f"{name}: ends before record {count} of {get_source_name(source)} ('{passage.id}'); use a file made from this corpus"
                )
            if row["_id"] != passage.id:
                raise MismatchError(
                    f"{name}:{number}: id '{row['_id']}', but record {count} of {get_source_name(source)} is '{passage.id}'; "
                    "use a file made from this corpus"
                )
            metadata |= row.pop("metadata", None) or {}
            extra |= {field: value for field, value in row.items() if field != "_id"}
        yield Passage(passage.id, passage.text, passage.title, metadata or passage.metadata, extra)
    for name, rows in sides:
        number, row = next(rows, (0, None))
        if row is not None:
            raise MismatchError(
                f"{name}:{number}: id '{row['_id']}' is beyond the end of {get_source_name(source)} ({count} records); "
                "use a file made from this corpus"
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


def iter_passages(source: str, tracker: InputTracker) -> ParsedRecords[Passage]:
    """Yield the passages of a corpus, or the distinct passages in training data or MS MARCO's top-1000 candidates."""
    if os.path.isdir(source) and not is_table(source):
        advice = f"drtk import {source}"
        if os.path.isfile(f"{source}/meta.json"):
            advice = f"drtk show {source}"  # made by drtk, but no corpus
        elif os.path.isfile(f"{source}/index") and os.path.isfile(f"{source}/docid"):  # Pyserini's faiss indexes
            advice = f"drtk index {source}/index --ids {source}/docid"
        elif glob(f"{escape(source)}/segments_*"):
            advice = f"drtk search {source} QUERIES"  # a Lucene index
        raise DrtkError(f"{source}: is a folder; expected a file; run `{advice}`")
    passages: ParsedRecords[Passage] = _iter_texts(source, tracker, "passages")
    for count, (number, passage) in enumerate(passages):
        if count == 0 and isinstance(passage, ValueError) and source.lower().endswith(_DOCUMENT_SUFFIXES):
            ids = " --field _id=COLUMN" if source.lower().endswith((".csv", ".json")) else ""
            passage = ValueError(f"{passage}; run `drtk import {source}{ids}`")
        yield number, passage


def iter_queries(source: str, tracker: InputTracker) -> ParsedRecords[Query]:
    """Yield line number and query, or ValueError, for each line of a file of queries.

    Training data and MS MARCO's top-1000 candidates give each distinct query.

    A query without an id gets a digest of its text as id; a repeated text also gets the suffix -2, -3, …
    """
    queries: ParsedRecords[Query] = _iter_texts(source, tracker, "queries")
    uses: dict[str, int] = {}
    for number, query in queries:
        if isinstance(query, Query) and query.id[:1] == "q" and query.id == make_id("q", query.text):
            uses[query.id] = uses.get(query.id, 0) + 1
            if uses[query.id] > 1:
                query = replace(query, id=f"{query.id}-{uses[query.id]}")
        yield number, query


def iter_examples(source: str, tracker: InputTracker) -> ParsedRecords[ParsedExample]:
    """Yield training examples. An example without positives is an error."""
    if not _is_json(source, tracker):
        lines = _peek_lines(source, tracker)
        columns = lines[0].decode(errors="replace").split("\t") if lines else []
        is_header, has_ids = are_names(columns), 2 * sum(map(is_id_triple, lines)) > len(lines)
        if has_ids and not is_header:
            return _iter_triples(source, tracker)
        if not has_ids and _are_text_examples(lines):
            return parse_rows(parse_example_lines(tracker.iter_lines(source)), _parse_positives)
        is_known = all(map(str.isdigit, columns)) or columns[0].lower() == QRELS_HEADER[0]
        if has_ids:
            problem = "is a header above id triples; remove it; expected the columns qid, positive, negative"
        elif is_header:
            problem = (
                f"is a header without 'query' or 'positive'; {RENAME_EXAMPLES}; write ids as lines such as {EXAMPLE}"
            )
        else:
            problem = f"columns without names; for texts, add a header such as query<TAB>positive<TAB>negative; for ids, write lines such as {EXAMPLE}"
        if (is_header or len(columns) in (2, 3)) and not is_known:
            return reject_lines(tracker.iter_lines(source), problem)
    return parse_rows(iter_json_rows(source, tracker), _parse_positives)


def _peek_lines(source: str, tracker: InputTracker) -> list[bytes]:
    """Return the first lines of a file that are not blank."""
    head = tracker.peek(source).removeprefix(b"\xef\xbb\xbf")
    return [line for line in head.splitlines() if line.strip()][:MAX_LINES]


def _are_text_examples(lines: list[bytes]) -> bool:
    """Return whether the first lines of a file are training data with texts: below a header, or MS MARCO's triples."""
    if not lines:
        return False
    if parse_example_header(lines[0]) is not None:
        return True
    columns = lines[0].decode(errors="replace").split("\t")
    is_header = are_names(columns) or all(len(column.split()) == 1 for column in columns)
    return not is_header and are_text_triples(lines)


def _parse_positives(row: Row) -> ParsedExample:
    """Return the training example of a row. Raises ValueError for an invalid row, or one without positives."""
    parsed = parse_example_row(row)
    if not parsed.example.positives:
        raise ValueError("has no positives")
    return parsed


def iter_judgments(source: str, tracker: InputTracker) -> ParsedRecords[Qrel]:
    """Yield judgments in TREC's or BEIR's format (TSV, or rows of JSON and tables), or the distinct positives of training
    examples, with grade 1.
    """
    if not _is_json(source, tracker):
        yield from iter_qrel_lines(source, tracker=tracker)
        return
    seen: set[tuple[str, str]] = set()
    for number, parsed in parse_rows(iter_json_rows(source, tracker), _parse_judgments):
        if isinstance(parsed, (ValueError, Qrel)):
            yield number, parsed
        else:
            for id in parsed.example.positives:
                if (pair := (parsed.example.query_id, id)) not in seen:
                    seen.add(pair)
                    yield number, Qrel(*pair, 1)


def _parse_judgments(row: Row) -> Qrel | ParsedExample:
    """Return the training example of a row, or its judgment. Raises ValueError for an invalid row."""
    return _parse_positives(row) if is_example(row) else parse_qrel_row(row)


def load_qrels(source: str, *, tracker: InputTracker | None = None) -> Judgments:
    """Load judgments in any format: {query id: {document id: grade}}.

    Raises RecordError (file:line) for an invalid judgment or a repeated pair, unless `tracker` skips it.
    """
    tracker = tracker or InputTracker()
    judgments: Judgments = {}
    for qrel in iter_valid(iter_judgments(source, tracker), source, tracker):
        documents = judgments.setdefault(qrel.query_id, {})
        if qrel.doc_id in documents:
            problem = f"document '{qrel.doc_id}' is judged a second time for query '{qrel.query_id}'"
            tracker.skip_line(source, tracker.line, problem)
            continue
        documents[qrel.doc_id] = qrel.grade
    return judgments


def iter_hits(source: str, tracker: InputTracker) -> ParsedRecords[Hit]:
    """Yield the hits of a TREC run, of MS MARCO's ranked pairs or top-1000 candidates (score 1/rank), or of DPR's results."""
    if _is_json(source, tracker):
        yield from _iter_result_hits(source, tracker)
        return
    line = next(iter(_peek_lines(source, tracker)), b"")
    if is_id_triple(line):
        yield 1, ValueError("a triple of ids (query, positive, negative), not a hit; use `as` examples")
    elif len(line.split()) == 3:
        yield from _iter_ranked_pairs(source, tracker)
    elif is_candidate_line(line):
        yield from _iter_candidates(source, tracker)
    else:
        for block in iter_query_hits(source, tracker=tracker):
            rows = zip(block.lines, block.doc_ids, block.ranks, block.scores, block.tags, strict=True)
            for number, doc_id, rank, score, tag in rows:
                yield number, Hit(block.query_id, doc_id, rank, score, tag)


def iter_json_rows(source: str, tracker: InputTracker) -> Iterator[ParsedRow]:
    """Yield the JSON objects of JSONL, a JSON array, a Parquet file or a dataset."""
    layout = _detect_layout(source, tracker)
    if layout == "table":
        return iter_table_rows(source, tracker)
    if layout == "array":
        return iter_array_rows(tracker.iter_blocks(source))
    return parse_jsonl(tracker.iter_lines(source))


def _iter_triples(source: str, tracker: InputTracker) -> ParsedRecords[ParsedExample]:
    """Yield one example per group of consecutive triples of a query, with the number of its first line."""
    query, start = "", 0
    positives: dict[str, None] = {}
    negatives: dict[str, None] = {}
    for number, columns in chain(_iter_columns(source, tracker, "qid positive negative"), [(0, ["", "", ""])]):
        if isinstance(columns, ValueError):
            yield number, columns
            continue
        if columns[0] != query:
            if positives:
                yield start, ParsedExample(Example(query, tuple(positives), tuple(negatives)))
            query, start, positives, negatives = columns[0], number, {}, {}
        positives[columns[1]] = None
        negatives[columns[2]] = None


def _detect_layout(source: str, tracker: InputTracker) -> Literal["lines", "array", "table"]:
    if is_table(source):
        return "table"
    return "array" if is_json_array(tracker.peek(source)[:64]) else "lines"


def _is_json(source: str, tracker: InputTracker) -> bool:
    return (
        _detect_layout(source, tracker) != "lines"
        or tracker.peek(source).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"
    )


def _iter_texts(source: str, tracker: InputTracker, kind: Literal["passages", "queries"]) -> ParsedRecords[Any]:
    """Yield the passages or queries of a file, or the distinct ones of training data or MS MARCO's top-1000 candidates."""
    parse: Callable[[Row], Any] = parse_passage if kind == "passages" else parse_query
    if _detect_layout(source, tracker) != "lines":
        rows = iter_json_rows(source, tracker)
    else:
        head = _peek_lines(source, tracker)
        lines: Iterator[tuple[int, bytes]] = dropwhile(lambda item: not item[1].strip(), tracker.iter_lines(source))
        first = next(lines, (0, b""))
        lines = chain([first], lines)
        if _is_json_line(first[1]):
            rows = parse_jsonl(lines)
        elif is_candidate_line(first[1]):
            yield from _iter_distinct(parse_rows(parse_candidate_lines(lines, kind), parse))
            return
        elif _are_text_examples(head):
            if parse_example_header(first[1]) is None:
                warn(
                    f"{get_source_name(source)}: read as training data (query, positive, negative); for a corpus, add a header such as id<TAB>title<TAB>text"
                )
            rows = parse_example_lines(lines)
        elif kind == "passages":
            rows = parse_passage_lines(lines, name=get_source_name(source))
        else:
            rows = parse_query_lines(lines)
    buffered: list[tuple[int, Row | ValueError]] = []
    for number, row in rows:  # the first valid row decides whether this is training data
        buffered.append((number, row))
        if not isinstance(row, ValueError):
            rows = chain(buffered, rows)
            if is_example(row):
                yield from _iter_distinct(_iter_example_texts(parse_rows(rows, parse_example_row), kind))
            else:
                yield from parse_rows(rows, parse)
            return
        if len(buffered) > 100:
            break
    yield from parse_rows(chain(buffered, rows), parse)


def parse_rows(rows: Iterator[ParsedRow], parse: Callable[[Row], Record]) -> ParsedRecords[Record]:
    """Yield (line number, `parse(row)`) for each row; yield errors in place of rows, and ValueErrors of `parse`."""
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


def _is_json_line(line: bytes) -> bool:
    """Return whether the first line of a file is JSON, perhaps damaged, rather than tab-separated."""
    if b"\t" not in line:
        return True
    if line.lstrip()[:1] != b"{":
        return False
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:  # a question that begins with a brace, followed by answers
        return line.rpartition(b"\t")[2].lstrip(b' "')[:1] != b"["
    return True


def parse_jsonl(lines: Iterable[tuple[int, bytes]]) -> Iterator[ParsedRow]:
    """Yield (line number, object) of each line that is not blank, or a ValueError for an invalid line."""
    loads = orjson.loads
    for number, line in lines:
        try:
            row = loads(line)
        except orjson.JSONDecodeError as error:
            if line.strip():
                yield number, ValueError(describe_json_error(line, error))
            continue
        if type(row) is dict and not is_too_deep(line, row):
            yield number, row
        else:
            try:
                parse_row(line)
            except ValueError as error:
                yield number, error


def _iter_example_texts(
    examples: ParsedRecords[ParsedExample], kind: Literal["passages", "queries"]
) -> ParsedRecords[Any]:
    """Yield the passages or the query of each training example."""
    for number, parsed in examples:
        if isinstance(parsed, ValueError):
            yield number, parsed
            continue
        texts: Sequence[Any] = parsed.passages
        if kind == "queries":
            texts = [] if parsed.query is None else [parsed.query]
        if not texts and (kind == "queries" or parsed.example.positives or parsed.example.negatives):
            expected = "a corpus" if kind == "passages" else "queries"
            problem = f"the training data has ids without texts; expected {expected}, or examples with texts"
            yield number, ValueError(problem)
        for text in texts:
            yield number, text


def _iter_distinct(records: ParsedRecords[Text]) -> ParsedRecords[Text]:
    """Yield each passage or query once. An id that is repeated with another text is an error."""
    seen: dict[int, tuple[int, int]] = {}  # hash of id -> hash of text, line: about 200 bytes a record
    for number, record in records:
        if isinstance(record, ValueError):
            yield number, record
            continue
        digest = hash((getattr(record, "title", ""), record.text))
        known, line = seen.setdefault(hash(record.id), (digest, -1))
        if line == -1:
            seen[hash(record.id)] = (digest, number)
            yield number, record
        elif known != digest:
            yield number, ValueError(f"id '{record.id}' is repeated with another text (first in line {line})")


def _iter_result_hits(source: str, tracker: InputTracker) -> ParsedRecords[Hit]:
    for number, parsed in parse_rows(iter_json_rows(source, tracker), parse_result_hits):
        if isinstance(parsed, ValueError):
            yield number, parsed
            continue
        query, ranking = parsed
        for rank, (doc_id, score) in enumerate(ranking, start=1):
            yield number, Hit(query.id, doc_id, rank, score)


def _iter_ranked_pairs(source: str, tracker: InputTracker) -> ParsedRecords[Hit]:
    for number, columns in _iter_columns(source, tracker, "qid pid rank"):
        if isinstance(columns, ValueError):
            yield number, columns
        elif not columns[2].isdecimal() or not 1 <= int(columns[2]) < 1 << 63:
            yield number, ValueError(f"rank '{columns[2]}' must be an integer from 1 to 2^63 - 1")
        else:
            rank = int(columns[2])
            yield number, Hit(columns[0], columns[1], rank, 1 / rank)


def _iter_candidates(source: str, tracker: InputTracker) -> ParsedRecords[Hit]:
    """Yield hits, ranked in the order of each query's lines. The lines of a query need not be consecutive."""
    log(
        f"{get_source_name(source)}: candidates without scores; they are ranked in the order of the file, which may be random"
    )
    ranks: dict[str, int] = {}
    for number, columns in _iter_columns(source, tracker, "qid pid query passage", separator="\t"):
        if isinstance(columns, ValueError):
            yield number, columns
            continue
        query_id, doc_id = columns[0], columns[1]
        if not (query_id.isdecimal() and doc_id.isdecimal()):
            yield number, ValueError(f"expected integers as qid and pid, got '{query_id}' and '{doc_id}'")
            continue
        ranks[query_id] = rank = ranks.get(query_id, 0) + 1
        yield number, Hit(query_id, doc_id, rank, 1 / rank)


def _iter_columns(
    source: str, tracker: InputTracker, names: str, *, separator: str | None = None
) -> Iterator[tuple[int, list[str] | ValueError]]:
    """Yield (line number, columns) of a file, split at white space or `separator`.

    Blank lines are skipped. A line that is not UTF-8 or has another number of columns than `names` yields a ValueError.
    """
    count = len(names.split())
    for number, line in tracker.iter_lines(source):
        try:
            columns = line.decode().split(separator)
        except UnicodeDecodeError as error:
            yield number, ValueError(f"not UTF-8 at byte {error.start + 1}")
            continue
        if len(columns) == count:
            yield number, columns
        elif line.strip():
            yield number, ValueError(f"expected {count} columns '{names}', got {len(columns)}")
