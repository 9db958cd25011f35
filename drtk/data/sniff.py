"""Detect the kind of an input file, such as a run or a corpus, from its first lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import Literal

import orjson

from drtk.data.json_arrays import iter_array_rows
from drtk.data.rows import PASSAGE_IDS, QUERY_IDS, QUERY_TEXTS, Row, is_example, is_json_array

# Last column in a header of judgments.
GRADE_NAMES = ("score", "rel", "relevance", "relevancy", "grade", "label", "judgment", "judgement")
MAX_LINES = 10  # number of first lines that are read
# Usual names of columns, in lower case, such as doc_id, passageid and sentence1.
_NAME = re.compile(
    r"([a-z]+[_-])*(id|[pqu]id|pmid|docno|docnum|uuid|idx|num|number|filename|anchor|sentence[_-]?\d?"
    r"|(doc|topic|query|question|document|passage|paragraph|corpus|article|chunk|segment|psg|claim|term|file)([_-]?id)?"
    r"|text|title|name|body|abs|abstract|contents?|context|answers?|description|url|index|key|value|iter|iteration|pos|positive"
    r"|neg([_-]?\d+)?|negative([_-]?\d+)?|scores?|label|grade|rank|rating|rel|relevance|relevancy|qrel|judge?ment|split)"
)

EXAMPLES, RUN, JUDGMENTS = "training examples", "hits of a TREC run", "judgments"
RANKED = "judgments, or MS MARCO's ranked pairs or triples"  # q1 p1 1: a grade, a rank, or a negative
TRIPLES = "MS MARCO's triples"
CANDIDATES = "MS MARCO's top-1000 candidates"  # qid, pid, query, passage
QUERIES, PASSAGES, EITHER = "queries", "passages", "queries or passages"
PREDICTIONS, EXPANSIONS = "predicted answers", "expansions of questions"


def sniff_columns(head: bytes) -> Literal["run", "qrels"] | None:
    """Return "run" or "qrels" if most of the first lines have its columns; None otherwise.

    head: the first decompressed bytes of a file
    """
    lines = [line for line in split_whole_lines(head) if line.strip() and not line.startswith(b"#")][:MAX_LINES]
    kinds = [RUN if line.split()[1:2] == [b"Q0"] else _sniff_line(line) for line in lines]
    if kinds.count(RUN) * 2 > len(kinds):
        return "run"
    judged = kinds.count(JUDGMENTS) + (kinds.count(RANKED) if kinds[:1] == [JUDGMENTS] else 0)
    return "qrels" if judged * 2 > len(kinds) else None


def sniff_kind(head: bytes) -> str | None:
    """Return the kind of a file (a constant of this module); None if it is unclear or lines are of different kinds.

    head: the first decompressed bytes of the file
    """
    head = head.removeprefix(b"\xef\xbb\xbf")
    if is_json_array(head[:64]):
        kinds = [
            None if isinstance(row, ValueError) else sniff_row(row) for _, row in islice(iter_array_rows([head]), 1)
        ]
    else:
        lines = [line for line in split_whole_lines(head) if line.strip() and not line.startswith(b"#")]
        kinds = [_sniff_line(line) for line in lines[:MAX_LINES]]
    unique_kinds = set(kinds)
    if unique_kinds == {JUDGMENTS, RANKED} and kinds[0] == JUDGMENTS:  # BEIR's header, and its lines
        return JUDGMENTS
    if unique_kinds in ({QUERIES, EITHER}, {PASSAGES, EITHER}):  # some without answers, or without a title
        unique_kinds.discard(EITHER)
    return unique_kinds.pop() if len(unique_kinds) == 1 else None


def are_names(columns: Sequence[str]) -> bool:
    """Return whether the columns of a first line are usual names of columns, perhaps in quotes."""
    return len(columns) > 1 and all(_NAME.fullmatch(column.strip().strip('"').lower()) for column in columns)


def is_candidate_line(line: bytes) -> bool:
    """Return whether a line is `qid<TAB>pid<TAB>query<TAB>passage` of MS MARCO's top-1000 candidates.

    Judgments also have four columns, but the last is a number.
    """
    columns = line.split(b"\t")
    return len(columns) == 4 and columns[0].isdigit() and columns[1].isdigit() and not columns[3].strip().isdigit()


def is_id_triple(line: bytes) -> bool:
    """Return whether a line is an MS MARCO id triple, `qid<TAB>positive<TAB>negative`.

    Judgments and ranked pairs have small numbers in the third column, so it must have at least four digits.
    """
    columns = line.split()
    return len(columns) == 3 and all(map(bytes.isdigit, columns)) and len(columns[2].lstrip(b"0")) > 3


def split_whole_lines(head: bytes) -> list[bytes]:
    """Return the lines of `head` with their line ends, without an incomplete last line unless it is the only one."""
    lines = head.removeprefix(b"\xef\xbb\xbf").splitlines(keepends=True)
    return lines[:-1] if len(lines) > 1 and not lines[-1].endswith(b"\n") else lines


def _sniff_line(line: bytes) -> str | None:
    if line.lstrip().startswith(b"{"):
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            return None
        return sniff_row(row)
    if is_candidate_line(line):
        return CANDIDATES
    if is_id_triple(line):
        return TRIPLES
    try:
        columns = line.decode().split()
    except UnicodeDecodeError:
        return None
    if len(columns) >= 6 and _is_integer(columns[3]) and _is_number(columns[4]):
        return RUN
    if len(columns) == 4 and _is_integer(columns[1]) and _is_integer(columns[3]):
        return JUDGMENTS
    if len(columns) == 3 and columns[2].strip('"').lower() in GRADE_NAMES and line.count(b"\t") in (0, 2):
        return JUDGMENTS
    if len(columns) == 3 and _is_integer(columns[2].strip('"')):
        return RANKED
    return EITHER if line.count(b"\t") in (1, 2) else None  # id and text, and a title or answers


def sniff_row(row: Row) -> str | None:
    """Return the kind of a JSON record (a constant of this module); None if it is unclear."""
    if is_example(row):
        return EXAMPLES
    if "corpus-id" in row:
        return JUDGMENTS
    if ("query_id" in row or "qid" in row) and "kind" in row and "text" in row:
        return EXPANSIONS
    if isinstance(row.get("answer", row.get("prediction")), str) and any(name in row for name in QUERY_IDS):
        return QUERIES if any(name in row for name in QUERY_TEXTS) else PREDICTIONS
    is_query = "answers" in row or any(name in row for name in QUERY_TEXTS if name != "text")
    is_passage = any(name in row for name in ("title", "contents", "docid"))
    if is_query or is_passage:
        return None if is_query and is_passage else QUERIES if is_query else PASSAGES
    return EITHER if "text" in row and any(name in row for name in QUERY_IDS) else None


def is_surely_passage(row: Row) -> bool:
    """Return whether a JSON record has a text, an id, and a field that only passages have."""
    has_id = any(name in row for name in PASSAGE_IDS) and not any(name in row for name in ("query_id", "qid"))
    return sniff_row(row) == PASSAGES and has_id and isinstance(row.get("text", row.get("contents")), str)


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
