"""Plots of runs: recall by depth, differences, score distributions, and the plot of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from drtk.data.runs import NamedRun
from drtk.data.trec import Judgments, load_hits
from drtk.errors import DrtkError, UsageError
from drtk.evaluation.compare import Comparison
from drtk.evaluation.config import PLOT_OPTIONS, RUN_PLOT_OPTIONS, PlotSettings
from drtk.evaluation.curves import Curve, choose_depths, compute_recall_curve
from drtk.evaluation.evaluate import Evaluator
from drtk.evaluation.measures import parse_measures
from drtk.evaluation.plots import base
from drtk.evaluation.plots.base import Plot, PlotData, PlotInputs
from drtk.evaluation.plots.training import draw_smoothed_curve, style_step_axis
from drtk.evaluation.significance import ZERO, compute_interval

TICKS = (1, 3, 10, 30, 100, 300, 1000)
BEYOND_DEPTH = "; dotted: beyond the depth of the run"


def draw_curve(axis: Any, depths: Sequence[int], values: Sequence[float], deepest: int, **style: Any) -> None:
    """Draw a line by depth, dotted beyond the longest ranking, where recall is unknown."""
    count = max(1, sum(depth <= deepest for depth in depths))
    (line,) = axis.plot(depths[:count], values[:count], **style)
    if count < len(depths):
        dotted = {"color": line.get_color(), "linewidth": line.get_linewidth(), "linestyle": ":"}
        axis.plot(depths[count - 1 :], values[count - 1 :], **dotted)


def draw_recall(axis: Any, data: PlotData) -> None:
    """Draw recall by depth (logarithmic), one labeled line per run.

    data: {"k": depths, "curves": {run: values}, "deepest": {run: length of its longest ranking}}
    """
    depths = data["k"]
    for at, (name, values) in enumerate(data["curves"].items()):
        style = base.choose_point_style(at) | {"label": base.shorten(name), "linewidth": 2}
        draw_curve(axis, depths, values, data["deepest"][name], **style)
    axis.set_xscale("log")
    ticks = [k for k in TICKS if depths[0] <= k <= depths[-1]]
    axis.set_xticks(ticks, list(map(str, ticks)))
    axis.minorticks_off()
    axis.set_ylim(0, 1.02)
    beyond = BEYOND_DEPTH if any(deepest < depths[-1] for deepest in data["deepest"].values()) else ""
    axis.set_xlabel(f"k: number of documents{beyond}", fontsize=11.5)


class RecallCurves(Plot):
    """Recall by depth, one line per run (drtk plot recall)."""

    option_names: ClassVar[frozenset[str]] = PLOT_OPTIONS | RUN_PLOT_OPTIONS | {"hit_rate"}

    def compute_data(self, inputs: PlotInputs) -> PlotData:
        """Return {"measure", "k": depths, "curves": {run: values}, "deepest": {run: depth}, "queries"}.

        measure: "Success" with `hit_rate`, else "R"
        deepest: length of the longest ranking; queries: number of judged queries
        """
        inputs.check_num_inputs(1, base.MAX_LINES)
        judgments = inputs.read_judgments()
        runs = {run.name: inputs.read_rankings(run, judgments) for run in inputs.inputs}
        if not any(runs.values()):
            raise DrtkError("the runs have no judged query; pass the judgments of their queries")
        depths = [depth for depth in choose_depths(list(runs.values())) if depth <= (inputs.settings.depth or depth)]
        hit_rate = bool(inputs.settings.hit_rate)
        curves = {
            name: compute_recall_curve(rankings, judgments, depths, rel=inputs.rel, hit_rate=hit_rate)
            for name, rankings in runs.items()
        }
        deepest = {name: max(map(len, rankings.values()), default=0) for name, rankings in runs.items()}
        measure = "Success" if hit_rate else "R"
        return {"measure": measure, "k": depths, "curves": curves, "deepest": deepest, "queries": len(judgments)}

    def draw(self, figure: Any, data: PlotData, settings: PlotSettings) -> None:
        """Draw a line per run over a logarithmic depth."""
        axis = figure.subplots()
        draw_recall(axis, data)
        is_hit_rate = data["measure"] == "Success"
        label = "hit rate: share of queries with a hit" if is_hit_rate else "recall: share of relevant documents found"
        axis.set_ylabel(label, fontsize=11.5)
        axis.legend(frameon=False, loc="lower right")
        title = f"{'Hit rate' if is_hit_rate else 'Recall'} at k, {data['queries']:,} queries"
        base.style_axis(axis, settings.heading or title, grid="both")


NAMED = 3  # queries named at each end
MAX_ID = 24  # characters
MAX_TICKS = 12  # with up to this many queries, each is named below its bar


class Differences(Plot):
    """Difference of two runs, one bar per query (drtk plot differences)."""

    option_names: ClassVar[frozenset[str]] = PLOT_OPTIONS | RUN_PLOT_OPTIONS | {"measure"}

    def compute_data(self, inputs: PlotInputs) -> PlotData:
        """Return {"measure", "runs", "mean", "better", "equal", "worse", "queries", "differences"}.

        A difference is the first run's value minus the second's. Queries and differences are sorted, largest gain first.
        mean: mean difference; better, equal, worse: numbers of queries by the sign of the difference
        """
        inputs.check_num_inputs(2, 2)
        measures = parse_measures(inputs.settings.measure or "nDCG@10", rel=inputs.rel)
        if len(measures) != 1 or measures[0].aggregate not in ("mean", "sum"):
            raise UsageError("`measure` must name one measure with a value for every query, such as nDCG@10")
        judgments = inputs.read_judgments()
        evaluator = Evaluator(judgments, measures)
        first, second = (evaluator(run.name, inputs.read_rankings(run, judgments)).per_query for run in inputs.inputs)
        name = measures[0].name
        differences = {query: float(first[query][name]) - float(second[query][name]) for query in judgments}
        ordered = sorted(differences.items(), key=lambda item: (-item[1], item[0]))
        values = [value for _, value in ordered]
        better, worse = sum(value > ZERO for value in values), sum(value < -ZERO for value in values)
        return {
            "measure": name,
            "runs": [run.name for run in inputs.inputs],
            "mean": sum(values) / len(values),
            "better": better,
            "equal": len(values) - better - worse,
            "worse": worse,
            "queries": [query for query, _ in ordered],
            "differences": values,
        }

    def draw(self, figure: Any, data: PlotData, settings: PlotSettings) -> None:
        """Draw bars from the largest gain to the largest loss, and the mean as a line.

        The legend names the queries with the largest gains and losses; all bars are labeled if there are at most MAX_TICKS.
        """
        from matplotlib.patches import Patch

        axis = figure.subplots()
        values, first, second = data["differences"], *map(base.shorten, data["runs"])
        count, ids = len(values), [base.shorten(query, MAX_ID) for query in data["queries"]]
        colors = [base.GOOD if value > 0 else base.BAD for value in values]
        axis.bar(range(count), values, width=1.0 if count > 60 else 0.85, color=colors)
        axis.axhline(0, color="#444444", linewidth=0.8)
        mean = axis.axhline(data["mean"], color="#444444", linewidth=1.2, linestyle=(0, (5, 3)))
        sides = [(first, data["better"], ids, base.GOOD), (second, data["worse"], ids[::-1], base.BAD)]
        labels = [
            f"{name} better: {number:,}" + f" (most on {', '.join(outer[: min(number, NAMED)])})" * (number > 0)
            for name, number, outer, _ in sides
        ]
        handles = [*(Patch(color=color) for *_, color in sides), mean]
        base.add_legend(figure, handles, [*labels, f"mean {data['mean']:+z.4f}; {data['equal']:,} equal"], columns=1)
        largest = max(map(abs, values))
        limit = (1.1 if largest > 1 else min(1.1, 1 / largest) if largest else 1) * (largest or 1)
        axis.set_ylim(-limit, limit)
        axis.set_xlim(-0.7, count - 0.3)
        axis.set_xticks(range(count) if count <= MAX_TICKS else [], ids if count <= MAX_TICKS else [], rotation=30)
        axis.set_xlabel(f"{count:,} {'query' if count == 1 else 'queries'}, sorted by difference", fontsize=11.5)
        axis.set_ylabel(f"difference in {data['measure']}", fontsize=11.5)
        base.style_axis(axis, settings.heading or f"{first} minus {second}, query by query")


MAX_PANELS, BINS = 6, 40


class ScoreDistributions(Plot):
    """Scores of relevant and other documents (drtk plot scores)."""

    option_names: ClassVar[frozenset[str]] = PLOT_OPTIONS | RUN_PLOT_OPTIONS

    def compute_data(self, inputs: PlotInputs) -> PlotData:
        """Return {"panels": {run: result of `summarize_scores`}}."""
        inputs.check_num_inputs(1, MAX_PANELS)
        judgments = inputs.read_judgments()
        scores = {item.name: _read_scores(item, judgments, inputs) for item in inputs.inputs}
        return {"panels": {name: summarize_scores(*pair, name) for name, pair in scores.items()}}

    def choose_size(self, data: PlotData) -> tuple[float, float]:
        return base.SIZE[0], 1.2 + 2.5 * len(data["panels"])

    def draw(self, figure: Any, data: PlotData, settings: PlotSettings) -> None:
        """Draw overlaid score histograms of relevant and of other documents, one panel per run."""
        panels: list[base.HistogramPanel] = []
        for name, panel in data["panels"].items():
            sizes = f"{sum(panel['good']):,} against {sum(panel['other']):,} scores"
            auc = f"{panel['auc']:.3f}".removeprefix("0")
            title = f"{base.shorten(name)}: AUC {auc} ({sizes})"
            panels.append((title, panel["edges"], (panel["other"], panel["good"])))
        kinds = ["not relevant or not judged", "relevant"]
        base.draw_histograms(figure, figure, panels, kinds, "score", settings.heading)


def summarize_scores(good: np.ndarray, other: np.ndarray, name: str) -> PlotData:
    """Return {"edges": bin edges, "good", "other": counts per bin, "auc", "means": [good, other]} of two sets of scores.

    AUC is the share of (good, other) pairs in which the good score is higher; ties count half.
    good: scores of relevant documents, (n,); other: scores of other documents, (m,). Raises DrtkError if one is empty.
    """
    from scipy.stats import rankdata

    for kind, values in (("relevant", good), ("other", other)):
        if len(values) == 0:
            raise DrtkError(f"{name}: no {kind} document has a score; the plot compares relevant with other documents")
    both = np.concatenate([good, other])
    edges = np.histogram_bin_edges(both, bins=BINS)
    ranks = rankdata(both)[: len(good)]
    auc = (float(ranks.sum()) - len(good) * (len(good) + 1) / 2) / (len(good) * len(other))
    return {
        "edges": edges.tolist(),
        "good": np.histogram(good, edges)[0].tolist(),
        "other": np.histogram(other, edges)[0].tolist(),
        "auc": auc,
        "means": [float(good.mean()), float(other.mean())],
    }


def _read_scores(run: NamedRun, judgments: Judgments, inputs: PlotInputs) -> tuple[np.ndarray, np.ndarray]:
    builder, rel = inputs.builder, inputs.rel
    good: list[float] = []
    other: list[float] = []
    for query, hits in load_hits(run.source, tracker=inputs.tracker, only=judgments).items():
        grades = judgments[query]
        best: dict[str, float] = {}
        for id, score in hits.to_ranking():
            best.setdefault(builder.by(id) if builder.by else id, score)
        for id in builder(hits):
            (good if grades.get(id, rel - 1) >= rel else other).append(best[id])
    return np.array(good), np.array(other)


def draw_report(
    path: Path, comparison: Comparison, depths: Sequence[int], recall: Mapping[str, Sequence[float]], loss: Curve | None
) -> None:
    """Write a PNG of measures by system, recall by depth, and the training loss if there is one.

    recall: recall by system at each of `depths`. Raises MissingDependency without matplotlib.
    """
    panels = 2 if loss is None else 3
    deepest = {name: max(run.deepest for run in system.runs) for name, system in comparison.systems.items()}

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, panels, width_ratios=[1.35, 1, 1][:panels])
        figure.suptitle(comparison.settings.heading, fontsize=15, fontweight="bold")
        _draw_measures(axes[0], comparison)
        draw_recall(axes[1], {"k": depths, "curves": recall, "deepest": deepest})
        axes[1].set_ylim(bottom=max(0.0, min(map(min, recall.values())) - 0.05))
        base.style_axis(axes[1], "Recall at k", grid="both")
        if loss is not None:
            draw_smoothed_curve(axes[2], loss.steps, loss.values, base.COLORS[0])
            style_step_axis(axes[2], loss.steps[-1])
            base.style_axis(axes[2], "Training loss")
        base.add_legend(figure, *axes[1].get_legend_handles_labels(), columns=8)

    path.write_bytes(base.render_figure(draw, (5.4 * panels, 5.0), "png", "the plot of a report"))


def _draw_measures(axis: Any, comparison: Comparison) -> None:
    """Draw the mean of each measure and system as a point, with its 95% confidence interval over queries."""
    names = [measure.name for measure in comparison.measures]
    count = len(comparison.systems)
    for at, system in enumerate(comparison.systems.values()):
        for group, name in enumerate(names):
            values = system.compute_values(name, comparison.queries)
            place, mean = group + (at - (count - 1) / 2) * 0.8 / count, float(values.mean())
            low, high = compute_interval(values, confidence=0.95) or (mean, mean)
            axis.errorbar(
                [place], [mean], [[mean - low], [high - mean]], linestyle="", capsize=3, **base.choose_point_style(at)
            )
            axis.annotate(f"{mean:.3f}", (place, high), (0, 5), textcoords="offset points", rotation=90, fontsize=9,
                          ha="center", va="bottom")  # fmt: skip
    for group in range(1, len(names)):
        axis.axvline(group - 0.5, color="#e2e2e2", linewidth=0.8)
    axis.set_xticks(range(len(names)), names, fontsize=11)
    axis.margins(y=0.18)
    base.style_axis(axis, "Measures, with 95% confidence intervals")
