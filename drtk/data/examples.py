"""Parse training examples in the common formats, with the texts that they contain."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

from drtk.data.rows import (
    NEGATIVE,
    PASSAGE_IDS,
    Row,
    make_id,
    parse_id,
    parse_ids,
    parse_query,
    parse_strings,
    parse_text,
    take_field,
    take_metadata,
)
from drtk.records import Example, Passage, Query

# Sources of negatives in DPR's data.
DPR_HARD, DPR_OTHER = "hard", "other"
_LIKE_NEGATIVE = re.compile(r"(hard_?)?negatives?_?\d*")  # names that could be meant for NEGATIVE
_QUERY_FIELDS = ("query_id", "qid", "query", "question", "query_text", "answers", "answer")


@dataclass(frozen=True, slots=True)
class ParsedExample:
    """A training example and the texts in its row. It may have no positives.

    passages: the positives and negatives with their texts, in any order; () if the row has ids only
    has_new_ids: whether a passage had no id and got one generated from its text
    systems: {system that mined negatives: {passage id: score or None}} (sentence-transformers' format)
    """

    example: Example
    query: Query | None = None
    passages: tuple[Passage, ...] = ()
    has_new_ids: bool = False
    systems: dict[str, dict[str, float | None]] | None = None


def parse_example_row(row: Row) -> ParsedExample:
    """Parse a training example in any known format. Raises ValueError for an invalid row."""
    row = row.copy()
    for field, parse in _PARSERS.items():
        if field in row:
            parsed = parse(row)
            for name in ("positives", "negatives", "scores", "sources"):
                if name in parsed.example.extra:
                    raise ValueError(f"'{name}' is not a field of examples with '{field}'; rename or remove it")
            return parsed
    has_pair = sum(isinstance(value, str) for value in row.values()) > 1
    hint = "; rename the columns of a pair to anchor and positive" if has_pair else ""
    raise ValueError(f"not a training example: has none of {', '.join(_PARSERS)}{hint}")


def parse_query_id(row: Row) -> str:
    """Return the query id of a training example in any known format. With an id field, passages are not parsed."""
    named = [name for name in ("query_id", "qid") if name in row]
    if len(named) != 1:
        return parse_example_row(row).example.query_id
    return parse_id(row[named[0]], named[0])


def _parse_drtk_or_simlm(row: Row) -> ParsedExample:
    return _parse_simlm(row) if isinstance(row["positives"], dict) else _parse_drtk(row)


def _parse_drtk(row: Row) -> ParsedExample:
    query_id = parse_id(take_field(row, "query_id"), "query_id")
    ids = {side: parse_ids(take_field(row, side), side) for side in ("positives", "negatives")}
    if not ids["positives"]:
        raise ValueError("'positives' is empty")
    scores, sources = row.pop("scores", None), row.pop("sources", None)
    for field, value, check in (("scores", scores, _parse_numbers), ("sources", sources, _parse_names)):
        if value is None:
            continue
        if not isinstance(value, dict):
            raise ValueError(f"'{field}' must be an object")
        for side in ids:
            if side in value:
                check(value[side], f"{field}.{side}", len(ids[side]))
    return ParsedExample(Example(query_id, ids["positives"], ids["negatives"], scores, sources, row))


def _parse_simlm(row: Row) -> ParsedExample:
    query = _take_query(row)
    sides: dict[str, tuple[str, ...]] = {}
    scores: dict[str, list[float]] = {}
    for side in ("positives", "negatives"):
        fields = row.pop(side, {})
        if not isinstance(fields, dict) or not isinstance(fields.get("doc_id"), list):
            raise ValueError(f"'{side}' must be an object with 'doc_id' and 'score'")
        sides[side] = tuple(parse_id(id, f"{side}.doc_id") for id in fields["doc_id"])
        if fields.get("score"):
            scores[side] = _parse_numbers(fields["score"], f"{side}.score", len(sides[side]))
    example = Example(query.id, sides["positives"], sides["negatives"], scores or None, None, row)
    return ParsedExample(example, query)


def _parse_tevatron(row: Row) -> ParsedExample:
    query = _take_query(row)
    positives = _parse_contexts(row.pop("positive_passages"), "positive_passages")
    negatives = _parse_contexts(row.pop("negative_passages", []), "negative_passages")
    return _make_example(query, positives, negatives, row)


def _parse_tevatron_ids(row: Row) -> ParsedExample:
    query = _take_query(row)
    sides = [
        tuple(parse_id(id, name) for id in _parse_list(row.pop(name, []), name))
        for name in ("positive_document_ids", "negative_document_ids")
    ]
    return ParsedExample(Example(query.id, sides[0], sides[1], None, None, row), query)


def _parse_dpr(row: Row) -> ParsedExample:
    query = _take_query(row)
    hard = _parse_contexts(row.pop("hard_negative_ctxs", []), "hard_negative_ctxs")
    other = _parse_contexts(row.pop("negative_ctxs", []), "negative_ctxs")
    positives = _parse_contexts(row.pop("positive_ctxs"), "positive_ctxs")
    sources = [DPR_HARD] * len(hard) + [DPR_OTHER] * len(other)
    return _make_example(query, positives, hard + other, row, sources={"negatives": sources} if sources else None)


def _parse_dpr_results(row: Row) -> ParsedExample:
    """Parse a row of DPR's retrieval results: passages with an answer become positives, the others negatives."""
    query = _take_query(row)
    contexts = _parse_list(row.pop("ctxs"), "ctxs")
    texts = _parse_contexts(contexts, "ctxs")
    has_answer = [isinstance(context, dict) and bool(context.get("has_answer")) for context in contexts]
    positives = [text for text, is_positive in zip(texts, has_answer, strict=True) if is_positive]
    negatives = [text for text, is_positive in zip(texts, has_answer, strict=True) if not is_positive]
    parsed = _make_example(query, positives, negatives, row)
    return ParsedExample(parsed.example, query, tuple(passage for passage, _ in texts), parsed.has_new_ids)


def parse_result_hits(row: Row) -> tuple[Query, list[tuple[str, float]]]:
    """Return the query and the (passage id, score) pairs of a row of DPR's retrieval results; the default score is 1/rank."""
    row = row.copy()
    if "ctxs" not in row:
        raise ValueError(
            "JSON is read as a run only with DPR's field 'ctxs'; write lines with six columns, as TREC does"
        )
    contexts = _parse_list(row.pop("ctxs"), "ctxs")
    hits = []
    for position, ((passage, _), context) in enumerate(zip(_parse_contexts(contexts, "ctxs"), contexts, strict=True)):
        score = context.get("score", 1 / (position + 1))
        score = float(score) if isinstance(score, str) else score  # DPR writes strings
        hits.append((passage.id, _parse_numbers([score], "ctxs.score", 1)[0]))
    return _take_query(row), hits


def _parse_flag_or_sbert(row: Row) -> ParsedExample:
    positives = _parse_list(row["pos"], "pos")
    if "query" in row and all(isinstance(item, str) for item in positives):
        return _parse_flag(row)
    return _parse_sbert(row)


def _parse_flag(row: Row) -> ParsedExample:
    query = _take_query(row)
    if _is_blank(query.text):
        raise ValueError("'query' is empty; remove the row")
    scores = {}
    sides = []
    for name, side in (("pos", "positives"), ("neg", "negatives")):
        texts = parse_strings(row.pop(name, []), name)
        if any(_is_blank(text) for text in texts):
            raise ValueError(f"'{name}' has an empty text; remove it")
        sides.append([(Passage(make_id("p", "", text), text), True) for text in texts])
        if row.get(f"{name}_scores"):
            scores[side] = _parse_numbers(row[f"{name}_scores"], f"{name}_scores", len(texts))
        row.pop(f"{name}_scores", None)
    return _make_example(query, sides[0], sides[1], row, scores=scores)


def _parse_sbert(row: Row) -> ParsedExample:
    query_id = parse_id(take_field(row, "qid", "query_id"), "qid")
    positives = _parse_scored_ids(row.pop("pos"), "pos")
    negative_items = row.pop("neg", [])
    negatives: dict[str, float | None] = {}
    sources: list[str] = []
    systems: dict[str, dict[str, float | None]] = {}
    for system, items in negative_items.items() if isinstance(negative_items, dict) else [("", negative_items)]:
        systems[system] = _parse_scored_ids(items, f"neg.{system}" if system else "neg")
        for id, score in systems[system].items():
            if id not in negatives:  # its source is the first system that retrieved it
                negatives[id] = score
                sources.append(system)
    scores = {}
    for side, items in (("positives", positives), ("negatives", negatives)):
        known_scores = [score for score in items.values() if score is not None]
        if known_scores and len(known_scores) == len(items):
            scores[side] = known_scores
    example = Example(
        query_id,
        tuple(positives),
        tuple(negatives),
        scores or None,
        {"negatives": sources} if isinstance(negative_items, dict) and sources else None,
        row,
    )
    return ParsedExample(example, systems=systems)


def _parse_triplet(row: Row) -> ParsedExample:
    """Parse a pair, triplet or n-tuple of texts: anchor, positive, negative, negative_1, …, score or scores."""
    if "anchor" in row:
        row.setdefault("query", row.pop("anchor"))
    if isinstance(row.get("scores"), list):  # as written by sentence-transformers' mine_hard_negatives
        row.setdefault("score", row.pop("scores"))
    query = _take_query(row)
    if others := [name for name in row if _LIKE_NEGATIVE.fullmatch(name) and not NEGATIVE.fullmatch(name)]:
        raise ValueError(f"'{others[0]}' is unknown; name the negatives negative, negative_1, …")
    names = sorted(filter(NEGATIVE.fullmatch, row), key=lambda name: int(name.partition("_")[2] or 0))
    if not names and row.get("label") == 0:
        raise ValueError("'label' is 0, so 'positive' is not relevant; write triplets, or remove these rows")
    texts = [parse_text(row.pop("positive"), "positive")]
    if _is_blank(query.text) or _is_blank(texts[0]):
        raise ValueError("the query or the positive is empty; remove the row")
    texts += [parse_text(text, name) for name in names if (text := row.pop(name)) is not None and not _is_blank(text)]
    score, scores = row.get("score"), None
    if isinstance(score, list) or (score is not None and not names):
        values = _parse_numbers(
            row.pop("score") if isinstance(score, list) else [row.pop("score")], "score", len(texts)
        )
        scores = {"positives": values[:1], "negatives": values[1:]}
    passages = [(Passage(make_id("p", "", text), text), True) for text in texts]
    return _make_example(query, passages[:1], passages[1:], row, scores=scores)


def _is_blank(text: Any) -> bool:
    return isinstance(text, str) and not text.strip()


def _parse_scored_ids(items: Any, field: str) -> dict[str, float | None]:
    """Return {id: score or None} of a list of ids, or of objects with `pid` and perhaps `ce-score`."""
    scores: dict[str, float | None] = {}
    for item in _parse_list(items, field):
        if isinstance(item, dict):
            score = item.get("ce-score")
            scores[parse_id(take_field(item, "pid", "_id", "id"), field)] = (
                None if score is None else _parse_numbers([score], f"{field}.ce-score", 1)[0]
            )
        else:
            scores[parse_id(item, field)] = None
    return scores


def _take_query(row: Row) -> Query:
    """Remove and return the query of a row. Without an id, it gets one generated from its text."""
    fields: Row = {name: row.pop(name) for name in _QUERY_FIELDS if name in row}
    if "_id" in row and not ("query_id" in fields or "qid" in fields):
        fields["_id"] = row.pop("_id")
    if "query_text" in fields:
        fields.setdefault("query", fields.pop("query_text"))
    if not ("query" in fields or "question" in fields):
        raise ValueError("'query' is missing")
    return parse_query(fields)


def _parse_contexts(value: Any, field: str) -> list[tuple[Passage, bool]]:
    """Parse a list of objects with title and text; return (passage, whether its id was generated) for each."""
    return [_parse_context(item, field) for item in _parse_list(value, field)]


def _parse_context(item: Any, field: str) -> tuple[Passage, bool]:
    if not isinstance(item, dict):
        raise ValueError(f"'{field}' must hold objects with 'title' and 'text'")
    text = parse_text(take_field(item.copy(), "text", "contents"), f"{field}.text")
    title = parse_text(item.get("title") or "", f"{field}.title")
    for name in PASSAGE_IDS:
        if name in item and item[name] not in (None, ""):
            return Passage(parse_id(item[name], f"{field}.{name}"), text, title, take_metadata(item.copy())), False
    return Passage(make_id("p", title, text), text, title), True


def _make_example(
    query: Query,
    positives: list[tuple[Passage, bool]],
    negatives: list[tuple[Passage, bool]],
    extra: Row,
    *,
    scores: dict[str, list[float]] | None = None,
    sources: dict[str, list[str]] | None = None,
) -> ParsedExample:
    ids = [tuple(passage.id for passage, _ in side) for side in (positives, negatives)]
    example = Example(query.id, ids[0], ids[1], scores or None, sources, extra)
    both = positives + negatives
    return ParsedExample(example, query, tuple(passage for passage, _ in both), any(is_new for _, is_new in both))


def _parse_list(value: Any, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"'{field}' must be a list")
    return value


def _parse_names(value: Any, field: str, count: int) -> tuple[str, ...]:
    if len(names := parse_strings(value, field)) != count:
        raise ValueError(f"'{field}' has {len(names)} entries for {count} passages")
    return names


def _parse_numbers(value: Any, field: str, count: int) -> list[float]:
    if not all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in _parse_list(value, field)):
        raise ValueError(f"'{field}' has a value that is not a number")
    if len(value) != count:
        raise ValueError(f"'{field}' has {len(value)} entries for {count} passages")
    if not all(map(isfinite, value)):  # possible in tables
        raise ValueError(f"'{field}' contains a number that is not finite")
    return [float(item) for item in value]


_PARSERS: dict[str, Callable[[Row], ParsedExample]] = {  # by a field that only this format has
    "positives": _parse_drtk_or_simlm,
    "positive_passages": _parse_tevatron,
    "positive_document_ids": _parse_tevatron_ids,
    "positive_ctxs": _parse_dpr,
    "ctxs": _parse_dpr_results,
    "pos": _parse_flag_or_sbert,
    "positive": _parse_triplet,
}
