"""Render self-contained HTML pages: tables, charts and collapsible lists. The markup is in page.html; text is escaped."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from drtk.runtime.tables import Row, find_note_columns, find_text_columns, format_value

HIGHLIGHT_MARKS = ("\x02", "\x03")  # put around the words of a snippet that `render_passage_item` highlights
HISTOGRAM_SIZE = (460, 190)  # width and height in pixels
_DIFFERENCE_BARS_SIZE = (720, 220)
_LEFT, _RIGHT, _ABOVE, _BELOW = 46, 16, 26, 24  # margins of a chart


@cache
def _load_macros() -> Any:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    return environment.get_template("page.html").module


def render_page(title: str, parts: Iterable[Markup], *, subtitle: str = "") -> Iterator[str]:
    """Yield the lines of a page. The page loads no other file and needs no JavaScript.

    parts: the rendered elements of the page, such as headings and tables
    """
    yield from _load_macros().head(title, subtitle).split("\n")
    for part in parts:
        yield from part.split("\n")
    yield "</body></html>"


def render_heading(text: str) -> Markup:
    """Render a section heading."""
    return Markup("<h2>{}</h2>").format(text)


def render_paragraph(text: str, *, kind: str = "") -> Markup:
    """Render a paragraph.

    kind: a CSS class of page.html, such as dim or words
    """
    return Markup('<p class="{}">{}</p>').format(kind, text) if kind else Markup("<p>{}</p>").format(text)


def render_table(
    header: Sequence[str],
    rows: Sequence[Row],
    *,
    digits: int = 4,
    left_columns: Collection[str] = (),
    small: bool = False,
) -> Markup:
    """Render a table. Columns are right-aligned; columns of text are left-aligned if they are first or named in `left_columns`.

    header: names of the columns; [] for a table without a header
    digits: number of decimals of floats; small: use a small font
    """
    names = header or [""] * len(rows[0])
    is_left = [is_text and (at == 0 or names[at] in left_columns) for at, is_text in enumerate(find_text_columns(rows))]
    lines = [[(use_minus_sign(format_value(cell.value, digits)), cell.note, cell.best) for cell in row] for row in rows]
    return Markup(
        _load_macros().table([(name, "", False) for name in header], lines, is_left, find_note_columns(rows), small)
    )


def use_minus_sign(text: str) -> str:
    """Replace the hyphen of each negative number by a minus sign."""
    return re.sub(r"(?<!\S)-(?=\d|inf\b)", "\N{MINUS SIGN}", text)


def render_difference_bars(differences: Sequence[float], *, name: str, zero: float = 0.0) -> Markup:
    """Render a bar chart of differences, one per query, in the given order, with a y axis that is symmetric about 0.

    name: name of the measure
    zero: largest absolute difference that counts as equal
    """
    width, height = _DIFFERENCE_BARS_SIZE
    largest = max(max(map(abs, differences)), zero or 1e-12)
    middle, step = height / 2, (width - _LEFT) / len(differences)
    scale = (height / 2 - _BELOW) / largest
    bars = [
        {
            "kind": "up" if value > 0 else "down",
            "x": f"{_LEFT + at * step:.2f}",
            "y": f"{middle - max(value, 0) * scale:.2f}",
            "width": f"{max(step * 0.9, 0.4):.2f}",
            "height": f"{abs(value) * scale:.2f}",
        }
        for at, value in enumerate(differences)
        if abs(value) > zero
    ]
    ticks = [(round(middle - value * scale, 2), f"{value:+.4g}".replace("-", "\N{MINUS SIGN}") if value else "0")
             for value in compute_ticks(-largest, largest, 9)]  # fmt: skip
    better, worse = sum(value > zero for value in differences), sum(value < -zero for value in differences)
    count = len(differences)
    return Markup(
        _load_macros().difference_bars(
            width,
            height,
            _LEFT,
            bars,
            middle,
            ticks,
            f"difference in {name} by query",
            f"{better:,} better, {count - better - worse:,} equal, {worse:,} worse of {count:,}",
        )
    )


def render_histogram(shares: Sequence[float], edges: Sequence[float], *, label: str, caption: str) -> Markup:
    """Render a histogram with percentages on the y axis and round numbers on both axes.

    shares: share of each bin, (bins,); edges: (bins + 1,), equally spaced
    label: label of the y axis; caption: text below the figure
    """
    width, height = HISTOGRAM_SIZE
    inner, tall, bottom = width - _LEFT - _RIGHT, height - _ABOVE - _BELOW, height - _BELOW
    up = compute_ticks(0.0, max(shares), 3, cover_high=True)
    are_integer_bins = all((edge - 0.5).is_integer() for edge in edges)  # bins around whole numbers
    along = compute_ticks(edges[0], edges[-1], 8, min_step=1.0 if are_integer_bins else 0.0)
    step = inner / len(shares)
    bars = [
        {
            "x": f"{_LEFT + (at + 0.05) * step:.2f}",
            "y": f"{bottom - tall * share / up[-1]:.2f}",
            "width": f"{step * 0.9:.2f}",
            "height": f"{tall * share / up[-1]:.2f}",
        }
        for at, share in enumerate(shares)
        if share
    ]
    rows = [(round(bottom - tall * share / up[-1], 2), f"{100 * share:.4g}%") for share in up]
    span = edges[-1] - edges[0]
    columns = [(round(_LEFT + inner * (value - edges[0]) / span, 2), f"{value:z.6g}") for value in along]
    return Markup(
        _load_macros().histogram(width, height, _LEFT, width - _RIGHT, bottom, bars, rows, columns, label, caption)
    )


def compute_ticks(
    low: float, high: float, count: int, *, min_step: float = 0.0, cover_high: bool = False
) -> list[float]:
    """Return up to about `count` axis ticks in [low, high], at multiples of 1, 2 or 5 times a power of ten.

    min_step: smallest distance between ticks; cover_high: whether the last tick is at least `high`
    """
    rough = max((high - low) / count, min_step, 1e-9)
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = ceil(low / step - 1e-9), ceil(high / step - 1e-9) if cover_high else floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def render_figures(figures: Iterable[Markup]) -> Markup:
    """Render figures side by side; they wrap in a narrow browser window."""
    return Markup('<div class="pictures">{}</div>').format(Markup("").join(figures))


def render_details(summary: str, items: Iterable[str]) -> Markup:
    """Render a collapsible list under a summary line."""
    return Markup(_load_macros().details(summary, list(items)))


def render_passage_item(label: str, id: str, title: str, snippet: str) -> Markup:
    """Render an item for `render_details`: label, title and id of a passage, and a snippet with highlighted words.

    label: what the passage is, for example its rank
    snippet: text with HIGHLIGHT_MARKS around the words to highlight
    """
    before, *matches = snippet.split(HIGHLIGHT_MARKS[0])
    words = [(before, False)]
    for match, _, after in (piece.partition(HIGHLIGHT_MARKS[1]) for piece in matches):
        words += [(match, True), (after, False)]
    return Markup(_load_macros().passage(label, id, title, words))


def render_shaded_words(words: Iterable[tuple[str, float]], largest: float) -> Markup:
    """Render a text with its words shaded by weight, and the weights as tooltips.

    words: (string, weight) segments; text between words has weight 0. largest: weight with the darkest shade
    """
    return Markup(_load_macros().shaded([(text, weight / largest, f"{weight:.4g}") for text, weight in words]))


def render_bar_table(rows: Iterable[tuple[str, str, float]]) -> Markup:
    """Render a table with a bar in each row.

    rows: (name, printed value, length of the bar from 0 to 1)
    """
    return Markup(_load_macros().bars(list(rows)))
