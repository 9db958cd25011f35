"""Base class, style and inputs of plots."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import orjson

from drtk.data.runs import NamedRun, parse_runs
from drtk.data.trec import Judgments
from drtk.errors import DrtkError, UsageError, convert_import_error
from drtk.evaluation.config import PlotSettings
from drtk.evaluation.evaluate import RankingBuilder
from drtk.evaluation.judged_runs import log_missing_queries, read_judgments, read_rankings
from drtk.evaluation.plots import PLOTS
from drtk.records import parse_document_id
from drtk.runtime.inputs import InputTracker

# The colors of Okabe and Ito, which color-blind readers can distinguish.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
MARKERS = "osD^vPX*"
GOOD, BAD, GRAY = "#0072b2", "#d55e00", "#8a8a8a"
SIZE = (7.2, 4.5)  # inches: 864 pixels wide
MAX_LINES = len(COLORS)
FORMATS = ("png", "svg", "pdf", "json")
PlotData = dict[str, Any]  # written by `format` json
HistogramPanel = tuple[str, Sequence[float], tuple[Sequence[int], Sequence[int]]]  # title, edges, two lists of counts


@dataclass(frozen=True)
class PlotInputs:
    """Files and settings of a plot. kind: name of the plot"""

    kind: str
    inputs: Sequence[NamedRun]
    qrels: str | None
    pairs: str | None
    settings: PlotSettings
    tracker: InputTracker
    device: str = "auto"

    @property
    def rel(self) -> int:
        """Minimum relevance grade."""
        return 1 if self.settings.rel is None else self.settings.rel

    @property
    def builder(self) -> RankingBuilder:
        """Builder of rankings with the settings of the plot."""
        by = parse_document_id if self.settings.by == "source" else None
        return RankingBuilder(by=by, drop_same_id=bool(self.settings.drop_same_id), depth=self.settings.depth)

    def check_num_inputs(self, minimum: int, maximum: int) -> None:
        """Raise UsageError for fewer than `minimum` or more than `maximum` inputs."""
        if not minimum <= len(self.inputs) <= maximum:
            expected = f"{minimum}" if minimum == maximum else f"{minimum} to {maximum}"
            raise UsageError(f"drtk plot {self.kind} requires {expected} inputs, got {len(self.inputs)}")

    def read_judgments(self) -> Judgments:
        """Read the judgments. Raises UsageError without `qrels`."""
        if self.qrels is None:
            raise UsageError(f"drtk plot {self.kind} requires judgments (`qrels`)")
        return read_judgments(self.qrels, self.tracker)

    def read_rankings(self, run: NamedRun, judgments: Judgments) -> dict[str, list[str]]:
        """Read the rankings of judged queries; log the number of judged queries that the run lacks."""
        rankings = read_rankings(run, judgments, self.builder, self.tracker).ids
        log_missing_queries(run.name, len(rankings), len(judgments), retrieved_only=False)
        return rankings


class Plot:
    """Base class of plots. option_names: settings and files of drtk plot that have an effect on the plot"""

    option_names: ClassVar[frozenset[str]]

    def compute_data(self, inputs: PlotInputs) -> PlotData:
        """Return the data to draw."""
        raise NotImplementedError

    def choose_size(self, data: PlotData) -> tuple[float, float]:
        """Return the default width and height in inches."""
        return SIZE

    def draw(self, figure: Any, data: PlotData, settings: PlotSettings) -> None:
        """Draw the data on a matplotlib figure."""
        raise NotImplementedError


def draw_plot(
    kind: str,
    inputs: Sequence[str],
    settings: PlotSettings,
    format: str,
    tracker: InputTracker | None = None,
    *,
    qrels: str | None = None,
    pairs: str | None = None,
    device: str = "auto",
) -> bytes:
    """Draw a plot of inputs given as [NAME=]INPUT; return the content of a file in `format`, one of `FORMATS`.

    Raises UsageError for a setting or file that has no effect on the plot, MissingDependency without matplotlib unless
    `format` is json.
    """
    plot = PLOTS.load(kind)()
    given = {item.name: getattr(settings, item.name) for item in fields(settings)} | {"qrels": qrels, "pairs": pairs}
    for name, value in given.items():
        if value is not None and name not in plot.option_names:
            raise UsageError(f"`{name}` has no effect on drtk plot {kind}; omit it")
    named = parse_runs(inputs, are_logs=kind == "training")
    data = plot.compute_data(PlotInputs(kind, named, qrels, pairs, settings, tracker or InputTracker(), device))
    if format == "json":
        return orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    width, height = plot.choose_size(data)
    size = settings.width or width, settings.height or height
    return render_figure(lambda figure: plot.draw(figure, data, settings), size, format, "drtk plot")


def render_figure(draw: Callable[[Any], None], size: tuple[float, float], format: str, feature: str) -> bytes:
    """Return a figure of `size` inches, drawn by `draw`, as deterministic bytes.

    feature: name of the plot, part of the message of MissingDependency
    Raises MissingDependency without matplotlib, DrtkError if the size is too small for the content.
    """
    with convert_import_error("matplotlib", feature):
        import matplotlib
        from matplotlib.figure import Figure
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    target = io.BytesIO()
    # Text stays text in an SVG, and neither its ids nor its date change from one run to the next.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "drtk", "font.size": 11}):
        draw(figure)
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(format, {})
        try:
            figure.savefig(target, format=format, metadata=metadata)
        except ValueError as error:  # too small for its content
            raise DrtkError(f"the plot cannot be drawn: {error}; increase `width` and `height`") from error
    return target.getvalue()


def style_axis(axis: Any, title: str, *, grid: str = "y") -> None:
    """Set the title, hide the top and right spines, and draw grid lines for `grid` (x, y or both)."""
    axis.set_title(title, fontsize=12.5, loc="left", wrap=True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis=grid, color="#e2e2e2", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=10.5)


def choose_point_style(index: int) -> dict[str, Any]:
    """Return the color and marker of the run or model with this index."""
    return {"color": COLORS[index % len(COLORS)], "marker": MARKERS[index % len(MARKERS)], "markersize": 5}


def draw_histograms(
    figure: Any, area: Any, panels: Sequence[HistogramPanel], labels: Sequence[str], x_label: str, heading: str | None
) -> None:
    """Draw a panel per input with two overlaid histograms, each normalized to a sum of 1; empty histograms are omitted.

    area: subfigure of `figure` for the panels
    labels: names of the two histograms; the second is of relevant documents or matching pairs
    """
    axes = area.subplots(len(panels), 1, squeeze=False, sharex=len({tuple(edges) for _, edges, _ in panels}) == 1)[:, 0]
    for axis, (title, edges, both) in zip(axes, panels, strict=True):
        for label, counts, color in zip(labels, both, (BAD, GOOD), strict=True):
            if any(counts):
                shares = np.array(counts) / sum(counts)
                axis.stairs(shares, edges, fill=True, alpha=0.45, color=color)
                axis.stairs(shares, edges, color=color, linewidth=1.6, label=label)
        axis.set_ylabel("share", fontsize=11)
        style_axis(axis, title)
    axes[-1].set_xlabel(x_label, fontsize=11.5)
    add_legend(figure, *axes[0].get_legend_handles_labels())
    if heading:
        figure.suptitle(heading, fontsize=14, fontweight="bold")


def add_legend(figure: Any, handles: Sequence[Any], labels: Sequence[str], *, columns: int = 4) -> None:
    """Add one legend below all axes, with as many columns as fit the width of the figure, at most `columns`."""
    columns = min(columns, len(labels), max(1, int(figure.get_size_inches()[0] / (0.11 * max(map(len, labels)) + 0.7))))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def shorten(name: str, limit: int = 28) -> str:
    """Shorten a name or id to at most `limit` characters, cut in the middle."""
    start = (limit - 1) // 2
    return name if len(name) <= limit else f"{name[:start]}…{name[len(name) - limit + start + 1 :]}"
