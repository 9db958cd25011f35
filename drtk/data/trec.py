"""Read TREC runs and judgments, with errors that name file:line; write runs."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby, islice
from math import isfinite
from operator import gt
from typing import Literal

import orjson

from drtk.data.rows import Row, parse_id, take_field
from drtk.data.sniff import CANDIDATES, GRADE_NAMES, RANKED, are_names, sniff_kind
from drtk.data.tsv import QRELS_HEADER, unquote_field
from drtk.errors import RecordError
from drtk.records import Qrel
from drtk.runtime.inputs import InputTracker
from drtk.runtime.streams import get_source_name

Ranking = list[tuple[str, float]]
Order = Literal["score", "rank"]
Judgments = dict[str, dict[str, int]]

RUN_COLUMNS = "qid Q0 docid rank score tag"
_MAX_NUMBER = (1 << 63) - 1  # of a rank or a grade
_COLUMNS = ("doc_ids", "scores", "ranks", "tags", "lines")
_BLOCK_LINES = 20_000  # lines split in one call, for speed


@dataclass(slots=True)
class QueryHits:
    """The hits of one query in a run, as columns; `lines` are their line numbers."""

    query_id: str
    doc_ids: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def extend(self, more: QueryHits) -> None:
        """Append further hits of the same query."""
        for name in _COLUMNS:
            getattr(self, name).extend(getattr(more, name))

    def keep(self, positions: list[int]) -> None:
        """Keep only the hits at these positions."""
        for name in _COLUMNS:
            column = getattr(self, name)
            setattr(self, name, [column[position] for position in positions])

    def to_ranking(self, order: Order = "score") -> Ranking:
        """Return (document id, score) pairs, best first.

        order: "score" sorts by score in single precision and then by descending id, as trec_eval does; "rank" sorts by the
            rank column
        """
        best = self._sort_positions(order)
        if best is None:
            return list(zip(self.doc_ids, self.scores, strict=True))
        return [(self.doc_ids[at], self.scores[at]) for at in best]

    def to_ranked_ids(self, order: Order = "score") -> list[str]:
        """Return the document ids of `to_ranking`."""
        best = self._sort_positions(order)
        return list(self.doc_ids) if best is None else [self.doc_ids[at] for at in best]

    def _sort_positions(self, order: Order) -> list[int] | None:
        """Return the positions of the hits, best first; None in order "score" if the scores already decrease strictly."""
        if order == "rank":
            return sorted(range(len(self.ranks)), key=self.ranks.__getitem__)
        single = array("f", self.scores)
        if all(map(gt, single, islice(single, 1, None))):  # sorted already, as in nearly every file
            return None
        by_score = sorted(zip(single, self.doc_ids, range(len(single)), strict=True), reverse=True)
        return [at for _, _, at in by_score]


def iter_query_hits(source: str, *, tracker: InputTracker | None = None) -> Iterator[QueryHits]:
    """Yield the hits of consecutive lines of a query, in file order. Columns after the sixth are ignored.

    A query whose lines are not consecutive is yielded several times.
    Raises RecordError (file:line) for an invalid line, a score that is not finite, or a repeated document, unless
    `tracker` skips it.
    """
    tracker = tracker or InputTracker()
    current: QueryHits | None = None
    for piece in _iter_partial_hits(source, tracker):
        if current is None:
            current = piece
        elif piece.query_id == current.query_id:
            current.extend(piece)
        else:
            yield _drop_duplicates(current, source, tracker)
            current = piece
    if current is not None:
        yield _drop_duplicates(current, source, tracker)


def iter_grouped_hits(source: str, *, tracker: InputTracker | None = None) -> Iterator[QueryHits]:
    """Yield the hits of each query, in file order. Raises RecordError if the lines of a query are not consecutive."""
    seen: set[str] = set()
    for hits in iter_query_hits(source, tracker=tracker):
        if hits.query_id in seen:
            place = f"{get_source_name(source)}:{hits.lines[0]}"
            raise RecordError(
                place, f"the lines of query '{hits.query_id}' are not consecutive; sort the run: sort -s -k1,1"
            )
        seen.add(hits.query_id)
        yield hits


def iter_rankings(source: str, *, tracker: InputTracker | None = None) -> Iterator[tuple[str, Ranking]]:
    """Yield (query id, ranking) in file order (see `QueryHits.to_ranking`). Raises RecordError as `iter_grouped_hits` does."""
    for hits in iter_grouped_hits(source, tracker=tracker):
        yield hits.query_id, hits.to_ranking()


def load_hits(
    source: str,
    *,
    tracker: InputTracker | None = None,
    only: Container[str] | None = None,
    others: dict[str, None] | None = None,
) -> dict[str, QueryHits]:
    """Load a run: {query id: hits}. The lines of a query need not be consecutive.

    only: ids of the queries to load; by default all    others: gets the ids of the queries that are not loaded as keys
    """
    tracker = tracker or InputTracker()
    run: dict[str, QueryHits] = {}
    scattered: set[str] = set()
    for hits in iter_query_hits(source, tracker=tracker):
        if only is not None and hits.query_id not in only:
            if others is not None:
                others[hits.query_id] = None
            continue
        if hits.query_id in run:
            run[hits.query_id].extend(hits)
            scattered.add(hits.query_id)
        else:
            run[hits.query_id] = hits
    for query_id in scattered:
        _drop_duplicates(run[query_id], source, tracker)
    return run


def load_run(source: str, *, tracker: InputTracker | None = None) -> dict[str, Ranking]:
    """Load a run: {query id: ranking} (see `QueryHits.to_ranking`). The lines of a query need not be consecutive."""
    hits = load_hits(source, tracker=tracker)
    was_enabled = gc.isenabled()
    gc.disable()  # garbage collection of millions of pairs takes longer than creating them
    try:
        return {query_id: hits.pop(query_id).to_ranking() for query_id in list(hits)}
    finally:
        if was_enabled:
            gc.enable()


def _iter_partial_hits(source: str, tracker: InputTracker) -> Iterator[QueryHits]:
    lines = tracker.iter_lines(source)
    while block := list(islice(lines, _BLOCK_LINES)):
        yield from _parse_block(block) or _parse_lines(block, source, tracker)


def _parse_block(block: list[tuple[int, bytes]]) -> list[QueryHits] | None:
    """Parse many lines at once; return None if any line needs `_parse_lines`."""
    try:
        text = b"\n".join([line for _, line in block]).decode()
    except UnicodeDecodeError:
        return None
    tokens = text.split()
    # A short and a long line may have 6 columns on average, but their second columns would differ.
    if len(tokens) != 6 * len(block) or "\0" in text or len(set(tokens[1::6])) != 1:
        return None
    try:
        scores = list(map(float, tokens[4::6]))
        ranks = list(map(int, tokens[3::6]))
    except ValueError:
        return None
    if not isfinite(sum(scores)) or "_" in "".join(tokens[4::6]) or max(ranks) > _MAX_NUMBER or min(ranks) < 0:
        return None
    doc_ids, tags = tokens[2::6], tokens[5::6]
    pieces, start = [], 0
    for query_id, same in groupby(tokens[0::6]):
        end = start + sum(1 for _ in same)
        numbers = [number for number, _ in block[start:end]]
        pieces.append(
            QueryHits(query_id, doc_ids[start:end], scores[start:end], ranks[start:end], tags[start:end], numbers)
        )
        start = end
    return pieces


def _parse_lines(block: Iterable[tuple[int, bytes]], source: str, tracker: InputTracker) -> Iterator[QueryHits]:
    for number, line in block:
        if not line.strip():
            continue
        try:
            columns = _split_columns(line)
            if len(columns) < 6:
                raise ValueError(f"expected 6 columns '{RUN_COLUMNS}', separated by tabs or spaces, got {len(columns)}")
            query_id, _, doc_id, rank, score, tag = columns[:6]
            hits = QueryHits(query_id, [doc_id], [_parse_score(score)], [_parse_int(rank, "rank")], [tag], [number])
        except ValueError as error:
            tracker.skip_line(source, number, _describe_line_error(error, line, number, "a TREC run"))
            continue
        yield hits


def _split_columns(line: bytes) -> list[str]:
    if b"\0" in line:
        raise ValueError("contains a NUL byte")
    try:
        return line.decode().split()
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8") from error


def _parse_int(text: str, column: str) -> int:
    try:
        if "_" in text:  # valid in Python only
            raise ValueError
        number = int(text)
    except ValueError:
        raise ValueError(f"{column} '{text}' is not an integer") from None
    if not -_MAX_NUMBER <= number <= _MAX_NUMBER:
        raise ValueError(f"{column} '{text}' does not fit into 64 bits")
    return number


def _parse_score(text: str) -> float:
    try:
        score = float(text.replace("_", "?"))
    except ValueError:
        raise ValueError(f"score '{text}' is not a number") from None
    if not isfinite(score):
        raise ValueError(f"score '{text}' is not finite")
    return score


def _drop_duplicates(hits: QueryHits, source: str, tracker: InputTracker) -> QueryHits:
    if len(set(hits.doc_ids)) == len(hits.doc_ids):
        return hits
    first: dict[str, int] = {}
    for position, doc_id in enumerate(hits.doc_ids):
        if first.setdefault(doc_id, position) != position:
            problem = f"document '{doc_id}' is listed a second time for query '{hits.query_id}'"
            place = f"first in line {hits.lines[first[doc_id]]}"
            tracker.skip_line(source, hits.lines[position], f"{problem} ({place})")
    hits.keep(list(first.values()))
    return hits


def format_run_lines(query_id: str, ranking: Sequence[tuple[str, float]], tag: str = "drtk") -> bytes:
    """Return the lines of a run for one query, with ranks from 1. Scores are written with all their digits.

    tag: name of the run, the last column
    """
    if not ranking:
        return b""
    ids, scores = [id for id, _ in ranking], [score for _, score in ranking]
    # Joining columns takes a fifth of the time of formatting line by line (docs/benchmarks.md).
    pieces = [f" {tag}\n{query_id} Q0 "] * (4 * len(ids) + 1)
    pieces[0], pieces[-1] = f"{query_id} Q0 ", f" {tag}\n"
    pieces[1::4], pieces[3::4] = ids, _format_floats(scores)
    pieces[2::4] = _format_ranks(len(ids))
    return "".join(pieces).encode()


@lru_cache(maxsize=16)
def _format_ranks(count: int) -> list[str]:
    return [f" {rank} " for rank in range(1, count + 1)]


def _format_floats(values: Iterable[float]) -> list[str]:
    """Return `repr(float(value))` of each value."""
    numbers = [float(value) for value in values]
    text = orjson.dumps(numbers)[1:-1].decode()  # ten times as fast as repr
    # orjson writes exponents and numbers below .0001 otherwise, and NaN and infinity as null.
    if "e" in text or "0.0000" in text or "null" in text:
        return [repr(number) for number in numbers]
    return text.split(",")


def iter_qrel_lines(source: str, *, tracker: InputTracker) -> Iterator[tuple[int, Qrel]]:
    """Yield (line number, judgment) of BEIR's TSV (with or without header) or TREC's format, in file order.

    Lines that begin with '#' are comments. Columns are unquoted if the header is quoted. Raises RecordError (file:line) for
    wrong columns or a grade that is not an integer, unless `tracker` skips it.
    """
    beir: bool | None = None
    is_quoted = False
    for number, line in tracker.iter_lines(source):
        if not line.strip() or line.startswith(b"#"):
            continue
        try:
            columns = _split_columns(line)
            if beir is None:
                beir = len(columns) == 3
                if _is_qrel_header(columns, f"{source}:{number}"):
                    is_quoted = columns[0].startswith('"')
                    continue
            if is_quoted:
                columns = [unquote_field(column) for column in columns]
            qrel = _parse_qrel(columns, 3 if beir else 4)
        except ValueError as error:
            tracker.skip_line(source, number, _describe_line_error(error, line, number, "judgments"))
            continue
        yield number, qrel


def _is_qrel_header(columns: list[str], place: str) -> bool:
    """Return whether a first line is a header. Raises RecordError (`place`) if its columns are others or in another order."""
    if len(columns) not in (3, 4):
        return False
    names = [unquote_field(column).lower() for column in columns]
    has_grade = names[-1] in GRADE_NAMES
    if not (has_grade or (names[-1][:1].isalpha() and are_names(columns[:-1]))):
        return False
    is_query = [name != "q0" and name.startswith(("q", "topic")) for name in names]
    is_document = names[0].startswith(("corpus", "doc", "passage", "pid"))
    if is_document or (is_query[1] and not is_query[0]) or not has_grade:
        raise RecordError(place, f"is a header with other columns; rename and order them as '{' '.join(QRELS_HEADER)}'")
    return True


def parse_qrel_row(row: Row) -> Qrel:
    """Return the judgment of a row with BEIR's or other usual field names. Raises ValueError for an invalid row."""
    row = row.copy()
    query_id = parse_id(take_field(row, "query-id", "query_id", "qid", "topic_id"), "query-id")
    names = ("corpus-id", "corpus_id", "doc_id", "docid", "docno", "document_id", "passage_id", "pid")
    doc_id = parse_id(take_field(row, *names), "corpus-id")
    grade = take_field(row, *GRADE_NAMES)
    if type(grade) not in (int, float) or not float(grade).is_integer():
        raise ValueError(f"'score' must be an integer, got {grade!r}")
    return Qrel(query_id, doc_id, int(grade))


