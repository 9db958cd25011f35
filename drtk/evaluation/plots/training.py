"""The loss, or any other number of a training log, by step: a line a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from drtk.errors import DrtkError
from drtk.evaluation.curves import read_log
from drtk.evaluation.plots.base import Numbers, Request
from drtk.evaluation.plots.style import COLOURS, MOST, SIZE, label_ends, plain, shortened
from drtk.settings.plotting import COMMON, PlotSettings


class TrainingCurves:
    """drtk plot training."""

    takes: ClassVar[frozenset[str]] = COMMON | {"field"}

    def numbers(self, request: Request) -> Numbers:
        """{"field", "curves": {log: {"steps", "values"}}}"""
        request.need_inputs(1, MOST)
        field = request.settings.field or "loss"
        curves = {}
        for log in request.inputs:
            steps, values = read_log(log.source, field, intake=request.intake)
            curves[log.name] = {"steps": steps, "values": values}
        return {"field": field, "curves": curves}

    def size(self, numbers: Numbers) -> tuple[float, float]:
        """The usual one."""
        return SIZE

    def draw(self, figure: Any, numbers: Numbers, settings: PlotSettings) -> None:
        """What was logged, faint, and over it the same averaged over neighbours."""
        axis = figure.subplots()
        ends = []
        for at, (name, curve) in enumerate(numbers["curves"].items()):
            smooth = smoothed(curve["values"])
            few = len(smooth) < 3
            axis.plot(
                curve["steps"], curve["values"], color=COLOURS[at], linewidth=1, alpha=0.3, marker="o" if few else ""
            )
            axis.plot(curve["steps"], smooth, color=COLOURS[at], linewidth=2.3)
            ends.append((curve["steps"][-1], smooth[-1], shortened(name), COLOURS[at]))
        values = [value for curve in numbers["curves"].values() for value in curve["values"]]
        if min(values) >= 0:
            axis.set_ylim(bottom=0)
        axis.set_xlabel("step", fontsize=11.5)
        axis.set_ylabel(numbers["field"], fontsize=11.5)
        label_ends(axis, ends)
        plain(axis, settings.title or f"{numbers['field']} by training step")


def smoothed(values: Sequence[float]) -> list[float]:
    """Each value averaged with its neighbours, a twentieth of all on either side."""
    reach = len(values) // 20
    windows = (values[max(0, at - reach) : at + reach + 1] for at in range(len(values)))
    found = [sum(window) / len(window) for window in windows]
    if not found:
        raise DrtkError("nothing to draw: the log is empty")
    return found
