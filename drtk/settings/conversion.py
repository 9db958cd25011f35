"""From which format into which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.settings.core import knob

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
