"""Build a report on several systems: their comparison, the effect of a fusion, recall by depth, and the training loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from drtk.data.runs import group_runs, read_fused_runs
from drtk.data.trec import Judgments
from drtk.errors import MissingDependency
from drtk.evaluation.compare import ChangedQuery, Comparison, compare_runs
from drtk.evaluation.compare_report import describe_changes, iter_text_lines, list_json_rows
from drtk.evaluation.config import CompareSettings, ReportSettings
from drtk.evaluation.curves import Curve, choose_depths, compute_recall_curve, describe_loss, read_curves
from drtk.evaluation.evaluate import Rankings
from drtk.evaluation.plots.runs import draw_report
from drtk.runtime.atomic import write_json
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import warn
from drtk.runtime.streams import is_stream
from drtk.runtime.tables import escape_markdown

PLOT_FILE = "report.png"
OVERLAP_DEPTH = 100


@dataclass(frozen=True)
class Overlap:
    """Overlap of the relevant documents in the top `depth` of two runs and of their fusion.

    relevant: numbers of relevant documents in "both" runs, in the "first" or "second" only, and in "neither"
    kept: as `relevant`, but only of the documents that are also in the top `depth` of the fusion
    shared: number of documents in the top `depth` of both runs, relevant or not, divided by the length of the shorter
        ranking (at most `depth`); mean over the queries for which both runs have hits
    """

    runs: tuple[str, str]
    fused: str
    depth: int
    relevant: dict[str, int]
    kept: dict[str, int]
    shared: float

    def describe(self) -> str:
        """Return a paragraph that explains the effect of the fusion."""
        (a, b), relevant, kept = self.runs, self.relevant, self.kept
        found_by_one, kept_by_one = relevant["first"] + relevant["second"], kept["first"] + kept["second"]
        lost = found_by_one - kept_by_one + relevant["both"] - kept["both"]
        return (
            f"Of {sum(relevant.values()):,} relevant documents, {relevant['both']:,} are in the top {self.depth} of both {a} "
            f"and {b}, {relevant['first']:,} of {a} only, {relevant['second']:,} of {b} only, {relevant['neither']:,} of "
            f"neither. {self.fused} keeps {kept_by_one:,} of the {found_by_one:,} found by one run and {kept['both']:,} of those found by "
            f"both; {lost:,} fall below rank {self.depth}. The runs share {self.shared:.0%} of the documents they retrieve."
        )


def compute_overlap(
    names: tuple[str, str], fused: str, rankings: Mapping[str, Rankings], judgments: Judgments, *, rel: int = 1
) -> Overlap:
    """Compute the overlap of two runs and their fusion.

    names: the two runs; fused: the fusion; rankings: {run: {query id: ranked document ids}}
    rel: minimum grade of a relevant document
    """
    relevant = dict.fromkeys(("both", "first", "second", "neither"), 0)
    kept = dict(relevant)
    shares = []
    for query, grades in judgments.items():
        a, b, fusion = (set(rankings[name].get(query, ())[:OVERLAP_DEPTH]) for name in (*names, fused))
        if a and b:
            shares.append(len(a & b) / min(len(a), len(b)))
        for id, grade in grades.items():
            if grade >= rel:
                where = ("both" if id in b else "first") if id in a else "second" if id in b else "neither"
                relevant[where] += 1
                kept[where] += id in fusion
    return Overlap(names, fused, OVERLAP_DEPTH, relevant, kept, fmean(shares) if shares else 0.0)


@dataclass
class Report:
    """Content of a report. recall: recall by system at each of `depths`; has_plot: whether report.png was written"""

    comparison: Comparison
    changed: list[ChangedQuery]
    depths: Sequence[int]
    recall: Mapping[str, Sequence[float]]
    overlap: Overlap | None = None
    loss: Curve | None = None
    has_plot: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the content of report.json; rows: the lines of drtk compare --format jsonl."""
        return {
            "rows": list_json_rows(self.comparison, self.changed),
            "recall": {"k": self.depths, **self.recall},
            "overlap": None if self.overlap is None else asdict(self.overlap),
            "loss": None if self.loss is None else asdict(self.loss),
        }

    def iter_lines(self, *, markdown: bool) -> Iterator[str]:
        """Yield the lines of report.md, or of the output in the terminal, which omits the queries that changed most."""
        paragraphs = [] if self.overlap is None else [self.overlap.describe()]
        paragraphs += [] if self.loss is None else [describe_loss(self.loss)]
        if markdown:
            panels = "Measures by system, recall by depth" + ", loss by step" * (self.loss is not None)
            figure = [f"![{panels}]({PLOT_FILE})"] * self.has_plot
            paragraphs = [*map(escape_markdown, paragraphs), *figure]
        changed = self.changed if markdown else []
        return iter_text_lines(self.comparison, changed, markdown=markdown, paragraphs=paragraphs)

    def write(self, folder: Path) -> None:
        """Write report.json, report.md and, if matplotlib is installed, report.png."""
        try:
            draw_report(folder / PLOT_FILE, self.comparison, self.depths, self.recall, self.loss)
            self.has_plot = True
        except MissingDependency as missing:
            warn(f"report.png was not drawn: {missing}")
        write_json(folder / "report.json", self.to_json())
        (folder / "report.md").write_text("\n".join(self.iter_lines(markdown=True)) + "\n", encoding="utf-8")


def build_report(
    runs: Sequence[str],
    qrels: str,
    settings: ReportSettings,
    tracker: InputTracker | None = None,
    *,
    corpus: str | None = None,
    queries: str | None = None,
    loss_log: str | None = None,
) -> Report:
    """Build the report of runs given as [NAME=]FILE; several runs of a name are one system.

    corpus, queries: texts to show for the queries that changed most; loss_log: training log (JSON lines)
    Raises the errors of `compare_runs`.
    """
    tracker = tracker or InputTracker()
    rankings: dict[str, list[Rankings]] = {}
    compare_settings = CompareSettings(**asdict(settings), missing_as_zero=True)
    comparison = compare_runs(runs, qrels, corpus, compare_settings, tracker, rankings=rankings)
    judgments = comparison.judgments
    changed = describe_changes(comparison, corpus, queries, tracker)
    depths = choose_depths([ranked for of_system in rankings.values() for ranked in of_system])
    curves = {
        name: [compute_recall_curve(ranked, judgments, depths, rel=settings.rel) for ranked in of_system]
        for name, of_system in rankings.items()
    }
    return Report(
        comparison,
        changed,
        depths,
        {name: np.mean(of_system, axis=0).tolist() for name, of_system in curves.items()},
        _find_overlap(runs, {name: ranked for name, (ranked, *_) in rankings.items()}, judgments, settings.rel),
        None if loss_log is None else read_curves(loss_log, field="loss", tracker=tracker)["loss"],
    )


def _find_overlap(
    arguments: Sequence[str], rankings: Mapping[str, Rankings], judgments: Judgments, rel: int
) -> Overlap | None:
    """Compute the overlap for the first run that is a fusion of two other systems; None without such a run.

    arguments: runs as [NAME=]FILE; rankings: those of each system's first run
    """
    runs = [files[0] for files in group_runs(arguments).values()]
    names = {Path(run.source).resolve(): run.name for run in runs if not is_stream(run.source)}
    for run in runs:
        parts = [names.get(Path(source).resolve()) for source in read_fused_runs(run.source)]
        if len(parts) == 2 and parts[0] is not None and parts[1] is not None:
            return compute_overlap((parts[0], parts[1]), run.name, rankings, judgments, rel=rel)
    return None
