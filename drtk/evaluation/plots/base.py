"""What every picture is: numbers from files, and a drawing of them."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import orjson

from drtk.errors import DrtkError, MissingDependency, UsageError, pip_install
from drtk.io.intake import Intake
from drtk.io.runs import NamedRun
from drtk.settings.plotting import PlotSettings

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
