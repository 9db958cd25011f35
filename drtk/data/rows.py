"""Convert JSON objects (rows) to records and back. Field names are those of docs/formats.md."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from math import isfinite
from typing import Any

import orjson

from drtk.records import Example, Expansion, Passage, Prediction, Query, describe_kind_problem

Row = dict[str, Any]
MAX_SHOWN_FIELDS = 10  # in messages
MAX_DEPTH = 200  # levels of nested JSON; orjson reads 1,023 but writes 254, and records may be nested in others
FAISS_ERROR = "a faiss index, not text; give the ids of its vectors with drtk index --ids"
TOO_DEEP = f"JSON nested more than {MAX_DEPTH} levels deep"
PASSAGE_IDS = ("_id", "id", "docid", "doc_id", "passage_id", "psg_id", "pid")
_new = Passage.__new__
_set_id, _set_text, _set_title, _set_metadata, _set_extra = (
    getattr(Passage, name).__set__ for name in ("id", "text", "title", "metadata", "extra")
)
_SIDE_FIELDS = frozenset({"weights", "impacts", "queries", "continuations"})  # written without texts by `bare`
EXAMPLE_FIELDS = ("positives", "positive_passages", "positive_document_ids", "positive_ctxs", "ctxs", "pos")
ANCHORS = ("anchor", "query", "question")  # query of a pair or triplet of sentence-transformers
NEGATIVE = re.compile(r"negative(_\d+)?")  # name of a negative there
QUERY_IDS = ("_id", "id", "query_id", "qid")
QUERY_TEXTS = ("text", "question", "query", "query_text")
# (our name, TriviaQA's name): capitalized in the original files, lower case in the copy on the hub.
_TRIVIAQA_NAMES = (("_id", "QuestionId"), ("_id", "question_id"), ("question", "Question"), ("answer", "Answer"))


def parse_row(line: bytes) -> Row:
    """Parse the JSON object on a line. Raises ValueError for any other line."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(describe_json_error(line, error)) from error
    if type(row) is not dict:
        raise ValueError(f"expected a JSON object, got {_describe_type(row)}")
    if is_too_deep(line, row):
        raise ValueError(TOO_DEEP)
    return row


def is_example(row: Row) -> bool:
    """Return whether a row is a training example or one of DPR's retrieval results."""
    if "positive" in row and any(name in row for name in ANCHORS):
        return True
    is_passage = "_id" in row and ("text" in row or "contents" in row)
    return not is_passage and any(name in row for name in EXAMPLE_FIELDS)


def is_json_array(head: bytes) -> bool:
    """Return whether a file that begins with `head` is a JSON array of objects or an empty one."""
    return re.match(rb"(\xef\xbb\xbf)?\s*\[\s*(\{|\]|\Z)", head) is not None


def is_too_deep(line: bytes, row: Row) -> bool:
    """Return whether a JSON object has more than MAX_DEPTH nesting levels, too many to write it again as JSON."""
    if line.count(b"[") + line.count(b"{") <= MAX_DEPTH:  # fast path for nearly every line
        return False
    level: list[Any] = [row]
    for _ in range(MAX_DEPTH):
        level = [
            value
            for container in level
            for value in (container.values() if type(container) is dict else container)
            if type(value) is dict or type(value) is list
        ]
    return bool(level)


EXAMPLE = '{"query_id": "1", "positives": ["2"], "negatives": ["3"]}'  # a training example, for messages


def is_faiss_index(head: bytes) -> bool:
    """Return whether a file that begins with `head` is a faiss index."""
    return re.match(rb"I[xwH][A-Za-z0-9]{2}.{0,8}\0", head, re.DOTALL) is not None


def describe_json_error(text: bytes, error: orjson.JSONDecodeError) -> str:
    """Return the error message for bytes that are not JSON."""
    if is_faiss_index(text):
        return FAISS_ERROR
    try:
        text.decode()
    except UnicodeDecodeError as fault:
        if text.startswith(b"\x93NUMPY"):
            return "a numpy file, not JSON; import vectors with drtk convert --as embeddings"
        hint = " (UTF-16?)" if text[:2] in (b"\xff\xfe", b"\xfe\xff") or text[1:2] == b"\0" else ""
        return f"not UTF-8 at byte {fault.start + 1}{hint}"
    if not text.strip():
        return "not JSON: the line is empty"
    if "depth" in error.msg:  # "depth limit exceeded", in older versions of orjson "recursion depth exceeded"
        return TOO_DEEP
    if re.fullmatch(rb"\d+\t\d+\t\d+", text.strip()):
        return f"three numbers, but MS MARCO's triples have passage ids above 999; write lines such as {EXAMPLE}"
    if error.msg.startswith("unexpected end"):
        return f"not JSON: ends after {len(text):,} bytes; the line is incomplete"
    if error.msg.startswith("unexpected content after"):
        return f"not JSON: unexpected text after the object at column {error.colno}; expected one object per line"
    rest = text.decode()[error.pos :]
    for word in ("NaN", "Infinity", "-Infinity"):
        if rest.startswith((word, word[1:])):
            return f"not JSON: {word} at column {error.colno} is not a JSON number"
    if not text.lstrip().startswith((b"{", b"[")):
        columns = text.split()
        is_trec = len(columns) in (4, 6) and columns[1] in (b"0", b"Q0")
        if re.fullmatch(rb"[^,\s]+(,[^,\s]+)+", text.strip()):
            return "expected a JSON object, got comma-separated text; convert it to JSONL or TSV"
        kind = "other text" if not is_trec else "a line of a TREC run" if len(columns) == 6 else "a TREC judgment"
        return f"expected a JSON object, got {kind}"
    return f"not JSON: {error.msg} at column {error.colno}"


