"""Draw the plot of a report: measures by system, recall by depth, loss by step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from drtk.evaluation.plots.base import COLORS, MARKERS, render, style_axis
from drtk.evaluation.plots.runs import BEYOND, TICKS, draw_curve
from drtk.evaluation.plots.training import set_steps, smooth

if TYPE_CHECKING:
    from drtk.evaluation.curves import Curve
    from drtk.evaluation.report import Report


def draw_report(path: Path, report: Report) -> None:
    """Write a PNG, with a panel for the loss if there is one. Raises MissingDependency without matplotlib."""
    panels = 2 if report.loss is None else 3
    path.write_bytes(
        render(lambda figure: _draw(figure, report, panels), (6.0 * panels, 5.4), "png", "the picture of a report")
    )


def _draw(figure: Any, report: Report, panels: int) -> None:
    axes = figure.subplots(1, panels, width_ratios=[1.35, 1, 1][:panels])
    figure.suptitle(report.title, fontsize=15, fontweight="bold")
    _draw_measures(axes[0], report)
    _draw_recall(axes[1], report)
    if report.loss is not None:
        _draw_loss(axes[2], report.loss)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(8, len(labels)), frameon=False, fontsize=12)


def _draw_measures(axis: Any, report: Report) -> None:
    results, measures = report.results, report.names
    width = 0.86 / len(results)
    for at, result in enumerate(results):
        places = [group + (at - (len(results) - 1) / 2) * width for group in range(len(measures))]
        values = [float(result.overall[measure]) for measure in measures]
        bars = axis.bar(places, values, width * 0.94, label=result.name, color=COLORS[at % len(COLORS)])
        if len(results) * len(measures) <= 40:
            labels = [f"{value:.3f}".removeprefix("0") if value < 1 else f"{value:.2f}" for value in values]
            axis.bar_label(bars, labels, rotation=90, padding=3, fontsize=9)
    axis.set_xticks(range(len(measures)), measures, fontsize=11)
    axis.set_ylim(0, min(1.15, 1.18 * max((float(r.overall[m]) for r in results for m in measures), default=1) + 0.02))
    style_axis(axis, "Measures (higher is better)")


def _draw_recall(axis: Any, report: Report) -> None:
    depths = report.depths
    for at, result in enumerate(report.results):
        style = {
            "color": COLORS[at % len(COLORS)],
            "marker": MARKERS[at % len(MARKERS)],
            "markersize": 5,
            "linewidth": 2,
        }
        draw_curve(axis, depths, report.recall[result.name], result.deepest, label=result.name, **style)
    axis.set_xscale("log")
    axis.set_xticks(depths, [str(depth) if depth in TICKS else "" for depth in depths])
    axis.minorticks_off()
    beyond = BEYOND if any(result.deepest < depths[-1] for result in report.results) else ""
    axis.set_xlabel(f"k: documents looked at{beyond}", fontsize=11)
    style_axis(axis, "Recall at k", grid="both")


def _draw_loss(axis: Any, loss: Curve) -> None:
    axis.plot(loss.steps, loss.values, color=COLORS[0], linewidth=1, alpha=0.35)
    axis.plot(loss.steps, smooth(loss.values), color=COLORS[0], linewidth=2.2)
    axis.set_xlabel("step", fontsize=11)
    axis.set_ylim(bottom=0)
    if loss.has_trend:
        quarter = len(loss.values) // 4
        for mean, steps in ((loss.first, loss.steps[:quarter]), (loss.last, loss.steps[-quarter:])):
            axis.hlines(mean, steps[0], steps[-1], colors=COLORS[1], linewidth=2)
            middle = ((steps[0] + steps[-1]) / 2, mean)
            style = {"ha": "center", "va": "top", "color": COLORS[1], "fontsize": 11, "fontweight": "bold"}
            axis.annotate(f"{mean:.3g}", middle, xytext=(0, -5), textcoords="offset points", **style)
        axis.set_xlabel("step; orange: means of the first and the last quarter", fontsize=11)
    set_steps(axis, loss.steps[-1])
    style_axis(axis, "Training loss")
