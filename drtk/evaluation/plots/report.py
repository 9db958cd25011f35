"""Draw the plot of a report: measures by system, recall by depth, loss by step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from drtk.evaluation.plots.base import COLORS, render, style_axis
from drtk.evaluation.plots.runs import draw_recall
from drtk.evaluation.plots.training import draw_curve, set_steps

if TYPE_CHECKING:
    from drtk.evaluation.report import Report


def draw_report(path: Path, report: Report) -> None:
    """Write a PNG, with a panel for the loss if there is one. Raises MissingDependency without matplotlib."""
    panels = 2 if report.loss is None else 3

    def draw(figure: Any) -> None:
        axes = figure.subplots(1, panels, width_ratios=[1.35, 1, 1][:panels])
        figure.suptitle(report.title, fontsize=15, fontweight="bold")
        _draw_measures(axes[0], report)
        deepest = {result.name: result.deepest for result in report.results}
        draw_recall(axes[1], {"k": report.depths, "curves": report.recall, "deepest": deepest})
        style_axis(axes[1], "Recall at k", grid="both")
        if report.loss is not None:
            draw_curve(axes[2], report.loss.steps, report.loss.values, COLORS[0])
            axes[2].set_ylim(bottom=0)
            set_steps(axes[2], report.loss.steps[-1])
            style_axis(axes[2], "Training loss")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=min(8, len(labels)), frameon=False, fontsize=12
        )

    path.write_bytes(render(draw, (6.0 * panels, 5.4), "png", "the picture of a report"))


def _draw_measures(axis: Any, report: Report) -> None:
    results, measures = report.results, report.names
    width = 0.86 / len(results)
    for at, result in enumerate(results):
        places = [group + (at - (len(results) - 1) / 2) * width for group in range(len(measures))]
        values = [float(result.overall[measure]) for measure in measures]
        bars = axis.bar(places, values, width * 0.94, label=result.name, color=COLORS[at % len(COLORS)])
        if len(results) * len(measures) <= 40:
            axis.bar_label(bars, fmt="%.3f", rotation=90, padding=3, fontsize=9)
    axis.set_xticks(range(len(measures)), measures, fontsize=11)
    axis.margins(y=0.18)
    style_axis(axis, "Measures (higher is better)")
