"""Settings of evaluation commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import By, option

REL = "The grade from which on a document counts as relevant, where a measure does not say it."
BY = "What is scored: passage, or source: a document by its best passage (MaxP)."
DROP = "Take a query's own document out of its ranking, before the cut (BEIR)."
DEPTH = "Score only the first N of each ranking."
ORDER = "What orders a ranking: score, or rank to trust that column."
MATCH = "How --answers are looked for: tokens (DPR's matching), or regex (answers are patterns: CuratedTREC)."
MATCH_TITLE = "Look for --answers in titles too (GAR), not in texts alone (DPR)."
DIGITS = "Decimals shown; jsonl and csv hold all of them."


@dataclass(frozen=True)
class ScoringSettings:
    """How runs are read and what is relevant; settings of eval and compare."""

    measures: str = option("", "Measures, as drtk eval takes them.")
    rel: int = option(1, REL)
    by: By = option("passage", BY)
    drop_same_id: bool | None = option(None, DROP)
    depth: int | None = option(None, DEPTH, at_least=1)
    order: Literal["score", "rank"] = option("score", ORDER)
    match: Literal["tokens", "regex"] = option("tokens", MATCH)
    match_title: bool = option(False, MATCH_TITLE)


@dataclass(frozen=True)
class EvalSettings(ScoringSettings):
    """Settings of drtk eval."""

    measures: str = option(
        "",
        "Measures, separated by spaces or commas: nDCG@10, recall@100, RR(rel=2)@10, or trec_eval names (map, P_30, all_trec). "
        "[default: nDCG@10 RR@10 R@10 R@100 Success@10; of a folder of collections nDCG@10 R@100; with --answers Answer@1 Answer@5 Answer@20 Answer@100; with "
        "--exact-match EM F1]",
    )
    drop_same_id: bool | None = option(
        None,
        "Take a query's own document out of its ranking, before the cut (arguana, quora). [default: on where --qrels is a "
        "folder of several collections, otherwise off]",
    )
    split: str = option("test", "Which judgments of BEIR collections: NAME/qrels/SPLIT.tsv.")
    retrieved_only: bool = option(False, "Leave out judged queries the run lacks, instead of counting them as 0.")
    per_query: bool = option(False, "Show the values of each query too.")
    format: Literal["table", "jsonl", "markdown", "latex", "csv", "trec"] = option(
        "table", "table, jsonl, markdown, latex, csv or trec (as trec_eval prints)."
    )
    exact_match: bool = option(False, "The input holds predictions, which must equal one of the --answers.")
    num_workers: int | None = option(None, "Processes that look for answers. [default: one a core]", at_least=1)
    digits: int = option(4, DIGITS, at_least=0, at_most=17)


@dataclass(frozen=True)
class ReportSettings:
    """Settings of drtk report."""

    measures: str = option("nDCG@10 RR@10 R@10 R@100", "Measures to report, as drtk eval takes them.")
    by: By = option("passage", BY)
    rel: int = option(1, REL)
    drop_same_id: bool = option(False, DROP)
    examples: int = option(3, "Example queries shown.", at_least=0)
    show: str = option("", "System compared with the first one in the examples; by default the best of the others.")
    heading: str = option("Retrieval report", "Heading of the report.")


@dataclass(frozen=True)
class CompareSettings(ScoringSettings):
    """Settings of drtk compare."""

    measures: str = option(
        "",
        "Measures to compare, as drtk eval takes them; queries move by the first. [default: nDCG@10 RR@10 R@100; with "
        "--answers Answer@1 Answer@5 Answer@20 Answer@100]",
    )
    baseline: str = option("", "The system that others are set against. [default: the first]")
    all_pairs: bool = option(False, "Set every system against every other one.")
    drop_same_id: bool = option(False, DROP)
    intersect: bool = option(False, "Compare on the queries that all runs have.")
    missing_as_zero: bool = option(False, "Count a query that a run lacks as one that found nothing.")
    permutations: int = option(100_000, "Sign assignments of the randomisation test.", at_least=100)
    seed: int = option(42, "Seed of the randomisation test.")
    correction: Literal["holm", "none"] = option("holm", "How p values are corrected for the number of comparisons.")
    alpha: float = option(0.05, "A corrected p below this is marked.", at_least=0, at_most=1)
    confidence: float = option(0.95, "Confidence of the interval around a difference.", at_least=0.5, at_most=0.9999)
    moved: int = option(5, "Queries shown that gained most, and that lost most.", at_least=0)
    format: Literal["table", "markdown", "latex", "html", "jsonl", "csv"] = option(
        "table", "table, markdown, latex, html (one page with everything), jsonl or csv."
    )
    digits: int = option(4, DIGITS, at_least=0, at_most=17)
    heading: str = option("Comparison", "Heading of a page.")


@dataclass(frozen=True)
class PlotSettings:
    """Settings of drtk plot. None: not given; each kind of plot rejects options that have no effect on it."""

    measure: str | None = option(None, "differences: the measure. [default: nDCG@10]")
    hit_rate: bool | None = option(None, "recall: draw how often any relevant document is found, not the share of all.")
    rel: int | None = option(None, "The grade from which on a document counts as relevant. [default: 1]")
    by: By | None = option(
        None, "What is scored: passage, or source: a document by its best passage. [default: passage]"
    )
    drop_same_id: bool | None = option(None, "Take a query's own document out of its ranking (BEIR).")
    depth: int | None = option(None, "Look at the first N of each ranking.", at_least=1)
    field: tuple[str, ...] | None = option(
        None, "training: a number of the log that is drawn; repeatable. [default: loss, or all terms and measurements]"
    )
    positive: float | None = option(None, "space: pairs rated above this belong together. [default: 4]")
    points: int | None = option(
        None, "space: vectors drawn of each group, chosen by a hash. [default: 1500]", at_least=2
    )
    format: Literal["png", "svg", "pdf", "json"] | None = option(
        None, "png, svg, pdf, or json: the numbers that are drawn. [default: what the name of the file ends in]"
    )
    heading: str | None = option(None, "Heading of the picture.")
    width: float | None = option(None, "Width in inches.", at_least=1, at_most=100)
    height: float | None = option(None, "Height in inches.", at_least=1, at_most=100)


PLOT_OPTIONS = frozenset({"format", "heading", "width", "height"})  # options of every plot
RUN_PLOT_OPTIONS = frozenset({"qrels", "rel", "by", "drop_same_id", "depth"})  # options of plots of runs


@dataclass(frozen=True)
class SentenceSettings:
    """Settings of drtk eval-sentences."""

    tasks: str = option("", "Tasks, separated by spaces. [default: all that --data has]")
    setting: Literal["all", "mean"] = option(
        "all", "STS12 to STS16: all (one correlation over all subsets together) or mean (of the subsets' own)."
    )
    split: str = option("test", "Which part of STS-B and SICK-R.")
    positive: float = option(4.0, "Alignment is over pairs of STS-B rated above this.")
    same: float = option(5.0, "Retrieval looks for the partners of pairs of STS-B rated this.")
    seed: int = option(1111, "Seed of the transfer tasks' folds and fits.")
    format: Literal["table", "jsonl", "markdown", "latex", "csv"] = option(
        "table", "table, jsonl, markdown, latex or csv."
    )
    digits: int = option(4, DIGITS, at_least=0, at_most=17)