def _describe_line_error(error: ValueError, line: bytes, number: int, expected: str) -> str:
    """Return the error message for a line; for the first line, add the kind of file it seems to be."""
    convert = "; make a run with drtk convert --as run" if expected == "a TREC run" else ""
    if line.lstrip().startswith((b"{", b"[")):
        return f"looks like JSON; expected {expected}" + (convert if b'"ctxs"' in line else "")
    kind = sniff_kind(line) if number == 1 else None
    if kind is not None and expected.removeprefix("a ") in kind:
        return str(error)
    advice = convert if kind in (RANKED, CANDIDATES) else ""
    return f"{error}; the file looks like {kind}{advice}" if kind else str(error)


def _parse_qrel(columns: list[str], count: int) -> Qrel:
    if len(columns) != count:
        shape = " ".join(QRELS_HEADER) if count == 3 else "qid 0 docid grade"
        advice = "; remove white space from ids" if len(columns) > count else ""
        if len(columns) == 1 and "," in columns[0]:
            advice = "; replace commas with tabs"
        raise ValueError(f"expected {count} columns '{shape}', separated by tabs or spaces, got {len(columns)}{advice}")
    return Qrel(columns[0], columns[-2], _parse_int(columns[-1].removesuffix(".0"), "grade"))  # pandas writes 1.0
