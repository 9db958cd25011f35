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

    kind: Kind | None = option(None, "What the input contains: passages, queries, qrels, run or examples.", flag="--as")
    to: str | None = option(
        None,
        "Format to write. [default: drtk's own] "
        "Passages: beir, msmarco, msmarco-docs, dpr, tevatron, pyserini. Queries: beir, tsv, dpr-qa, nq-open, tevatron. "
        "Qrels: beir, trec. Runs: trec, msmarco. Examples: drtk, simlm, tevatron, dpr-json, sbert, flag. "
        "All but qrels and runs: parquet, datasets.",
    )
    corpus: str | None = option(
        None, "Corpus with the texts of the examples' passages, for formats that contain texts.", no_effect=_NO_EXAMPLES
    )
    queries: str | None = option(
        None, "Queries with the texts of the examples' queries, for formats that contain texts.", no_effect=_NO_EXAMPLES
    )
    corpus_out: str | None = option(None, "Write the passages of training data to this corpus.", no_effect=_NO_EXAMPLES)
    queries_out: str | None = option(None, "Write the queries of training data to this file.", no_effect=_NO_EXAMPLES)


FileKind = Literal["passages", "queries", "qrels", "run", "examples", "expansions", "predictions"]


@dataclass(frozen=True)
class ValidationSettings:
    """drtk validate."""

    kind: FileKind | None = option(
        None,
        "What the file contains. [default: recognized, except queries, passages without titles, and judgments or MS MARCO runs "
        "of three columns]",
        flag="--as",
    )
    corpus: str | None = option(None, "Corpus that must contain all document ids.")
    queries: str | None = option(None, "Queries that must contain all query ids.")
    qrels: str | None = option(None, "Judgments to compare runs, queries and examples with.")
    leak: str | None = option(
        None, "Another file, such as the test set: texts in both files, apart from case and white space, are errors."
    )
    show: int = option(10, "Number of problems of each kind to show with their place; all are counted.", at_least=0)
    json: bool = option(False, "Write the findings as one JSON object.")
