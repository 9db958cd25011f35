"""Plots of training logs by step: one line per log, one panel per field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, ClassVar

import numpy as np

from drtk.errors import DrtkError
from drtk.evaluation.config import PLOT_OPTIONS, PlotSettings
from drtk.evaluation.curves import Curve, read_curves
from drtk.evaluation.plots import base
from drtk.evaluation.plots.base import Plot, PlotData, PlotInputs

HELD_OUT, GAIN = "held_out_", "gain_"
_DASHED = {"linestyle": "--", "marker": "o", "markersize": 4, "linewidth": 1.4}
_MAX_DOTS = 12  # with up to this many entries, each has a dot
_COLUMNS, _PANEL = 3, (4.6, 3.2)  # panels per row, and width and height of one in inches
_NOT_TERMS = {"loss", "epoch", "learning_rate", "grad_norm", "waiting"}
_SHARE_SUFFIXES = ("_replaced", "_stop_words")


class TrainingCurves(Plot):
    """Fields of training logs by step (drtk plot training)."""

    option_names: ClassVar[frozenset[str]] = PLOT_OPTIONS | {"field"}

    def compute_data(self, inputs: PlotInputs) -> PlotData:
        """Return {"field": name, "curves": {log: {"steps", "values"}}} for one field, or {"panels": list} for several.

        panels: a dict per field, as for one field, and with "held_out": its curves on held-out passages
        Without the setting `field`, the fields are those of `choose_fields`.
        """
        inputs.check_num_inputs(1, base.MAX_LINES)
        fields = list(inputs.settings.field or ())
        required = fields[0] if len(fields) == 1 else None
        logs = {log.name: read_curves(log.source, field=required, tracker=inputs.tracker) for log in inputs.inputs}
        fields = fields or choose_fields(list(logs.values()))
        if required is not None or fields == ["loss"]:
            for name, log in logs.items():
                if fields[0] not in log:
                    raise DrtkError(f"{name}: no field {fields[0]}; choose from {', '.join(log)}")
            return {"field": fields[0], "curves": _select_curves(logs, fields[0])}
        panels = []
        for field in fields:
            panel = {
                "field": field,
                "curves": _select_curves(logs, field),
                "held_out": _select_curves(logs, HELD_OUT + field),
            }
            if not panel["curves"] and not panel["held_out"]:
                names = dict.fromkeys(name for log in logs.values() for name in log)
                raise DrtkError(f"no log has the field {field}; choose from {', '.join(names)}")
            panels.append(panel)
        return {"panels": panels}

    def choose_size(self, data: PlotData) -> tuple[float, float]:
        if "panels" not in data:
            return super().choose_size(data)
        count = len(data["panels"])
        return _PANEL[0] * min(count, _COLUMNS), _PANEL[1] * ceil(count / _COLUMNS) + 0.6

    def draw(self, figure: Any, data: PlotData, settings: PlotSettings) -> None:
        """Draw a panel per field; measurements on held-out passages are dashed."""
        panels = data.get("panels") or [data | {"held_out": {}}]
        columns = min(len(panels), _COLUMNS)
        axes = figure.subplots(ceil(len(panels) / columns), columns, squeeze=False).ravel()
        names = list(dict.fromkeys(name for panel in panels for part in ("curves", "held_out") for name in panel[part]))
        colors = dict(zip(names, base.COLORS, strict=False))
        has_dashed = False
        for axis, panel in zip(axes, panels, strict=False):
            dashed, solid = panel["held_out"], panel["curves"]
            if panel["field"].startswith(GAIN):
                dashed, solid = solid, {}
            for name, curve in solid.items():
                draw_smoothed_curve(axis, curve["steps"], curve["values"], colors[name])
            for name, curve in dashed.items():
                axis.plot(curve["steps"], curve["values"], color=colors[name], **_DASHED)
            has_dashed |= bool(dashed)
            if panel["field"].startswith(GAIN):
                axis.axhline(0, color=base.GRAY, linewidth=1)
            base.style_axis(axis, base.shorten(panel["field"]))
            style_step_axis(axis, max(curve["steps"][-1] for curve in [*solid.values(), *dashed.values()]))
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        lines = {name: axes[0].plot([], [], color=colors[name], linewidth=2.2)[0] for name in names}
        if has_dashed:
            (lines["on held-out passages"],) = axes[0].plot([], [], color=base.GRAY, **_DASHED)
        base.add_legend(figure, list(lines.values()), list(map(base.shorten, lines)))
        figure.suptitle(settings.heading or "Training by step", fontsize=14, x=0.02, ha="left")


def choose_fields(logs: Sequence[Mapping[str, Curve]]) -> list[str]:
    """Return the fields that get a panel by default: loss terms, then gains, then other measurements.

    The total loss is first if there are several terms, or a log without terms. It is the only field if the logs have
    fewer than two terms, and no measurement on held-out passages, gain or probe.
    gain: loss of a decoder with the text vector of another example, minus its loss with the correct one (`gain_`…)
    """
    names = list(dict.fromkeys(name for log in logs for name in log))
    with_loss = {
        name for log in logs for name, curve in log.items() if "loss" in log and curve.steps == log["loss"].steps
    }
    terms = [name for name in names if name in with_loss - _NOT_TERMS and not name.endswith(_SHARE_SUFFIXES)]
    held_out = [name.removeprefix(HELD_OUT) for name in names if name.startswith(HELD_OUT)]
    gains = [name for name in names if name.startswith(GAIN)]
    if len(terms) < 2 and not held_out and not gains and "probe" not in names:
        return ["loss"]
    terms = list(dict.fromkeys([*terms, *held_out]))
    has_loss_only = any("loss" in log and not log.keys() & {*terms} for log in logs)
    first = ["loss"] if len(terms) > 1 or has_loss_only else []
    assigned = {*terms, *gains, *with_loss, *_NOT_TERMS}
    others = [name for name in names if name not in assigned and not name.startswith(HELD_OUT)]
    return [*first, *terms, *gains, *others]


def _select_curves(logs: Mapping[str, Mapping[str, Curve]], field: str) -> PlotData:
    return {
        name: {"steps": log[field].steps, "values": log[field].values} for name, log in logs.items() if field in log
    }


def draw_smoothed_curve(axis: Any, steps: Sequence[int], values: Sequence[float], color: str) -> None:
    """Draw values as a faint line, and their moving average with a band of one standard deviation."""
    averages, deviations = smooth(values)
    axis.plot(steps, values, color=color, linewidth=0.8, alpha=0.35)
    axis.fill_between(steps, averages - deviations, averages + deviations, color=color, alpha=0.15, linewidth=0)
    axis.plot(steps, averages, color=color, linewidth=2, marker="o" if len(averages) <= _MAX_DOTS else "", markersize=4)


def style_step_axis(axis: Any, last_step: int) -> None:
    """Set the range and integer ticks of an axis of steps, from 0 to `last_step`."""
    from matplotlib.ticker import MaxNLocator

    margin = 0.03 * max(last_step, 1)
    axis.set_xlabel("step", fontsize=11)
    axis.set_xlim(-margin, max(last_step, 1) + margin)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10], integer=True))


def smooth(values: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return the centered moving average and standard deviation of `values`, (len(values),) each.

    The half-width of the window is 5% of the values, and at least 1 for 8 or more values.
    """
    reach = len(values) // 20 or int(len(values) >= 8)
    windows = [values[max(0, at - reach) : at + reach + 1] for at in range(len(values))]
    return np.array([np.mean(window) for window in windows]), np.array([np.std(window) for window in windows])
