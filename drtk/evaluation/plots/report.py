"""The picture of a report: measures by system, recall by depth, loss by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drtk.errors import MissingDependency, pip_install
from drtk.evaluation.plots.base import MARKERS
from drtk.evaluation.plots.runs import BEYOND, draw_curve
from drtk.evaluation.plots.training import smoothed, steps_along

if TYPE_CHECKING:
    from drtk.evaluation.curves import LossCurve
    from drtk.evaluation.evaluate import Evaluation

# The strongest colours for what usually comes last.
COLOURS = ("#999999", "#56b4e9", "#d55e00", "#009e73", "#0072b2", "#cc79a7", "#e69f00", "#000000")


def draw_report(
    path: Path,
    *,
    title: str,
    results: Sequence[Evaluation],
    measures: Sequence[str],
    depths: Sequence[int],
    recall: Mapping[str, Sequence[float]],
    loss: LossCurve | None,
) -> None:
    """Write a PNG; the loss has a panel only where there is one.

    Raises MissingDependency where matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency("matplotlib", "the picture of a report", pip_install("matplotlib")) from error
    panels = 2 if loss is None else 3
    figure = Figure(figsize=(6.0 * panels, 5.4), dpi=120, layout="constrained")
    axes = figure.subplots(1, panels, width_ratios=[1.35, 1, 1][:panels])
    figure.suptitle(title, fontsize=15, fontweight="bold")
    _bars(axes[0], results, measures)
    _curves(axes[1], results, depths, recall)
    if loss is not None:
        _loss(axes[2], loss)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(8, len(labels)), frameon=False, fontsize=12)
    figure.savefig(path)


def _bars(axis: Any, results: Sequence[Evaluation], measures: Sequence[str]) -> None:
    width = 0.86 / len(results)
    for at, result in enumerate(results):
        places = [group + (at - (len(results) - 1) / 2) * width for group in range(len(measures))]
        values = [float(result.overall[measure]) for measure in measures]
        bars = axis.bar(places, values, width * 0.94, label=result.name, color=COLOURS[at % len(COLOURS)])
        if len(results) * len(measures) <= 40:
            labels = [f"{value:.3f}".removeprefix("0") if value < 1 else f"{value:.2f}" for value in values]
            axis.bar_label(bars, labels, rotation=90, padding=3, fontsize=9)
    axis.set_xticks(range(len(measures)), measures, fontsize=11)
    axis.set_ylim(0, min(1.15, 1.18 * max((float(r.overall[m]) for r in results for m in measures), default=1) + 0.02))
    _plain(axis, "Measures (higher is better)")


def _curves(
    axis: Any, results: Sequence[Evaluation], depths: Sequence[int], recall: Mapping[str, Sequence[float]]
) -> None:
    for at, result in enumerate(results):
        draw_curve(
            axis,
            depths,
            recall[result.name],
            result.deepest,
            label=result.name,
            color=COLOURS[at % len(COLOURS)],
            marker=MARKERS[at % len(MARKERS)],
            markersize=5,
            linewidth=2,
        )
    axis.set_xscale("log")
    axis.set_xticks(depths, [str(depth) if depth in (1, 3, 10, 30, 100, 300, 1000) else "" for depth in depths])
    axis.minorticks_off()
    beyond = BEYOND if any(result.deepest < depths[-1] for result in results) else ""
    axis.set_xlabel(f"k: documents looked at{beyond}", fontsize=11)
    axis.grid(axis="x", color="#eeeeee")
    _plain(axis, "Recall at k")


def _loss(axis: Any, loss: LossCurve) -> None:
    axis.plot(loss.steps, loss.losses, color="#0072b2", linewidth=1, alpha=0.35)
    axis.plot(loss.steps, smoothed(loss.losses), color="#0072b2", linewidth=2.2)
    axis.set_xlabel("step", fontsize=11)
    axis.set_ylim(bottom=0)
    if loss.tells:
        quarter = len(loss.losses) // 4
        for mean, steps in ((loss.first, loss.steps[:quarter]), (loss.last, loss.steps[-quarter:])):
            axis.hlines(mean, steps[0], steps[-1], colors="#d55e00", linewidth=2)
            middle = ((steps[0] + steps[-1]) / 2, mean)
            style = {"ha": "center", "va": "top", "color": "#d55e00", "fontsize": 11, "fontweight": "bold"}
            axis.annotate(f"{mean:.3g}", middle, xytext=(0, -5), textcoords="offset points", **style)
        axis.set_xlabel("step; orange: means of the first and the last quarter", fontsize=11)
    steps_along(axis, loss.steps[-1])
    _plain(axis, "Training loss")


def _plain(axis: Any, title: str) -> None:
    axis.set_title(title, fontsize=13, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#dddddd")
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=10)