def _describe_type(value: Any) -> str:
    names = {list: "a list", str: "a string", bool: "a boolean", dict: "an object", type(None): "null"}
    return names.get(type(value), "a number")


def parse_id(value: Any, field: str) -> str:
    """Return an id as a string. Raises ValueError if it is neither an integer nor a string without white space.

    field: name of the field, for errors
    """
    if type(value) is int:
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"'{field}' must be a string, got {_describe_type(value)}")
    if value.split() != [value] or "\0" in value:
        if not value:
            raise ValueError(f"'{field}' is empty")
        raise ValueError(f"'{field}' {value!r} contains {'a NUL character' if chr(0) in value else 'white space'}")
    return value


def take_field(row: Row, *names: str) -> Any:
    """Remove the first of the fields `names` from a row and return its value. Raises ValueError if the row has none of the fields."""
    for name in names:
        if name in row:
            return row.pop(name)
    raise ValueError(describe_missing_field(row, *names))


def describe_missing_field(row: Row, *names: str) -> str:
    """Return the error message for a row without any of the fields `names`, with the fields that it has."""
    others = f" (or {', '.join(names[1:])})" if names[1:] else ""
    fields = f"; other fields of the record: {', '.join(list(row)[:MAX_SHOWN_FIELDS])}" if row else ""
    return f"'{names[0]}' is missing{others}{fields}"


def parse_text(value: Any, field: str) -> str:
    """Return `value`. Raises ValueError if it is not a string."""
    if not isinstance(value, str):
        raise ValueError(f"'{field}' must be a string, got {_describe_type(value)}")
    return value


def take_metadata(row: Row) -> Row | None:
    """Remove and return the field `metadata` of a row; None if missing. Raises ValueError if it is not an object."""
    value = row.pop("metadata", None)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"'metadata' must be an object, got {_describe_type(value)}")
    return value


def make_id(prefix: str, *texts: str) -> str:
    """Return an id for texts without one: `prefix` and a digest of the texts."""
    return prefix + hashlib.blake2b("\0".join(texts).encode(), digest_size=10).hexdigest()


def parse_passage(row: Row) -> Passage:
    """Return the passage of a row in BEIR's, Tevatron's (`docid`) or Pyserini's (`contents`) format.

    Other fields go to `extra`. Raises ValueError for an invalid row.
    """
    row = row.copy()
    id = row.pop("_id") if "_id" in row else take_field(row, *PASSAGE_IDS)
    if type(id) is not str or id.split() != [id] or "\0" in id:  # inlined, because every reader spends its time here
        id = parse_id(id, "_id")
    title = row.pop("title", None)
    if "text" in row:
        text = row.pop("text")
    elif "contents" in row:
        text = row.pop("contents")
        if title is None and isinstance(text, str) and "\n" in text:  # Pyserini joins title and text by a line end
            title, _, text = text.partition("\n")
    else:
        if not _SIDE_FIELDS.isdisjoint(row):
            raise ValueError(
                "'text' is missing; if this file was written with `bare`, give the corpus as input and this file as `with`"
            )
        raise ValueError(describe_missing_field(row, "text", "contents"))
    if type(text) is not str:
        text = parse_text(text, "text")
    if type(title) is not str:
        title = "" if title is None else parse_text(title, "title")
    # Equal to Passage(...), but takes half the time.
    passage = _new(Passage)
    _set_id(passage, id)
    _set_text(passage, text)
    _set_title(passage, title)
    _set_metadata(passage, take_metadata(row) if "metadata" in row else None)
    _set_extra(passage, row)
    return passage


