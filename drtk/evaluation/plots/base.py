"""Base class, style and judgements of plots."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import orjson

from drtk.data.ids import source_of
from drtk.data.runs import NamedRun
from drtk.data.trec import Judgements
from drtk.errors import DrtkError, MissingDependency, UsageError, pip_install
from drtk.evaluation.config import PlotSettings
from drtk.evaluation.evaluate import View
from drtk.evaluation.judged_runs import judgements_from, retrieved_by, tell_missing
from drtk.runtime.inputs import Intake

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
MARKERS = "osD^vPX*"
GOOD, BAD, GREY = "#0072b2", "#d55e00", "#8a8a8a"
SIZE = (7.2, 4.5)  # inches: 864 pixels wide, as a page shows it
MOST = len(COLOURS)  # lines that can be told apart


def plain(axis: Any, title: str = "", *, grid: str = "y") -> None:
    """An axis with no more than it needs."""
    if title:
        axis.set_title(title, fontsize=13, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    if grid:
        axis.grid(axis=grid, color="#e2e2e2", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=10.5)


def label_ends(axis: Any, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Names beside the ends of lines, moved apart where they would overlap. ends: x, y, name, colour"""
    low, high = axis.get_ylim()
    least = (high - low) * 0.055
    placed: list[float] = []
    for _, y, _, _ in sorted(ends, key=lambda end: end[1]):
        placed.append(max(y, placed[-1] + least) if placed else y)
    over = max(0.0, placed[-1] - high) if placed else 0.0
    for (x, _, name, colour), place in zip(sorted(ends, key=lambda end: end[1]), placed, strict=True):
        axis.annotate(
            name,
            (x, place - over),
            xytext=(7, 0),
            textcoords="offset points",
            color=colour,
            fontsize=11,
            fontweight="bold",
            va="center",
            annotation_clip=False,
        )


def shortened(name: str, most: int = 28) -> str:
    """A name that fits beside a line."""
    return name if len(name) <= most else name[: most - 1] + "…"


FORMATS = ("png", "svg", "pdf", "json")
Numbers = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """What a picture is made from. `encoder` gives the vectors of a model: texts -> (n, d)."""

    inputs: Sequence[NamedRun]
    qrels: str | None
    pairs: str | None
    settings: PlotSettings
    intake: Intake
    encoder: Callable[[str], Callable[[list[str]], Any]]

    def need_qrels(self) -> str:
        """The judgements. Raises UsageError where there are none."""
        if self.qrels is None:
            raise UsageError("this picture needs judgements: --qrels FILE")
        return self.qrels

    def need_inputs(self, least: int, most: int) -> None:
        """Raises UsageError for fewer or more inputs than can be drawn."""
        count = len(self.inputs)
        if not least <= count <= most:
            wanted = f"{least}" if least == most else f"{least} to {most}"
            raise UsageError(f"this picture is of {wanted} inputs; there {'is' if count == 1 else 'are'} {count}")


class Picture(Protocol):
    """takes: the options of drtk plot that mean something to it."""

    takes: ClassVar[frozenset[str]]

    def numbers(self, request: Request) -> Numbers:
        """What is drawn, as JSON holds it."""

    def size(self, numbers: Numbers) -> tuple[float, float]:
        """Inches, where the user names none."""

    def draw(self, figure: Any, numbers: Numbers, settings: PlotSettings) -> None:
        """Draw the numbers."""


def rendered(picture: Picture, numbers: Numbers, settings: PlotSettings, format: str) -> bytes:
    """A picture in `format`, or its numbers as JSON. The same numbers give the same bytes.

    Raises MissingDependency where matplotlib is not installed.
    """
    if format == "json":
        return orjson.dumps(numbers, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependency("matplotlib", "drtk plot", pip_install("matplotlib")) from error
    width, height = picture.size(numbers)
    figure = Figure(figsize=(settings.width or width, settings.height or height), dpi=120, layout="constrained")
    target = io.BytesIO()
    # Letters stay letters in an SVG, and neither its ids nor its date change from one run to the next.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "drtk", "font.size": 11}):
        picture.draw(figure, numbers, settings)
        facts = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(format, {})
        try:
            figure.savefig(target, format=format, metadata=facts)
        except ValueError as error:  # a picture of a size that nothing fits into
            raise DrtkError(f"the picture cannot be drawn: {error}") from error
    return target.getvalue()


def judgements_of(request: Request) -> Judgements:
    """The judgements of a picture. Raises UsageError without --qrels."""
    return judgements_from(request.need_qrels(), request.intake)


def rankings_of(run: NamedRun, judgements: Judgements, request: Request) -> dict[str, list[str]]:
    """The rankings of judged queries; how many of them the run lacks is said."""
    found = retrieved_by(run, judgements, view_of(request), request.intake).rankings
    tell_missing(run.name, len(found), len(judgements), retrieved_only=False)
    return found


def view_of(request: Request) -> View:
    """How the settings want rankings to be looked at."""
    settings = request.settings
    by = source_of if settings.by == "source" else None
    return View(by=by, drop_same_id=bool(settings.drop_same_id), depth=settings.depth)


def rel_of(request: Request) -> int:
    """The grade from which on a document is relevant."""
    return 1 if request.settings.rel is None else request.settings.rel
