"""Training examples in the formats of the field, with or without the texts of what they name."""

from __future__ import annotations

from typing import Any

import orjson

from drtk.io.examples import DPR_OTHER, FoundExample
from drtk.io.jsonl import dump
from drtk.io.rows import Row
from drtk.io.writers import Format, Losses, note
from drtk.records import Passage, Query

BOTH = ("query", "passages")


def _line(row: Row) -> bytes:
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def _query(found: FoundExample) -> Query:
    assert found.query is not None  # `needs` says so, and whoever calls has seen to it
    return found.query


def _scores(found: FoundExample, side: str) -> list[float]:
    return (found.example.scores or {}).get(side, [])


def _sources(found: FoundExample, default: str) -> list[str]:
    return (found.example.sources or {}).get("negatives") or [default] * len(found.example.negatives)


def _sides(found: FoundExample) -> tuple[list[Passage], list[Passage]]:
    texts = {passage.id: passage for passage in found.passages}
    example = found.example
    return [texts[id] for id in example.positives], [texts[id] for id in example.negatives]


def _drtk(found: FoundExample, _: Losses) -> bytes:
    return dump(found.example)


def _simlm(found: FoundExample, losses: Losses) -> bytes:
    query, example = _query(found), found.example
    if example.sources:
        note(losses, "sources left out")
    row: Row = {"query_id": query.id, "query": query.text}
    if query.answers is not None:
        row["answers"] = list(query.answers)
    for side, ids in (("positives", example.positives), ("negatives", example.negatives)):
        row[side] = {"doc_id": list(ids), "score": _scores(found, side)}
    return _line(row | example.extra)


def _tevatron(found: FoundExample, losses: Losses) -> bytes:
    query, example = _query(found), found.example
    if example.scores or example.sources:
        note(losses, "scores or sources left out")
    row: Row = {"query_id": query.id, "query": query.text}
    if query.answers is not None:
        row["answers"] = list(query.answers)
    for name, passages in zip(("positive_passages", "negative_passages"), _sides(found), strict=True):
        row[name] = [{"docid": passage.id, "title": passage.title, "text": passage.text} for passage in passages]
    return _line(row | example.extra)


def _dpr_json(found: FoundExample, losses: Losses) -> bytes:
    query, example = _query(found), found.example
    if example.scores:
        note(losses, "scores left out")
    positives, negatives = _sides(found)
    sources = _sources(found, "")
    hard = [passage for passage, source in zip(negatives, sources, strict=True) if source != DPR_OTHER]
    other = [passage for passage, source in zip(negatives, sources, strict=True) if source == DPR_OTHER]
    # DPR itself ignores the id; with it, what is read back is the same example.
    row: Row = {"query_id": query.id, "question": query.text, "answers": list(query.answers or ())}
    for name, passages in (("positive_ctxs", positives), ("negative_ctxs", other), ("hard_negative_ctxs", hard)):
        row[name] = [{"title": passage.title, "text": passage.text, "passage_id": passage.id} for passage in passages]
    return orjson.dumps(row | example.extra)


def _sbert(found: FoundExample, losses: Losses) -> bytes:
    example = found.example
    if example.scores:
        note(losses, "scores left out")
    systems: dict[str, list[str]] = {}
    for id, source in zip(example.negatives, _sources(found, "negatives"), strict=True):
        systems.setdefault(source, []).append(id)
    row: Row = {"qid": example.query_id, "pos": list(example.positives), "neg": systems}
    return _line(row | example.extra)


def _flag(found: FoundExample, losses: Losses) -> bytes:
    query, example = _query(found), found.example
    if example.sources:
        note(losses, "sources left out")
    row: Row = {"query_id": query.id, "query": query.text}
    for name, passages in zip(("pos", "neg"), _sides(found), strict=True):
        row[name] = [f"{passage.title} {passage.text}" if passage.title else passage.text for passage in passages]
    for name, side in (("pos_scores", "positives"), ("neg_scores", "negatives")):
        if _scores(found, side):
            row[name] = _scores(found, side)
    return _line(row | example.extra)


DRTK: Format[Any] = Format(_drtk)
SIMLM = Format(_simlm, needs=("query",))
TEVATRON = Format(_tevatron, needs=BOTH)
DPR_JSON = Format(_dpr_json, header=b"[\n", between=b",\n", footer=b"\n]\n", needs=BOTH)
SBERT = Format(_sbert)
FLAG = Format(_flag, needs=BOTH)