def parse_query(row: Row) -> Query:
    """Return the query of a row in BEIR's format, or of a row with `question` or `query`.

    Answers may be in `metadata.answers`. A question without an id (NQ-open) gets one generated from its text. In
    answers from TriviaQA, the object's `Value` comes before its `Aliases`. Raises ValueError for an invalid row.
    """
    row = row.copy()
    for ours, theirs in _TRIVIAQA_NAMES:
        if theirs in row and ours not in row:
            row[ours] = row.pop(theirs)
    has_id = any(name in row for name in QUERY_IDS)
    if not has_id and ("text" in row or not ("question" in row or "query" in row)):
        raise ValueError(describe_missing_field(row, *QUERY_IDS))
    id = parse_id(take_field(row, *QUERY_IDS), "_id") if has_id else ""
    text = parse_text(take_field(row, *QUERY_TEXTS), "text")
    metadata = take_metadata(row)
    answers = take_field(row, "answers", "answer") if "answers" in row or "answer" in row else None
    if answers is None and metadata is not None:
        answers = metadata.get("answers")
    if isinstance(answers, str):
        answers = [answers]
    if isinstance(answers, dict):
        value, aliases = (answers.get(name, answers.get(name.lower())) for name in ("Value", "Aliases"))
        if not isinstance(value, str) or not isinstance(aliases or [], list):
            raise ValueError(
                "'answer' must be a string, a list, or an object with the string 'value' and the list 'aliases'"
            )
        answers = [value, *(alias for alias in aliases or () if alias != value)]
    return Query(
        id or make_id("q", text), text, None if answers is None else parse_strings(answers, "answers"), metadata, row
    )


def parse_strings(value: Any, field: str) -> tuple[str, ...]:
    """Return a list of strings as a tuple. Raises ValueError for anything else."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"'{field}' must be a list of strings")
    return tuple(value)


def parse_ids(value: Any, field: str) -> tuple[str, ...]:
    """Return a list of ids as a tuple. Raises ValueError for anything else."""
    if not isinstance(value, list):
        raise ValueError(f"'{field}' must be a list of ids")
    return tuple(parse_id(item, field) for item in value)


def parse_expansion(row: Row) -> Expansion:
    """Return the query expansion of a row. Raises ValueError for an invalid row or an empty text."""
    row = row.copy()
    id = parse_id(take_field(row, "_id", "id"), "_id")
    query_id = parse_id(take_field(row, "query_id", "qid"), "query_id")
    kind = parse_id(take_field(row, "kind"), "kind")
    if problem := describe_kind_problem(kind):
        raise ValueError(f"'kind' {kind!r} {problem}")
    text = parse_text(take_field(row, "text"), "text")
    if not text.strip():
        raise ValueError("'text' is empty")
    score = _take_score(row)
    rank, top1, fold, depth = (row.pop(field, None) for field in ("rank", "top1", "fold", "depth"))
    for field, value, least in (("rank", rank, 1), ("fold", fold, 0), ("depth", depth, 1)):
        if value is not None and (type(value) is not int or value < least):
            raise ValueError(f"'{field}' must be an integer of at least {least}")
    if top1 is not None:
        if not isinstance(top1, dict):
            raise ValueError("'top1' must be an object")
        top1 = {field: parse_text(top1.get(field, ""), f"top1.{field}") for field in ("title", "text")}
    return Expansion(id, query_id, kind, text, score, rank, top1, fold, depth, row)


def _take_score(row: Row) -> float | None:
    score = row.pop("score", None)
    if score is None:
        return None
    if type(score) not in (int, float) or not isfinite(score):
        raise ValueError("'score' must be a finite number")
    return float(score)


def parse_prediction(row: Row) -> Prediction:
    """Return the predicted answer of a row. Raises ValueError for an invalid row."""
    row = row.copy()
    query_id = parse_id(take_field(row, "query_id", "qid", "_id", "id"), "query_id")
    answer = parse_text(take_field(row, "answer", "prediction"), "answer")
    return Prediction(query_id, answer, _take_score(row), row)


def build_passage_row(passage: Passage) -> Row:
    """Return the row of a passage in BEIR's format, with its other fields."""
    row: Row = {"_id": passage.id, "title": passage.title, "text": passage.text}
    if passage.metadata is not None:
        row["metadata"] = passage.metadata
    return row | passage.extra


def build_query_row(query: Query) -> Row:
    """Return the row of a query in BEIR's format, with its answers and other fields."""
    row: Row = {"_id": query.id, "text": query.text}
    if query.answers is not None and (query.metadata is None or "answers" not in query.metadata):
        row["answers"] = list(query.answers)
    if query.metadata is not None:
        row["metadata"] = query.metadata
    return row | query.extra


def build_example_row(example: Example) -> Row:
    """Return the row of a training example in drtk's format."""
    row: Row = {"query_id": example.query_id}
    row |= {"positives": list(example.positives), "negatives": list(example.negatives)}
    if example.scores is not None:
        row["scores"] = example.scores
    if example.sources is not None:
        row["sources"] = example.sources
    return row | example.extra


def build_expansion_row(expansion: Expansion) -> Row:
    """Return the row of a query expansion in drtk's format."""
    row: Row = {"_id": expansion.id, "query_id": expansion.query_id, "kind": expansion.kind, "text": expansion.text}
    for field in ("score", "rank", "depth", "top1", "fold"):
        if getattr(expansion, field) is not None:
            row[field] = getattr(expansion, field)
    return row | expansion.extra


def build_prediction_row(prediction: Prediction) -> Row:
    """Return the row of a predicted answer in drtk's format."""
    row: Row = {"query_id": prediction.query_id, "answer": prediction.answer}
    if prediction.score is not None:
        row["score"] = prediction.score
    return row | prediction.extra


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
