"""Options of convert and validate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import NoEffect, option

_NO_EXAMPLES = (NoEffect("goes with --as examples", {"kind": ("passages", "queries", "qrels", "run")}),)
Kind = Literal["passages", "queries", "qrels", "run", "examples"]


@dataclass(frozen=True)
class ConversionSettings:
    """drtk convert."""

    kind: Kind | None = option(None, "What the input holds: passages, queries, qrels, run or examples.", flag="--as")
    to: str | None = option(
        None,
        "Format to write; by default drtk's own. "
        "Passages: beir, msmarco, msmarco-docs, dpr, tevatron, pyserini. Queries: beir, tsv, dpr-qa, nq-open, tevatron. "
        "Qrels: beir, trec. Runs: trec, msmarco. Examples: drtk, simlm, tevatron, dpr-json, sbert, flag. "
        "All but qrels and runs: parquet, datasets.",
    )
    corpus: str | None = option(
        None, "Passages whose texts the examples name by id, for formats that hold texts.", no_effect=_NO_EXAMPLES
    )
    queries: str | None = option(
        None, "Queries whose texts the examples name by id, for formats that hold texts.", no_effect=_NO_EXAMPLES
    )
    corpus_out: str | None = option(
        None, "Write the texts found in training data here, as a corpus.", no_effect=_NO_EXAMPLES
    )
    queries_out: str | None = option(
        None, "Write the questions found in training data here, as queries.", no_effect=_NO_EXAMPLES
    )


FileKind = Literal["passages", "queries", "qrels", "run", "examples", "expansions", "predictions"]


@dataclass(frozen=True)
class ValidationSettings:
    """drtk validate."""

    kind: FileKind | None = option(
        None,
        "What the file contains. [default: recognized, except queries, passages without titles, and judgements or MS MARCO runs "
        "of three columns]",
        flag="--as",
    )
    corpus: str | None = option(None, "Passages that the ids of documents must be among.")
    queries: str | None = option(None, "Queries that the ids of queries must be among.")
    qrels: str | None = option(None, "Judgements that runs, queries and examples are compared with.")
    leak: str | None = option(
        None, "Another file; texts that both hold (case and white space aside) are errors, as between train and test."
    )
    show: int = option(10, "Most problems of a kind shown with their place; all are counted.", at_least=0)
    json: bool = option(False, "Write the findings as one JSON object.")
