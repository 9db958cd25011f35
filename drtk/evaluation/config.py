"""Settings of evaluation commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import CONTROL, HARDWARE, ScoringUnit, option, redeclare, setting

REL = "Minimum relevance grade, for measures without (rel=N)."
BY = "Score passages, or source documents by their best passage (MaxP)."
DROP = "Ignore the document with the query's id (as in BEIR)."
MATCH = "Match answers by tokens (as in DPR) or as regular expressions."
MEASURES = "Measures, separated by spaces or commas: nDCG@10, recall@100, RR(rel=2)@10, P_30 …"
MOVED = "Show the N queries with the largest gains and the N with the largest losses."
DIGITS = "Number of decimals to print, 0 to 17."


@dataclass(frozen=True)
class ScoringSettings:
    """Settings of drtk eval and drtk compare: how runs are read and which passages are relevant."""

    measures: str | None = option(None, MEASURES)
    rel: int = option(1, REL)
    by: ScoringUnit = option("passage", BY)
    drop_same_id: bool | None = option(None, f"{DROP} [default: off]")
    depth: int | None = option(None, "Top documents per query to score. [default: all]", at_least=1)
    order: Literal["score", "rank"] = setting("score", "Order documents by the score or the rank column of the run.")
    match: Literal["tokens", "regex"] = option("tokens", MATCH)
    match_title: bool = setting(False, "Also search passage titles for answers (as in GAR).")


@dataclass(frozen=True)
class EvalSettings(ScoringSettings):
    """Settings of drtk eval."""

    measures: str | None = option(
        None,
        f"{MEASURES} [default: nDCG@10 RR@10 R@10 R@100 Success@10; nDCG@10 R@100 for several collections; "
        "Answer@1,5,20,100 with --answers; EM F1 with --exact-match]",
    )
    drop_same_id: bool | None = option(None, f"{DROP} [default: on for a folder of collections, else off]")
    split: str = option("test", "Split of a BEIR collection, the file qrels/NAME.tsv.", metavar="NAME")
    retrieved_only: bool = setting(
        False, "Ignore judged queries without a ranking; if --qrels is a folder, collections without a run."
    )
    per_query: bool = option(False, "Also print the values of each query.")
    format: Literal["table", "jsonl", "markdown", "latex", "csv", "trec"] = option(
        "table", "Output format; trec is the output of trec_eval."
    )
    exact_match: bool = option(False, "Evaluate predicted answers by exact match and F1 (requires --answers).")
    num_workers: int | None = option(
        None, "Worker processes for answer matching. [default: one per core]", at_least=1, panel=HARDWARE
    )
    digits: int = setting(4, DIGITS, at_least=0, at_most=17)


@dataclass(frozen=True)
class ReportSettings:
    """Settings of drtk report."""

    measures: str = option("nDCG@10 RR@10 R@10 R@100", "Measures to report, separated by spaces or commas.")
    by: ScoringUnit = option("passage", BY)
    rel: int = option(1, REL)
    drop_same_id: bool = option(False, DROP)
    moved: int = option(3, MOVED, at_least=0)
    heading: str = option("Retrieval report", "Heading of the report.")


@redeclare("match", advanced=True)
@dataclass(frozen=True)
class CompareSettings(ScoringSettings):
    """Settings of drtk compare."""

    measures: str | None = option(
        None, "Measures to compare. [default: nDCG@10 RR@10 R@100; Answer@1,5,20,100 with --answers]"
    )
    baseline: str = option("", "Baseline of the tests. [default: the first system]", metavar="NAME")
    all_pairs: bool = option(False, "Test every pair of systems, not only the baseline's.")
    drop_same_id: bool = option(False, DROP)
    intersect: bool = option(False, "Compare only on queries that are in all runs.")
    missing_as_zero: bool = setting(False, "Count queries missing from a run as 0.")
    permutations: int = setting(100_000, "Permutations of the randomization test.", at_least=100)
    seed: int = option(42, "Random seed.", panel=CONTROL)
    correction: Literal["holm", "none"] = setting(
        "holm", "Correction of p-values for multiple comparisons: Holm or none."
    )
    alpha: float = option(0.05, "Significance level, 0 to 1.", at_least=0, at_most=1)
    confidence: float = setting(0.95, "Confidence level of the intervals, 0.5 to 0.9999.", at_least=0.5, at_most=0.9999)
    moved: int = option(5, MOVED, at_least=0)
    format: Literal["table", "markdown", "latex", "html", "jsonl", "csv"] = option(
        "table", "Output format; html is a web page with all results."
    )
    digits: int = setting(4, DIGITS, at_least=0, at_most=17)
    heading: str = option("Comparison", "Heading of the comparison.")


@dataclass(frozen=True)
class PlotSettings:
    """Settings of drtk plot; None means not given. Each plot rejects settings that have no effect on it."""

    measure: str | None = option(None, "Measure to compare (differences plot only). [default: nDCG@10]")
    hit_rate: bool | None = option(
        None, "Plot success@k (hit rate) instead of recall@k (recall plot only). [default: off]"
    )
    rel: int | None = option(None, "Minimum relevance grade of relevant documents. [default: 1]")
    by: ScoringUnit | None = option(None, BY + " [default: passage]")
    drop_same_id: bool | None = option(None, f"{DROP} [default: off]")
    depth: int | None = option(None, "Top documents per query to use. [default: all]", at_least=1)
    field: tuple[str, ...] | None = option(
        None,
        "Field of log.jsonl to plot; repeatable (training plot only). [default: loss, or all loss terms]",
        metavar="NAME",
    )
    positive: float | None = option(None, "Pairs rated above this value are positive (space plot only). [default: 4]")
    points: int | None = option(None, "Vectors to sample per input (space plot only). [default: 1500]", at_least=2)
    format: Literal["png", "svg", "pdf", "json"] | None = option(
        None, "Output format. [default: by the extension of --output]"
    )
    heading: str | None = option(None, "Heading of the figure.")
    width: float | None = setting(None, "Width of the figure in inches, 1 to 100.", at_least=1, at_most=100)
    height: float | None = setting(None, "Height of the figure in inches, 1 to 100.", at_least=1, at_most=100)


PLOT_OPTIONS = frozenset({"format", "heading", "width", "height"})  # options of every plot
RUN_PLOT_OPTIONS = frozenset({"qrels", "rel", "by", "drop_same_id", "depth"})  # options of plots of runs


@dataclass(frozen=True)
class SentenceSettings:
    """Settings of drtk eval-sentences."""

    tasks: str = option("", "Tasks, separated by spaces. [default: all in --data]")
    split: str = option("test", "Split of STS-B and SICK-R.", metavar="NAME")
    positive: float = setting(4.0, "Pairs rated above this value are positive (alignment only).")
    same: float = setting(5.0, "Rating of the pairs whose sentences must retrieve each other (retrieval only).")
    seed: int = option(42, "Random seed.", panel=CONTROL)
    format: Literal["table", "jsonl", "markdown", "latex", "csv"] = option("table", "Output format.")
    digits: int = setting(4, DIGITS, at_least=0, at_most=17)
    aggregation: Literal["all", "mean"] = setting(
        "all", "Correlation over all pairs (all), or mean correlation of the subsets (mean); STS12 to STS16 only."
    )
