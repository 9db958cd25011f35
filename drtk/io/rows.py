"""JSON objects <-> records. The reading side accepts every field name of architecture's record table."""

from __future__ import annotations

from typing import Any

import orjson

from drtk.records import Example, Expansion, Passage, Prediction, Query

Row = dict[str, Any]


def parse_row(line: bytes) -> Row:
    """The JSON object on a line; ValueError saying what is wrong with it."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        try:
            line.decode()
        except UnicodeDecodeError:
            raise ValueError("not UTF-8") from error
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"expected a JSON object, found {type(row).__name__}")
    return row


def identifier(value: Any, field: str) -> str:
    """An id as a string without white space; ValueError saying what is wrong otherwise. Whole numbers are accepted."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(f"'{field}' must be a string, found {type(value).__name__}")
    text = str(value)
    if not text:
        raise ValueError(f"'{field}' is empty")
    if len(text.split()) != 1 or text != text.strip():
        raise ValueError(f"'{field}' {text!r} contains white space")
    return text


def take(row: Row, *names: str) -> Any:
    """Remove and return the first of `names` the row has; ValueError naming the first where it has none."""
    for name in names:
        if name in row:
            return row.pop(name)
    raise ValueError(f"'{names[0]}' is missing")


def text_of(value: Any, field: str) -> str:
    """A string, unchanged; ValueError otherwise."""
    if not isinstance(value, str):
        raise ValueError(f"'{field}' must be a string, found {type(value).__name__}")
    return value


def metadata_of(row: Row) -> Row | None:
    value = row.pop("metadata", None)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"'metadata' must be an object, found {type(value).__name__}")
    return value


def passage_from(row: Row) -> Passage:
    """A passage from a BEIR, Tevatron (`docid`) or Pyserini (`contents`) row; other fields are kept in `extra`."""
    row = dict(row)
    id = identifier(take(row, "_id", "id", "docid"), "_id")
    text = text_of(take(row, "text", "contents"), "text")
    title = row.pop("title", None)
    return Passage(id, text, text_of(title or "", "title"), metadata_of(row), row)


def query_from(row: Row) -> Query:
    """A query from a BEIR row or one with `question` / `query`; answers may stand in `metadata.answers`."""
    row = dict(row)
    id = identifier(take(row, "_id", "id", "query_id", "qid"), "_id")
    text = text_of(take(row, "text", "question", "query"), "text")
    metadata = metadata_of(row)
    answers = row.pop("answers", None)
    if answers is None and metadata is not None:
        answers = metadata.get("answers")
    return Query(id, text, None if answers is None else strings_of(answers, "answers"), metadata, row)


def strings_of(value: Any, field: str) -> tuple[str, ...]:
    """A list of strings as a tuple; ValueError otherwise."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"'{field}' must be a list of strings")
    return tuple(value)


def ids_of(value: Any, field: str) -> tuple[str, ...]:
    """A list of ids as a tuple; ValueError otherwise."""
    if not isinstance(value, list):
        raise ValueError(f"'{field}' must be a list of ids")
    return tuple(identifier(item, field) for item in value)


def example_from(row: Row) -> Example:
    """A training example of drtk's own shape: ids only."""
    row = dict(row)
    query_id = identifier(take(row, "query_id"), "query_id")
    positives = ids_of(take(row, "positives"), "positives")
    negatives = ids_of(take(row, "negatives"), "negatives")
    if not positives:
        raise ValueError("'positives' is empty")
    scores, sources = row.pop("scores", None), row.pop("sources", None)
    for field, value in (("scores", scores), ("sources", sources)):
        if value is not None and not isinstance(value, dict):
            raise ValueError(f"'{field}' must be an object")
        for side, ids in (("positives", positives), ("negatives", negatives)):
            if value and side in value and len(value[side]) != len(ids):
                raise ValueError(f"'{field}.{side}' has {len(value[side])} entries for {len(ids)} {side}")
    return Example(query_id, positives, negatives, scores, sources, row)


def passage_row(passage: Passage) -> Row:
    """BEIR row of a passage, with whatever rode along."""
    row: Row = {"_id": passage.id, "title": passage.title, "text": passage.text}
    if passage.metadata is not None:
        row["metadata"] = passage.metadata
    return row | passage.extra


def query_row(query: Query) -> Row:
    """BEIR row of a query, with its answers and whatever rode along."""
    row: Row = {"_id": query.id, "text": query.text}
    if query.answers is not None and (query.metadata is None or "answers" not in query.metadata):
        row["answers"] = list(query.answers)
    if query.metadata is not None:
        row["metadata"] = query.metadata
    return row | query.extra


def example_row(example: Example) -> Row:
    row: Row = {
        "query_id": example.query_id,
        "positives": list(example.positives),
        "negatives": list(example.negatives),
    }
    if example.scores is not None:
        row["scores"] = example.scores
    if example.sources is not None:
        row["sources"] = example.sources
    return row | example.extra


def expansion_row(expansion: Expansion) -> Row:
    row: Row = {"_id": expansion.id, "query_id": expansion.query_id, "kind": expansion.kind, "text": expansion.text}
    for field in ("score", "rank", "top1", "fold"):
        if getattr(expansion, field) is not None:
            row[field] = getattr(expansion, field)
    return row | expansion.extra


def prediction_row(prediction: Prediction) -> Row:
    row: Row = {"query_id": prediction.query_id, "answer": prediction.answer}
    if prediction.score is not None:
        row["score"] = prediction.score
    return row | prediction.extra
