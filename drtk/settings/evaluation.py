"""How runs are scored and shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.settings.core import knob

By = Literal["passage", "source"]


@dataclass(frozen=True)
class EvalSettings:
    """drtk eval."""

    measures: str = knob(
        "nDCG@10 RR@10 R@10 R@100 Success@10",
        "Measures as ir_measures writes them (nDCG@10, RR(rel=2)@10) or as trec_eval does (map, P_30, all_trec).",
    )
    rel: int = knob(1, "The grade from which on a document counts as relevant, where a measure does not say it.")
    by: By = knob("passage", "What is scored: passage, or source: a document by its best passage (MaxP).")
    drop_same_id: bool = knob(False, "Take a query's own document out of its ranking, before the cut (BEIR).")
    depth: int | None = knob(None, "Score only the first N of each ranking.", at_least=1)
    order: Literal["score", "rank"] = knob("score", "What orders a ranking: score, or rank to trust that column.")
    retrieved_only: bool = knob(False, "Leave out judged queries the run lacks, instead of counting them as 0.")
    per_query: bool = knob(False, "Show the values of each query too.")
    format: Literal["table", "jsonl", "markdown", "latex", "csv", "trec"] = knob(
        "table", "table, jsonl, markdown, latex, csv or trec (as trec_eval prints)."
    )
    digits: int = knob(4, "Decimals shown; jsonl and csv hold all of them.", at_least=0, at_most=17)


@dataclass(frozen=True)
class ReportSettings:
    """drtk report."""

    measures: str = knob("nDCG@10 RR@10 R@10 R@100", "Measures to report, as drtk eval takes them.")
    by: By = knob("passage", "What is scored: passage, or source: a document by its best passage (MaxP).")
    rel: int = knob(1, "The grade from which on a document counts as relevant, where a measure does not say it.")
    drop_same_id: bool = knob(False, "Take a query's own document out of its ranking, before the cut (BEIR).")
    examples: int = knob(3, "Example queries shown.", at_least=0)
    show: str = knob("", "System set against the first one in the examples; by default 'trained', or the best one.")
    title: str = knob("Retrieval report", "Heading of the report.")
