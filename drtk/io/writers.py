"""Records in the formats of the field: one function a format, from a record to its bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson

from drtk.io.jsonl import dump
from drtk.io.rows import passage_row, query_row
from drtk.io.tsv import flat, quoted
from drtk.records import Hit, Passage, Qrel, Query
from drtk.registry import Registry

Record = TypeVar("Record")
Losses = dict[str, Any]  # what a format has no place for -> how many records lost it


@dataclass(frozen=True, slots=True)
class Format(Generic[Record]):
    """How a file of records is made: what stands before, between and after them, and how each one reads.

    write: (record, losses) -> its bytes; what is left out of a record is counted in `losses`.
    needs: which texts a training example must come with ("query", "passages").
    """

    write: Callable[[Record, Losses], bytes]
    header: bytes = b""
    between: bytes = b""
    footer: bytes = b""
    needs: tuple[str, ...] = ()


_TABLES = {
    "parquet": ("drtk.io.table_writing:write_parquet", "one Parquet file (extra: data)"),
    "datasets": ("drtk.io.table_writing:write_data_set", "a folder that Hugging Face datasets loads (extra: data)"),
}
TABLES = tuple(_TABLES)

# The first of each is drtk's own.
FORMATS: dict[str, Registry] = {
    "passages": Registry(
        "format of passages",
        {
            "beir": ("drtk.io.writers:BEIR", "JSONL: _id, title, text, metadata and whatever else a passage carries"),
            "msmarco": ("drtk.io.writers:MSMARCO", "TSV without header: pid, text"),
            "msmarco-docs": ("drtk.io.writers:MSMARCO_DOCS", "TSV without header: docid, url, title, body"),
            "dpr": ("drtk.io.writers:DPR", "TSV with header, quoted as csv does: id, text, title"),
            "tevatron": ("drtk.io.writers:TEVATRON", "JSONL: docid, title, text"),
            "pyserini": ("drtk.io.writers:PYSERINI", "JSONL: id, contents (title, line end, text)"),
            **_TABLES,
        },
    ),
    "queries": Registry(
        "format of queries",
        {
            "beir": ("drtk.io.writers:BEIR", "JSONL: _id, text, answers, metadata and whatever else a query carries"),
            "tsv": ("drtk.io.writers:QUERY_TSV", "TSV without header: qid, text"),
            "dpr-qa": ("drtk.io.writers:DPR_QA", "TSV without header: question, list of answers"),
            "nq-open": ("drtk.io.writers:NQ_OPEN", "JSONL: question, answer (a list)"),
            "tevatron": ("drtk.io.writers:TEVATRON_QUERY", "JSONL: query_id, query"),
            **_TABLES,
        },
    ),
    "qrels": Registry(
        "format of judgements",
        {
            "beir": ("drtk.io.writers:QRELS_BEIR", "TSV with header: query-id, corpus-id, score"),
            "trec": ("drtk.io.writers:QRELS_TREC", "qid 0 docid grade"),
        },
    ),
    "run": Registry(
        "format of runs",
        {
            "trec": ("drtk.io.writers:RUN_TREC", "qid Q0 docid rank score tag"),
            "msmarco": ("drtk.io.writers:RUN_MSMARCO", "TSV: qid, pid, rank"),
        },
    ),
    "examples": Registry(
        "format of examples",
        {
            "drtk": ("drtk.io.example_writers:DRTK", "JSONL of ids: query_id, positives, negatives, scores, sources"),
            "simlm": ("drtk.io.example_writers:SIMLM", "JSONL: query_id, query, answers; ids and scores of each side"),
            "tevatron": ("drtk.io.example_writers:TEVATRON", "JSONL: query_id, query, positive and negative passages"),
            "dpr-json": ("drtk.io.example_writers:DPR_JSON", "one JSON array: question, answers, contexts with texts"),
            "sbert": ("drtk.io.example_writers:SBERT", "JSONL of ids: qid, pos, neg by system"),
            "flag": ("drtk.io.example_writers:FLAG", "JSONL: query, pos, neg (texts), pos_scores, neg_scores"),
            **_TABLES,
        },
    ),
}


def note(losses: Losses, what: str) -> None:
    """Count a record that loses something."""
    losses[what] = losses.get(what, 0) + 1


def _line(row: Any) -> bytes:
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def _plain(text: str, losses: Losses) -> str:
    """A text for a file without quoting, its loss counted."""
    fit = flat(text)
    if fit != text:
        note(losses, "texts with tabs or line ends made spaces")
    return fit


def _fields_left_out(passage: Passage, losses: Losses, *, but: tuple[str, ...] = ()) -> None:
    if passage.extra or any(name not in but for name in passage.metadata or ()):
        note(losses, "with other fields left out")


def _msmarco(passage: Passage, losses: Losses) -> bytes:
    if passage.title:
        note(losses, "titles left out")
    _fields_left_out(passage, losses)
    return f"{passage.id}\t{_plain(passage.text, losses)}\n".encode()


def _msmarco_docs(passage: Passage, losses: Losses) -> bytes:
    url = str((passage.metadata or {}).get("url", ""))
    _fields_left_out(passage, losses, but=("url",))
    columns = (passage.id, flat(url), _plain(passage.title, losses), _plain(passage.text, losses))
    return ("\t".join(columns) + "\n").encode()


def _dpr(passage: Passage, losses: Losses) -> bytes:
    text, title = passage.text, passage.title
    _fields_left_out(passage, losses)
    if "\0" in text or "\0" in title:
        note(losses, "texts with NUL characters made spaces")
        text, title = text.replace("\0", " "), title.replace("\0", " ")
    return f"{passage.id}\t{quoted(text)}\t{quoted(title)}\n".encode()


def _tevatron(passage: Passage, _: Losses) -> bytes:
    row = passage_row(passage)
    return _line({"docid": row.pop("_id"), **row})


def _pyserini(passage: Passage, _: Losses) -> bytes:
    row = passage_row(passage)
    title, text = row.pop("title"), row.pop("text")
    # A text with line ends and no title would otherwise give its first line away as one.
    contents = f"{title}\n{text}" if title or "\n" in text else text
    return _line({"id": row.pop("_id"), "contents": contents, **row})


def _query_tsv(query: Query, losses: Losses) -> bytes:
    if query.answers is not None:
        note(losses, "lists of answers left out")
    return f"{query.id}\t{_plain(query.text, losses)}\n".encode()


def _dpr_qa(query: Query, losses: Losses) -> bytes:
    note(losses, "ids left out")
    return f"{quoted(_plain(query.text, losses))}\t{quoted(repr(list(query.answers or ())))}\n".encode()


def _nq_open(query: Query, losses: Losses) -> bytes:
    note(losses, "ids left out")
    return _line({"question": query.text, "answer": list(query.answers or ())})


def _tevatron_query(query: Query, _: Losses) -> bytes:
    row = query_row(query)
    return _line({"query_id": row.pop("_id"), "query": row.pop("text"), **row})


def _run_trec(hit: Hit, _: Losses) -> bytes:
    return f"{hit.query_id} Q0 {hit.doc_id} {hit.rank} {hit.score!r} {hit.tag}\n".encode()


def _run_msmarco(hit: Hit, losses: Losses) -> bytes:
    note(losses, "scores left out")
    return f"{hit.query_id}\t{hit.doc_id}\t{hit.rank}\n".encode()


def _qrels_beir(qrel: Qrel, _: Losses) -> bytes:
    return f"{qrel.query_id}\t{qrel.doc_id}\t{qrel.grade}\n".encode()


def _qrels_trec(qrel: Qrel, _: Losses) -> bytes:
    return f"{qrel.query_id} 0 {qrel.doc_id} {qrel.grade}\n".encode()


BEIR: Format[Any] = Format(lambda record, _: dump(record))
MSMARCO = Format(_msmarco)
MSMARCO_DOCS = Format(_msmarco_docs)
DPR = Format(_dpr, header=b"id\ttext\ttitle\n")
TEVATRON = Format(_tevatron)
PYSERINI = Format(_pyserini)
QUERY_TSV = Format(_query_tsv)
DPR_QA = Format(_dpr_qa)
NQ_OPEN = Format(_nq_open)
TEVATRON_QUERY = Format(_tevatron_query)
QRELS_BEIR = Format(_qrels_beir, header=b"query-id\tcorpus-id\tscore\n")
QRELS_TREC = Format(_qrels_trec)
RUN_TREC = Format(_run_trec)
RUN_MSMARCO = Format(_run_msmarco)
