"""What one run gains over another, query by query."""

from __future__ import annotations

from typing import Any, ClassVar

from drtk.errors import UsageError
from drtk.evaluation.evaluate import Evaluator
from drtk.evaluation.measures import parse_measures
from drtk.evaluation.plots.base import Numbers, Request
from drtk.evaluation.plots.judged import judgements_of, rankings_of, rel_of
from drtk.evaluation.plots.style import BAD, GOOD, SIZE, plain, shortened
from drtk.settings.plotting import COMMON, RUNS, PlotSettings

NAMED = 3  # queries named at either end
EXACTLY = 1e-12


class Differences:
    """drtk plot differences."""

    takes: ClassVar[frozenset[str]] = COMMON | RUNS | {"measure"}

    def numbers(self, request: Request) -> Numbers:
        """{"measure", "runs": [first, second], "mean", "better", "equal", "worse", "queries", "differences"}, largest gain first.

        A difference is the first run's value minus the second's.
        """
        request.need_inputs(2, 2)
        measures = parse_measures(request.settings.measure or "nDCG@10", rel=rel_of(request))
        if len(measures) != 1 or measures[0].aggregate not in ("mean", "sum"):
            raise UsageError("--measure: one measure that every query has a number for")
        judgements = judgements_of(request)
        evaluator = Evaluator(judgements, measures)
        first, second = (evaluator(run.name, rankings_of(run, judgements, request)).per_query for run in request.inputs)
        name = measures[0].name
        found = {query: float(first[query][name]) - float(second[query][name]) for query in judgements}
        ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
        values = [value for _, value in ordered]
        better, worse = sum(value > EXACTLY for value in values), sum(value < -EXACTLY for value in values)
        return {
            "measure": name,
            "runs": [run.name for run in request.inputs],
            "mean": sum(values) / len(values),
            "better": better,
            "equal": len(values) - better - worse,
            "worse": worse,
            "queries": [query for query, _ in ordered],
            "differences": values,
        }

    def size(self, numbers: Numbers) -> tuple[float, float]:
        """The usual one."""
        return SIZE

    def draw(self, figure: Any, numbers: Numbers, settings: PlotSettings) -> None:
        """Bars, largest gain to the left; the mean as a line; the ends named."""
        axis = figure.subplots()
        values, first, second = numbers["differences"], *map(shortened, numbers["runs"])
        count = len(values)
        gains = [max(value, 0.0) for value in values]
        losses = [min(value, 0.0) for value in values]
        axis.bar(range(count), gains, width=1.0 if count > 60 else 0.85, color=GOOD)
        axis.bar(range(count), losses, width=1.0 if count > 60 else 0.85, color=BAD)
        axis.axhline(0, color="#444444", linewidth=0.8)
        axis.axhline(numbers["mean"], color="#444444", linewidth=1.2, linestyle=(0, (5, 3)))
        most = max(max(map(abs, values)), EXACTLY) * 1.15
        axis.set_ylim(-most, most)
        axis.set_xlim(-0.7, count - 0.3)
        axis.set_xticks([])
        axis.set_xlabel(f"{count:,} queries, by difference", fontsize=11.5)
        axis.set_ylabel(f"{numbers['measure']}: {first} minus {second}", fontsize=11.5)
        text = {"transform": axis.transAxes, "fontsize": 11.5, "fontweight": "bold"}
        axis.text(0.99, 0.95, f"{first} better: {numbers['better']:,}", color=GOOD, ha="right", va="top", **text)
        axis.text(0.99, 0.885, f"equal: {numbers['equal']:,}", color="#444444", ha="right", va="top", **text)
        axis.text(0.01, 0.05, f"{second} better: {numbers['worse']:,}", color=BAD, **text)
        axis.annotate(
            f"mean {numbers['mean']:+z.4f}",
            (count - 0.3, numbers["mean"]),
            xytext=(-4, 4),
            textcoords="offset points",
            ha="right",
            fontsize=10.5,
        )
        _name_ends(axis, numbers)
        plain(axis, settings.title or f"{first} against {second}, query by query")


def _name_ends(axis: Any, numbers: Numbers) -> None:
    """Ids beside the largest gains and losses, one below the other."""
    values, queries, count = numbers["differences"], numbers["queries"], len(numbers["queries"])
    few = count <= 2 * NAMED
    style = {"textcoords": "offset points", "fontsize": 9}
    for at in range(0 if few else NAMED):
        if values[at] > EXACTLY:
            text = shortened(queries[at], 18)
            axis.annotate(text, (at, values[0]), xytext=(14, 2 - 12 * at), color=GOOD, va="top", **style)
        back = count - 1 - at
        if values[back] < -EXACTLY:
            text = shortened(queries[back], 18)
            axis.annotate(text, (back, values[-1]), xytext=(-14, 12 * at - 2), color=BAD, ha="right", **style)
    if few:
        axis.set_xticks(range(count), [shortened(query, 12) for query in queries], fontsize=9)
