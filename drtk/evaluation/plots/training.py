"""Training logs by step: a line a log; losses, what was measured on held-out passages, and probes in panels of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, ClassVar

from drtk.errors import DrtkError
from drtk.evaluation.config import COMMON, PlotSettings
from drtk.evaluation.curves import Curve, read_curves, read_log
from drtk.evaluation.plots.base import COLOURS, GREY, MOST, SIZE, Numbers, Request, label_ends, plain, shortened

HELD_OUT, GAIN = "held_out_", "gain_"
_OF_HELD_OUT = (GAIN, "uniformity", "alignment")  # figures of the same passages, beside their losses
_DASHED = {"linestyle": "--", "marker": "o", "markersize": 4, "linewidth": 1.4}
_FEW = 12  # entries of which each has a dot
_COLUMNS, _PANEL = 3, (4.6, 3.2)  # panels beside each other, and inches of one
_NO_TERMS = {"loss", "epoch", "learning_rate", "grad_norm", "waiting"}
_SHARES = ("_replaced", "_stop_words")


class TrainingCurves:
    """drtk plot training."""

    takes: ClassVar[frozenset[str]] = COMMON | {"field"}

    def numbers(self, request: Request) -> Numbers:
        """{"field", "curves": {log: {"steps", "values"}}}; of several fields {"panels": [as before, "held_out": as curves]}.

        Without --field: the loss; of logs that hold more than one term, or measurements on held-out passages, every term with
        its loss on those, each gain, and every other number that was measured.
        """
        request.need_inputs(1, MOST)
        fields = request.settings.field
        if fields is not None and len(fields) == 1:
            return {"field": fields[0], "curves": _curves(request, fields[0])}
        logs = {log.name: read_curves(log.source, intake=request.intake) for log in request.inputs}
        chosen = list(fields or ()) or worth_drawing(list(logs.values()))
        if chosen == ["loss"]:
            for log, curves in logs.items():
                if "loss" not in curves:
                    raise DrtkError(f"{log}: holds no loss; there are {', '.join(curves)}")
            return {"field": "loss", "curves": _found(logs, "loss")}
        panels = []
        for field in chosen:
            panel = {"field": field, "curves": _found(logs, field), "held_out": _found(logs, HELD_OUT + field)}
            if not panel["curves"] and not panel["held_out"]:
                there = dict.fromkeys(name for log in logs.values() for name in log)
                raise DrtkError(f"no log holds {field}; there are {', '.join(there)}")
            panels.append(panel)
        return {"panels": panels}

    def size(self, numbers: Numbers) -> tuple[float, float]:
        """The usual one for one panel; wider and higher with their number."""
        if "panels" not in numbers:
            return SIZE
        count = len(numbers["panels"])
        return _PANEL[0] * min(count, _COLUMNS), _PANEL[1] * ceil(count / _COLUMNS) + 0.6

    def draw(self, figure: Any, numbers: Numbers, settings: PlotSettings) -> None:
        """What was logged, faint, and over it the same averaged over neighbours; what is of held-out passages dashed."""
        if "panels" in numbers:
            _draw_panels(figure, numbers["panels"], settings)
            return
        axis = figure.subplots()
        ends = []
        for at, (name, curve) in enumerate(numbers["curves"].items()):
            smooth = _draw_curve(axis, curve, COLOURS[at], width=2.3)
            ends.append((curve["steps"][-1], smooth[-1], shortened(name), COLOURS[at]))
        if min(value for curve in numbers["curves"].values() for value in curve["values"]) >= 0:
            axis.set_ylim(bottom=0)
        steps_along(axis, max(step for step, *_ in ends))
        axis.set_xlabel("step", fontsize=11.5)
        axis.set_ylabel(numbers["field"], fontsize=11.5)
        label_ends(axis, ends)
        plain(axis, settings.title or f"{numbers['field']} by training step")


def worth_drawing(logs: Sequence[Mapping[str, Curve]]) -> list[str]:
    """The fields of logs that have a panel each where nobody says which: terms, then gains, then what else was measured."""
    names = list(dict.fromkeys(name for log in logs for name in log))
    beside_loss = {name for log in logs for name, curve in log.items() if "loss" in log and curve.beside(log["loss"])}
    terms = [name for name in names if name in beside_loss - _NO_TERMS and not name.endswith(_SHARES)]
    held = [name.removeprefix(HELD_OUT) for name in names if name.startswith(HELD_OUT)]
    gains = [name for name in names if name.startswith(GAIN)]
    if len(terms) < 2 and not held and not gains and "probe" not in names:
        return ["loss"]
    terms = list(dict.fromkeys([*terms, *held]))
    of_loss_alone = any("loss" in log and not log.keys() & {*terms} for log in logs)
    first = ["loss"] if len(terms) > 1 or of_loss_alone else []
    known = {*terms, *gains, *beside_loss, *_NO_TERMS}
    others = [name for name in names if name not in known and not name.startswith(HELD_OUT)]
    return [*first, *terms, *gains, *others]


def _curves(request: Request, field: str) -> dict[str, Any]:
    found = {}
    for log in request.inputs:
        steps, values = read_log(log.source, field, intake=request.intake)
        found[log.name] = {"steps": steps, "values": values}
    return found


def _found(logs: Mapping[str, Mapping[str, Curve]], field: str) -> dict[str, Any]:
    return {
        name: {"steps": log[field].steps, "values": log[field].values} for name, log in logs.items() if field in log
    }


def _draw_panels(figure: Any, panels: Sequence[Numbers], settings: PlotSettings) -> None:
    columns = min(len(panels), _COLUMNS)
    axes = figure.subplots(ceil(len(panels) / columns), columns, squeeze=False).ravel()
    names = list(dict.fromkeys(name for panel in panels for part in ("curves", "held_out") for name in panel[part]))
    colours = dict(zip(names, COLOURS, strict=False))
    lines: dict[str, Any] = {}
    held_out = False
    for axis, panel in zip(axes, panels, strict=False):
        dashed, solid = panel["held_out"], panel["curves"]
        if panel["field"].startswith(_OF_HELD_OUT):
            dashed, solid = solid, {}
        for name, curve in solid.items():
            _draw_curve(axis, curve, colours[name], width=1.9)
        for name, curve in dashed.items():
            axis.plot(curve["steps"], curve["values"], color=colours[name], **_DASHED)
        held_out |= bool(dashed)
        if panel["field"].startswith(GAIN):
            axis.axhline(0, color=GREY, linewidth=1)
        plain(axis, shortened(panel["field"]))
        steps_along(axis, max(curve["steps"][-1] for curve in [*solid.values(), *dashed.values()]))
        axis.set_xlabel("step", fontsize=10)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    for name in names:
        (lines[name],) = axes[0].plot([], [], color=colours[name], linewidth=2.2)
    if held_out:
        (lines["on held-out passages"],) = axes[0].plot([], [], color=GREY, **_DASHED)
    shown = [shortened(name) for name in lines]
    figure.legend(lines.values(), shown, loc="outside lower center", ncols=min(4, len(lines)), frameon=False)
    figure.suptitle(settings.title or "Training by step", fontsize=14, x=0.02, ha="left")


def _draw_curve(axis: Any, curve: Mapping[str, Any], colour: str, *, width: float) -> list[float]:
    smooth = smoothed(curve["values"])
    axis.plot(curve["steps"], curve["values"], color=colour, linewidth=1, alpha=0.3)
    axis.plot(
        curve["steps"], smooth, color=colour, linewidth=width, marker="o" if len(smooth) <= _FEW else "", markersize=4
    )
    return smooth


def steps_along(axis: Any, last: int) -> None:
    """From the start to the last step of all; ticks are whole steps."""
    from matplotlib.ticker import MaxNLocator

    room = 0.03 * max(last, 1)
    axis.set_xlim(-room, max(last, 1) + room)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10], integer=True))


def smoothed(values: Sequence[float]) -> list[float]:
    """Each value averaged with its neighbours, a twentieth of all on either side."""
    reach = len(values) // 20
    windows = (values[max(0, at - reach) : at + reach + 1] for at in range(len(values)))
    found = [sum(window) / len(window) for window in windows]
    if not found:
        raise DrtkError("nothing to draw: the log is empty")
    return found
