"""Write records and training examples in the common formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson

from drtk.data.examples import DPR_OTHER, ParsedExample
from drtk.data.rows import Row, build_passage_row, build_query_row, dump
from drtk.data.tsv import flatten_whitespace, quote_field
from drtk.records import Hit, Passage, Qrel, Query
from drtk.registry import Registry

Record = TypeVar("Record")
LossCounts = dict[str, Any]  # data that a format cannot represent -> number of records or texts that lost it


@dataclass(frozen=True, slots=True)
class Format(Generic[Record]):
    """A file format.

    to_bytes: returns the bytes of a record, and counts in `losses` the data that the format cannot represent
    header, between, footer: bytes before, between and after the records
    needs: texts that a training example must have: "query", "passages"
    """

    to_bytes: Callable[[Record, LossCounts], bytes]
    header: bytes = b""
    between: bytes = b""
    footer: bytes = b""
    needs: tuple[str, ...] = ()


# The first format of each kind is drtk's own.
FORMATS: dict[str, Registry] = {
    "passages": Registry(
        "format of passages",
        {
            "beir": ("drtk.data.writers:BEIR", "JSONL: _id, title, text, metadata and other fields"),
            "msmarco": ("drtk.data.writers:MSMARCO", "TSV without header: pid, text"),
            "msmarco-docs": ("drtk.data.writers:MSMARCO_DOCS", "TSV without header: docid, url, title, body"),
            "dpr": ("drtk.data.writers:DPR", "TSV with header, quoted as csv does: id, text, title"),
            "tevatron": ("drtk.data.writers:TEVATRON", "JSONL: docid, title, text"),
            "pyserini": ("drtk.data.writers:PYSERINI", "JSONL: id, contents (title, line end, text)"),
        },
    ),
    "queries": Registry(
        "format of queries",
        {
            "beir": ("drtk.data.writers:BEIR", "JSONL: _id, text, answers, metadata and other fields"),
            "tsv": ("drtk.data.writers:QUERY_TSV", "TSV without header: qid, text"),
            "dpr-qa": ("drtk.data.writers:DPR_QA", "TSV without header: question, list of answers"),
            "nq-open": ("drtk.data.writers:NQ_OPEN", "JSONL: question, answer (a list)"),
            "tevatron": ("drtk.data.writers:TEVATRON_QUERY", "JSONL: query_id, query"),
        },
    ),
    "qrels": Registry(
        "format of judgments",
        {
            "beir": ("drtk.data.writers:QRELS_BEIR", "TSV with header: query-id, corpus-id, score"),
            "trec": ("drtk.data.writers:QRELS_TREC", "qid 0 docid grade"),
        },
    ),
    "run": Registry(
        "format of runs",
        {
            "trec": ("drtk.data.writers:RUN_TREC", "qid Q0 docid rank score tag"),
            "msmarco": ("drtk.data.writers:RUN_MSMARCO", "TSV: qid, pid, rank"),
        },
    ),
    "examples": Registry(
        "format of examples",
        {
            "drtk": ("drtk.data.writers:DRTK", "JSONL of ids: query_id, positives, negatives, scores, sources"),
            "simlm": ("drtk.data.writers:SIMLM", "JSONL: query_id, query, answers; ids and scores of each side"),
            "tevatron": (
                "drtk.data.writers:TEVATRON_EXAMPLES",
                "JSONL: query_id, query, positive and negative passages",
            ),
            "dpr-json": ("drtk.data.writers:DPR_JSON", "one JSON array: question, answers, contexts with texts"),
            "sbert": ("drtk.data.writers:SBERT", "JSONL of ids: qid, pos, neg by system"),
            "triplets": (
                "drtk.data.writers:TRIPLETS",
                "JSONL for sentence-transformers: anchor, positive, negative_1, …, score",
            ),
            "flag": ("drtk.data.writers:FLAG", "JSONL: query, pos, neg (texts), pos_scores, neg_scores"),
        },
    ),
}


def count_loss(losses: LossCounts, name: str) -> None:
    """Count in `losses` a record or text with data that the output format cannot represent.

    name: name of the lost data in the counts of the manifest
    """
    losses[name] = losses.get(name, 0) + 1


def _flatten_text(text: str, losses: LossCounts) -> str:
    """Return a text on one line without tabs, for a file without quoting; count it if it changed."""
    line = flatten_whitespace(text)
    if line != text:
        count_loss(losses, "texts with tabs or line ends made spaces")
    return line


def _count_lost_fields(passage: Passage, losses: LossCounts, *, written: tuple[str, ...] = ()) -> None:
    if passage.extra or any(name not in written for name in passage.metadata or ()):
        count_loss(losses, "with other fields left out")


def _format_msmarco(passage: Passage, losses: LossCounts) -> bytes:
    if passage.title:
        count_loss(losses, "titles left out")
    _count_lost_fields(passage, losses)
    return f"{passage.id}\t{_flatten_text(passage.text, losses)}\n".encode()


def _format_msmarco_docs(passage: Passage, losses: LossCounts) -> bytes:
    url = flatten_whitespace(str((passage.metadata or {}).get("url", "")))
    _count_lost_fields(passage, losses, written=("url",))
    return (
        f"{passage.id}\t{url}\t{_flatten_text(passage.title, losses)}\t{_flatten_text(passage.text, losses)}\n".encode()
    )


def _format_dpr(passage: Passage, losses: LossCounts) -> bytes:
    text, title = passage.text, passage.title
    _count_lost_fields(passage, losses)
    if "\0" in text or "\0" in title:
        count_loss(losses, "texts with NUL characters made spaces")
        text, title = text.replace("\0", " "), title.replace("\0", " ")
    return f"{passage.id}\t{quote_field(text)}\t{quote_field(title)}\n".encode()


def _format_tevatron(passage: Passage, _: LossCounts) -> bytes:
    row = build_passage_row(passage)
    return dump({"docid": row.pop("_id"), **row})


def _format_pyserini(passage: Passage, _: LossCounts) -> bytes:
    row = build_passage_row(passage)
    title, text = row.pop("title"), row.pop("text")
    # Without a title, the first line of a text with several lines would be read as its title.
    contents = f"{title}\n{text}" if title or "\n" in text else text
    return dump({"id": row.pop("_id"), "contents": contents, **row})


def _format_query_tsv(query: Query, losses: LossCounts) -> bytes:
    if query.answers is not None:
        count_loss(losses, "lists of answers left out")
    return f"{query.id}\t{_flatten_text(query.text, losses)}\n".encode()


def _format_dpr_qa(query: Query, losses: LossCounts) -> bytes:
    count_loss(losses, "ids left out")
    return (
        f"{quote_field(_flatten_text(query.text, losses))}\t{quote_field(repr(list(query.answers or ())))}\n".encode()
    )


def _format_nq_open(query: Query, losses: LossCounts) -> bytes:
    count_loss(losses, "ids left out")
    return dump({"question": query.text, "answer": list(query.answers or ())})


def _format_tevatron_query(query: Query, _: LossCounts) -> bytes:
    row = build_query_row(query)
    return dump({"query_id": row.pop("_id"), "query": row.pop("text"), **row})


def _format_msmarco_hit(hit: Hit, losses: LossCounts) -> bytes:
    count_loss(losses, "scores left out")
    return f"{hit.query_id}\t{hit.doc_id}\t{hit.rank}\n".encode()


BEIR: Format[Any] = Format(lambda record, _: dump(record))
MSMARCO = Format(_format_msmarco)
MSMARCO_DOCS = Format(_format_msmarco_docs)
DPR = Format(_format_dpr, header=b"id\ttext\ttitle\n")
TEVATRON = Format(_format_tevatron)
PYSERINI = Format(_format_pyserini)
QUERY_TSV = Format(_format_query_tsv)
DPR_QA = Format(_format_dpr_qa)
NQ_OPEN = Format(_format_nq_open)
TEVATRON_QUERY = Format(_format_tevatron_query)
QRELS_BEIR: Format[Qrel] = Format(
    lambda qrel, _: f"{qrel.query_id}\t{qrel.doc_id}\t{qrel.grade}\n".encode(), header=b"query-id\tcorpus-id\tscore\n"
)
QRELS_TREC: Format[Qrel] = Format(lambda qrel, _: f"{qrel.query_id} 0 {qrel.doc_id} {qrel.grade}\n".encode())
RUN_TREC: Format[Hit] = Format(
    lambda hit, _: f"{hit.query_id} Q0 {hit.doc_id} {hit.rank} {hit.score!r} {hit.tag}\n".encode()
)
RUN_MSMARCO = Format(_format_msmarco_hit)


ALL_TEXTS = ("query", "passages")


def _build_query_fields(parsed: ParsedExample) -> Row:
    assert parsed.query is not None  # see Format.needs
    row: Row = {"query_id": parsed.query.id, "query": parsed.query.text}
    if parsed.query.answers is not None:
        row["answers"] = list(parsed.query.answers)
    return row


def _get_scores(parsed: ParsedExample, side: str) -> list[float]:
    return (parsed.example.scores or {}).get(side, [])


def _get_sources(parsed: ParsedExample, default: str) -> list[str]:
    return (parsed.example.sources or {}).get("negatives") or [default] * len(parsed.example.negatives)


def _get_passages(parsed: ParsedExample) -> tuple[list[Passage], list[Passage]]:
    texts = {passage.id: passage for passage in parsed.passages}
    example = parsed.example
    return [texts[id] for id in example.positives], [texts[id] for id in example.negatives]


def _format_simlm(parsed: ParsedExample, losses: LossCounts) -> bytes:
    example = parsed.example
    if example.sources:
        count_loss(losses, "sources left out")
    row = _build_query_fields(parsed)
    for side, ids in (("positives", example.positives), ("negatives", example.negatives)):
        row[side] = {"doc_id": list(ids), "score": _get_scores(parsed, side)}
    return dump(row | example.extra)


def _format_tevatron_example(parsed: ParsedExample, losses: LossCounts) -> bytes:
    example = parsed.example
    if example.scores or example.sources:
        count_loss(losses, "scores or sources left out")
    row = _build_query_fields(parsed)
    for name, passages in zip(("positive_passages", "negative_passages"), _get_passages(parsed), strict=True):
        row[name] = [{"docid": passage.id, "title": passage.title, "text": passage.text} for passage in passages]
    return dump(row | example.extra)


def _format_dpr_json(parsed: ParsedExample, losses: LossCounts) -> bytes:
    query, example = parsed.query, parsed.example
    assert query is not None
    if example.scores:
        count_loss(losses, "scores left out")
    positives, negatives = _get_passages(parsed)
    sources = _get_sources(parsed, "")
    hard = [passage for passage, source in zip(negatives, sources, strict=True) if source != DPR_OTHER]
    other = [passage for passage, source in zip(negatives, sources, strict=True) if source == DPR_OTHER]
    # DPR ignores the id; drtk reads back the same example with it.
    row: Row = {"query_id": query.id, "question": query.text, "answers": list(query.answers or ())}
    for name, passages in (("positive_ctxs", positives), ("negative_ctxs", other), ("hard_negative_ctxs", hard)):
        row[name] = [{"title": passage.title, "text": passage.text, "passage_id": passage.id} for passage in passages]
    return orjson.dumps(row | example.extra)


def _format_sbert(parsed: ParsedExample, losses: LossCounts) -> bytes:
    example = parsed.example
    if example.scores:
        count_loss(losses, "scores left out")
    systems: dict[str, list[str]] = {}
    for id, source in zip(example.negatives, _get_sources(parsed, "negatives"), strict=True):
        systems.setdefault(source, []).append(id)
    row: Row = {"qid": example.query_id, "pos": list(example.positives), "neg": systems}
    return dump(row | example.extra)


def _format_flag(parsed: ParsedExample, losses: LossCounts) -> bytes:
    example = parsed.example
    if example.sources:
        count_loss(losses, "sources left out")
    row = _build_query_fields(parsed)
    row.pop("answers", None)
    for name, passages in zip(("pos", "neg"), _get_passages(parsed), strict=True):
        row[name] = [_join_title(passage) for passage in passages]
    for name, side in (("pos_scores", "positives"), ("neg_scores", "negatives")):
        if _get_scores(parsed, side):
            row[name] = _get_scores(parsed, side)
    return dump(row | example.extra)


def _format_triplets(parsed: ParsedExample, losses: LossCounts) -> bytes:
    if parsed.example.sources:
        count_loss(losses, "sources left out")
    assert parsed.query is not None
    positives, negatives = ([_join_title(passage) for passage in side] for side in _get_passages(parsed))
    others = {f"negative_{number}": text for number, text in enumerate(negatives, start=1)}
    scores, negative_scores = _get_scores(parsed, "positives"), _get_scores(parsed, "negatives")
    has_scores = scores and len(negative_scores) == len(negatives)
    if not has_scores and (scores or negative_scores):
        count_loss(losses, "scores left out")
    rows = []
    for position, text in enumerate(positives):
        row: Row = {"anchor": parsed.query.text, "positive": text, **others}
        if has_scores:
            row["score"] = [scores[position], *negative_scores] if negatives else scores[position]
        rows.append(dump(row))
    return b"".join(rows)


def _join_title(passage: Passage) -> str:
    return f"{passage.title} {passage.text}" if passage.title else passage.text


DRTK: Format[ParsedExample] = Format(lambda parsed, _: dump(parsed.example))
SIMLM = Format(_format_simlm, needs=("query",))
TEVATRON_EXAMPLES = Format(_format_tevatron_example, needs=ALL_TEXTS)
DPR_JSON = Format(_format_dpr_json, header=b"[\n", between=b",\n", footer=b"\n]\n", needs=ALL_TEXTS)
SBERT = Format(_format_sbert)
FLAG = Format(_format_flag, needs=ALL_TEXTS)
TRIPLETS = Format(_format_triplets, needs=ALL_TEXTS)
