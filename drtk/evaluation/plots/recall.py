"""Recall, or the hit rate, by depth: a line a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from drtk.errors import DrtkError
from drtk.evaluation.curves import depths_for, hit_curve, recall_curve
from drtk.evaluation.plots.base import Numbers, Request
from drtk.evaluation.plots.judged import judgements_of, rankings_of, rel_of
from drtk.evaluation.plots.style import COLOURS, MARKERS, MOST, SIZE, label_ends, plain, shortened
from drtk.settings.plotting import COMMON, RUNS, PlotSettings

TICKS = (1, 3, 10, 30, 100, 300, 1000)
BEYOND = "; dotted: more than a run holds"


def draw_curve(axis: Any, depths: Sequence[int], values: Sequence[float], deepest: int, **look: Any) -> None:
    """A line by depth, dotted beyond the longest ranking: what a longer one would have found there, nobody knows."""
    known = max(1, sum(depth <= deepest for depth in depths))
    (line,) = axis.plot(depths[:known], values[:known], **look)
    if known < len(depths):
        style = {"color": line.get_color(), "linewidth": line.get_linewidth()}
        axis.plot(depths[known - 1 :], values[known - 1 :], linestyle=":", **style)


class RecallCurves:
    """drtk plot recall."""

    takes: ClassVar[frozenset[str]] = COMMON | RUNS | {"hit_rate"}

    def numbers(self, request: Request) -> Numbers:
        """{"measure", "k": depths, "curves": {run: values}, "deepest": {run: documents of its longest ranking}, "queries"}"""
        request.need_inputs(1, MOST)
        judgements = judgements_of(request)
        runs = {run.name: rankings_of(run, judgements, request) for run in request.inputs}
        if not any(runs.values()):
            raise DrtkError("nothing to draw: the runs are empty")
        depths = [depth for depth in depths_for(list(runs.values())) if depth <= (request.settings.depth or depth)]
        curve = hit_curve if request.settings.hit_rate else recall_curve
        curves = {name: curve(found, judgements, depths, rel=rel_of(request)) for name, found in runs.items()}
        measure = "Success" if request.settings.hit_rate else "R"
        deepest = {name: max(map(len, found.values()), default=0) for name, found in runs.items()}
        return {"measure": measure, "k": depths, "curves": curves, "deepest": deepest, "queries": len(judgements)}

    def size(self, numbers: Numbers) -> tuple[float, float]:
        """The usual one."""
        return SIZE

    def draw(self, figure: Any, numbers: Numbers, settings: PlotSettings) -> None:
        """Lines over a logarithmic depth, named at their ends."""
        axis = figure.subplots()
        hit = numbers["measure"] == "Success"
        for at, (name, values) in enumerate(numbers["curves"].items()):
            look = {"color": COLOURS[at], "marker": MARKERS[at], "markersize": 5, "linewidth": 2.2}
            draw_curve(axis, numbers["k"], values, numbers["deepest"][name], label=name, **look)
        axis.set_xscale("log")
        axis.set_xticks([k for k in TICKS if numbers["k"][0] <= k <= numbers["k"][-1]])
        axis.set_xticklabels([str(k) for k in TICKS if numbers["k"][0] <= k <= numbers["k"][-1]])
        axis.minorticks_off()
        axis.set_ylim(0, 1.02)
        beyond = BEYOND if any(deepest < numbers["k"][-1] for deepest in numbers["deepest"].values()) else ""
        axis.set_xlabel(f"k: documents looked at{beyond}", fontsize=11.5)
        what = (
            "hit rate: share of queries with a relevant document found"
            if hit
            else "recall: share of relevant documents found"
        )
        axis.set_ylabel(what, fontsize=11.5)
        ends = [
            (numbers["k"][-1], values[-1], shortened(name), COLOURS[at])
            for at, (name, values) in enumerate(numbers["curves"].items())
        ]
        label_ends(axis, ends)
        plain(
            axis,
            settings.title or f"{'Hit rate' if hit else 'Recall'} at k, {numbers['queries']:,} queries",
            grid="both",
        )
