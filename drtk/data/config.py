"""Options of convert and validate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import knob

Kind = Literal["passages", "queries", "qrels", "run", "examples"]


@dataclass(frozen=True)
class ConversionSettings:
    """drtk convert."""

    kind: Kind | None = knob(None, "What the input holds: passages, queries, qrels, run or examples.", flag="--as")
    to: str | None = knob(
        None,
        "Format to write; by default drtk's own. "
        "Passages: beir, msmarco, msmarco-docs, dpr, tevatron, pyserini. Queries: beir, tsv, dpr-qa, nq-open, tevatron. "
        "Qrels: beir, trec. Runs: trec, msmarco. Examples: drtk, simlm, tevatron, dpr-json, sbert, flag. "
        "All but qrels and runs: parquet, datasets.",
    )
    corpus: str | None = knob(None, "Passages whose texts the examples name by id, for formats that hold texts.")
    queries: str | None = knob(None, "Queries whose texts the examples name by id, for formats that hold texts.")
    corpus_out: str | None = knob(None, "Write the texts found in training data here, as a corpus.")
    queries_out: str | None = knob(None, "Write the questions found in training data here, as queries.")


FileKind = Literal["passages", "queries", "qrels", "run", "examples", "expansions", "predictions"]


@dataclass(frozen=True)
class ValidationSettings:
    """drtk validate."""

    kind: FileKind | None = knob(
        None,
        "What the file contains. [default: recognized, except queries, passages without titles, and judgements or MS MARCO runs "
        "of three columns]",
        flag="--as",
    )
    corpus: str | None = knob(None, "Passages that the ids of documents must be among.")
    queries: str | None = knob(None, "Queries that the ids of queries must be among.")
    qrels: str | None = knob(None, "Judgements that runs, queries and examples are compared with.")
    leak: str | None = knob(
        None, "Another file; texts that both hold (case and white space aside) are errors, as between train and test."
    )
    show: int = knob(10, "Most problems of a kind shown with their place; all are counted.", at_least=0)
    json: bool = knob(False, "Write the findings as one JSON object.")
