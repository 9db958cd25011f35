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
ROWS = 3  # of words above the bars, and below
LONGEST = 24  # letters of an id
EXACTLY = 1e-12
# inches: what stands around the axes to the side and in height, a row of words, a letter of an id, between two lines
AROUND, ROW, LETTER, APART = (0.9, 0.8), 0.185, 0.078, 0.05


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
        """Bars, largest gain to the left; the mean as a line; the ends named. Words have bands of their own above and below."""
        from matplotlib.ticker import MaxNLocator

        axis = figure.subplots()
        values, first, second = numbers["differences"], *map(shortened, numbers["runs"])
        count = len(values)
        gains = [max(value, 0.0) for value in values]
        losses = [min(value, 0.0) for value in values]
        axis.bar(range(count), gains, width=1.0 if count > 60 else 0.85, color=GOOD)
        axis.bar(range(count), losses, width=1.0 if count > 60 else 0.85, color=BAD)
        axis.axhline(0, color="#444444", linewidth=0.8)
        axis.axhline(numbers["mean"], color="#444444", linewidth=1.2, linestyle=(0, (5, 3)))
        width, height = (
            float(inches) - around for inches, around in zip(figure.get_size_inches(), AROUND, strict=True)
        )
        row = min(ROW / max(height, ROW), 0.3 / ROWS)
        most = max(map(abs, values))
        most = most if most > EXACTLY else 1.0
        top = most / (1 - 2 * row * (ROWS + 0.5))
        axis.set_ylim(-top, top)
        axis.set_yticks(
            [
                tick
                for tick in MaxNLocator(_ticks(height * most / top)).tick_values(-most, most)
                if abs(tick) <= most * 1.001
            ]
        )
        axis.set_xlim(-0.7, count - 0.3)
        axis.set_xlabel(f"{count:,} {'query' if count == 1 else 'queries'}, by difference", fontsize=11.5)
        gap = "\n" if len(first) + len(second) > 30 else " "
        axis.set_ylabel(f"{numbers['measure']}: {first}{gap}minus {second}", fontsize=11.5)
        text = {"transform": axis.transAxes, "fontsize": 11, "va": "center"}
        for at, (said, look) in enumerate(
            (
                (f"{first} better: {numbers['better']:,}", {"color": GOOD, "fontweight": "bold"}),
                (f"equal: {numbers['equal']:,}", {"color": "#444444", "fontweight": "bold"}),
                (f"mean {numbers['mean']:+z.4f} (dashed)", {"color": "#444444"}),
            )
        ):
            axis.text(0.99, 1 - row * (at + 0.5), said, ha="right", **look, **text)
        axis.text(0.01, row * 0.5, f"{second} better: {numbers['worse']:,}", color=BAD, fontweight="bold", **text)
        plain(axis, settings.title or f"{first}{gap}against {second}, query by query")
        letters = int(width / count / LETTER) - 1
        if count <= 2 * NAMED or all(len(query) <= letters for query in numbers["queries"]):
            axis.set_xticks(range(count), [_short(id, max(letters, 5)) for id in numbers["queries"]], fontsize=9)
            axis.tick_params(axis="x", labelsize=9, length=0)
        else:
            axis.set_xticks([])
            most_letters = max(5, int(0.35 * width / LETTER))
            _name_ends(axis, numbers, letters=most_letters, row=2 * top * row, apart=APART * count / max(width, APART))


def _ticks(inches: float) -> int:
    """How many steps between ticks there is room for."""
    return min(8, max(2, int(inches / 0.3)))


def _name_ends(axis: Any, numbers: Numbers, *, letters: int, row: float, apart: float) -> None:
    """Ids of the largest gains above the bars, of the largest losses below them, each in a row of its own with a line to its bar.

    The outermost bar has the outermost row, so that no line goes through an id. row: height of a row; apart: between two
    lines, where bars are narrower.
    """
    values, queries, count = numbers["differences"], numbers["queries"], len(numbers["queries"])
    edge = axis.get_ylim()[1]
    for at in range(NAMED):
        for bar, sign, colour, side in ((at, 1, GOOD, "left"), (count - 1 - at, -1, BAD, "right")):
            if sign * values[bar] <= EXACTLY:
                continue
            place = sign * max(at, at * apart) + (0 if sign > 0 else count - 1), sign * (edge - row * (at + 0.5))
            axis.plot((bar, place[0]), (values[bar], place[1]), color=colour, linewidth=0.9, solid_capstyle="butt")
            axis.annotate(
                _short(queries[bar], min(letters, LONGEST)),
                place,
                xytext=(3 * sign, 0),
                textcoords="offset points",
                color=colour,
                ha=side,
                va="center",
                fontsize=9,
            )


def _short(id: str, most: int) -> str:
    """An id that fits; its end stays, which is what often tells it from others."""
    if len(id) <= most:
        return id
    end = most // 2
    return f"{id[: most - 1 - end]}…{id[len(id) - end :]}"
