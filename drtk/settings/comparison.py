"""How systems are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.settings.core import By, knob


@dataclass(frozen=True)
class CompareSettings:
    """drtk compare."""

    measures: str = knob(
        "",
        "Measures to compare, as drtk eval takes them; queries move by the first. [default: nDCG@10 RR@10 R@100; with "
        "--answers Answer@1 Answer@5 Answer@20 Answer@100]",
    )
    baseline: str = knob("", "The system that others are set against. [default: the first]")
    all_pairs: bool = knob(False, "Set every system against every other one.")
    rel: int = knob(1, "The grade from which on a document counts as relevant, where a measure does not say it.")
    by: By = knob("passage", "What is scored: passage, or source: a document by its best passage (MaxP).")
    drop_same_id: bool = knob(False, "Take a query's own document out of its ranking, before the cut (BEIR).")
    depth: int | None = knob(None, "Score only the first N of each ranking.", at_least=1)
    order: Literal["score", "rank"] = knob("score", "What orders a ranking: score, or rank to trust that column.")
    match: Literal["tokens", "regex"] = knob(
        "tokens", "How --answers are looked for: tokens (DPR's matching), or regex (answers are patterns: CuratedTREC)."
    )
    match_title: bool = knob(False, "Look for --answers in titles too (GAR), not in texts alone (DPR).")
    intersect: bool = knob(False, "Compare on the queries that all runs have.")
    missing_as_zero: bool = knob(False, "Count a query that a run lacks as one that found nothing.")
    permutations: int = knob(100_000, "Sign assignments of the randomisation test.", at_least=100)
    seed: int = knob(42, "Seed of the randomisation test.")
    correction: Literal["holm", "none"] = knob("holm", "How p values are corrected for the number of comparisons.")
    alpha: float = knob(0.05, "A corrected p below this is marked.", at_least=0, at_most=1)
    confidence: float = knob(0.95, "Confidence of the interval around a difference.", at_least=0.5, at_most=0.9999)
    moved: int = knob(5, "Queries shown that gained most, and that lost most.", at_least=0)
    format: Literal["table", "markdown", "latex", "html", "jsonl", "csv"] = knob(
        "table", "table, markdown, latex, html (one page with everything), jsonl or csv."
    )
    digits: int = knob(4, "Decimals shown; jsonl and csv hold all of them.", at_least=0, at_most=17)
    title: str = knob("Comparison", "Heading of a page.")
