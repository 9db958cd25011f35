"""Options of evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import By, knob


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


@dataclass(frozen=True)
class PlotSettings:
    """drtk plot. None stands for "not given": a picture refuses options that mean nothing to it."""

    measure: str | None = knob(None, "differences: the measure. [default: nDCG@10]")
    hit_rate: bool | None = knob(None, "recall: draw how often any relevant document is found, not the share of all.")
    rel: int | None = knob(None, "The grade from which on a document counts as relevant. [default: 1]")
    by: By | None = knob(None, "What is scored: passage, or source: a document by its best passage. [default: passage]")
    drop_same_id: bool | None = knob(None, "Take a query's own document out of its ranking (BEIR).")
    depth: int | None = knob(None, "Look at the first N of each ranking.", at_least=1)
    field: tuple[str, ...] | None = knob(
        None, "training: a number of the log that is drawn; repeatable. [default: loss, or all terms and measurements]"
    )
    positive: float | None = knob(None, "space: pairs rated above this belong together. [default: 4]")
    points: int | None = knob(None, "space: vectors drawn of each group, chosen by a hash. [default: 1500]", at_least=2)
    format: Literal["png", "svg", "pdf", "json"] | None = knob(
        None, "png, svg, pdf, or json: the numbers that are drawn. [default: what the name of the file ends in]"
    )
    title: str | None = knob(None, "Heading of the picture.")
    width: float | None = knob(None, "Width in inches.", at_least=1, at_most=100)
    height: float | None = knob(None, "Height in inches.", at_least=1, at_most=100)


COMMON = frozenset({"format", "title", "width", "height"})  # what every picture takes
RUNS = frozenset({"qrels", "rel", "by", "drop_same_id", "depth"})  # what those of runs take


@dataclass(frozen=True)
class SentenceSettings:
    """drtk eval-sentences."""

    tasks: str = knob("", "Tasks, separated by spaces. [default: all that --data has]")
    setting: Literal["all", "mean"] = knob(
        "all", "STS12 to STS16: all (one correlation over all subsets together) or mean (of the subsets' own)."
    )
    split: str = knob("test", "Which part of STS-B and SICK-R.")
    positive: float = knob(4.0, "Alignment is over pairs of STS-B rated above this.")
    same: float = knob(5.0, "Retrieval looks for the partners of pairs of STS-B rated this.")
    seed: int = knob(1111, "Seed of the transfer tasks' folds and fits.")
    format: Literal["table", "jsonl", "markdown", "latex", "csv"] = knob(
        "table", "table, jsonl, markdown, latex or csv."
    )
    digits: int = knob(4, "Decimals shown; jsonl and csv hold all of them.", at_least=0, at_most=17)
