"""How runs are scored and shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.settings.core import By, knob


@dataclass(frozen=True)
class EvalSettings:
    """drtk eval."""

    measures: str = knob(
        "",
        "Measures as ir_measures writes them (nDCG@10, RR(rel=2)@10) or as trec_eval does (map, P_30, all_trec). "
        "[default: nDCG@10 RR@10 R@10 R@100 Success@10; of a folder of collections nDCG@10 R@100; with --answers Answer@1 Answer@5 Answer@20 Answer@100; with "
        "--exact-match EM F1]",
    )
    rel: int = knob(1, "The grade from which on a document counts as relevant, where a measure does not say it.")
    by: By = knob("passage", "What is scored: passage, or source: a document by its best passage (MaxP).")
    drop_same_id: bool | None = knob(
        None,
        "Take a query's own document out of its ranking, before the cut (arguana, quora). [default: on where --qrels is a "
        "folder of several collections, otherwise off]",
    )
    split: str = knob("test", "Which judgements of BEIR collections: NAME/qrels/SPLIT.tsv.")
    depth: int | None = knob(None, "Score only the first N of each ranking.", at_least=1)
    order: Literal["score", "rank"] = knob("score", "What orders a ranking: score, or rank to trust that column.")
    retrieved_only: bool = knob(False, "Leave out judged queries the run lacks, instead of counting them as 0.")
    per_query: bool = knob(False, "Show the values of each query too.")
    format: Literal["table", "jsonl", "markdown", "latex", "csv", "trec"] = knob(
        "table", "table, jsonl, markdown, latex, csv or trec (as trec_eval prints)."
    )
    match: Literal["tokens", "regex"] = knob(
        "tokens", "How --answers are looked for: tokens (DPR's matching), or regex (answers are patterns: CuratedTREC)."
    )
    match_title: bool = knob(False, "Look for --answers in titles too (GAR), not in texts alone (DPR).")
    exact_match: bool = knob(False, "The input holds predictions, which must equal one of the --answers.")
    workers: int | None = knob(None, "Processes that look for answers. [default: one a core]", at_least=1)
    digits: int = knob(4, "Decimals shown; jsonl and csv hold all of them.", at_least=0, at_most=17)


@dataclass(frozen=True)
class ReportSettings:
    """drtk report."""

    measures: str = knob("nDCG@10 RR@10 R@10 R@100", "Measures to report, as drtk eval takes them.")
    by: By = knob("passage", "What is scored: passage, or source: a document by its best passage (MaxP).")
    rel: int = knob(1, "The grade from which on a document counts as relevant, where a measure does not say it.")
    drop_same_id: bool = knob(False, "Take a query's own document out of its ranking, before the cut (BEIR).")
    examples: int = knob(3, "Example queries shown.", at_least=0)
    show: str = knob("", "System compared with the first one in the examples; by default the best of the others.")
    title: str = knob("Retrieval report", "Heading of the report.")
