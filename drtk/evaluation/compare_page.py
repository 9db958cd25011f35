"""A comparison as one HTML page that needs nothing but itself: tables, a bar a query, and the queries that moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from drtk.evaluation.compare import Comparison, Move, Place, difference
from drtk.evaluation.compare_text import (
    contrast_grid,
    headline,
    leading,
    notes,
    placed,
    readable_grid,
    scope,
    standing_grid,
)
from drtk.evaluation.significance import EXACTLY
from drtk.evaluation.tables import Row, noted, shown

MARK = ("\x02", "\x03")  # around the words of a snippet that are in the question; escaping leaves them alone
_WIDTH, _HEIGHT = 960, 180  # of a picture, in pixels
_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --dim: #666; --line: #d8d8d8; --page: #fff; --up: #0072b2; --down: #d55e00;
  --mark: #fff0a8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --dim: #a0a0a0; --line: #3a3a3a; --page: #161616;
  --up: #56b4e9; --down: #e69f00; --mark: #5a4e00; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.dim { color: var(--dim); font-size: .9rem; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; } .text, .mark { text-align: left; } .mark { white-space: pre; } .marked { padding-right: 0; }
.all { font-size: .8rem; } .all th, .all td { padding-right: .55rem; }
svg { width: 100%; height: auto; } .up { fill: var(--up); } .down { fill: var(--down); } .axis { stroke: var(--dim); }
svg text { fill: var(--dim); font-size: 13px; }
details { border-bottom: 1px solid var(--line); padding: .5rem 0; } summary { cursor: pointer; }
li { margin: .4rem 0; } mark { background: var(--mark); color: inherit; } code { font-size: .9em; color: var(--dim); }
.gain { color: var(--up); } .loss { color: var(--down); }
"""


def comparison_page(comparison: Comparison, moved: Sequence[Move]) -> Iterator[str]:
    """Lines of the page; nothing in it is fetched from elsewhere, and it can be read without JavaScript."""
    title = escape(comparison.settings.title)
    yield "<!DOCTYPE html>"
    yield f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
    yield f'<h1>{title}</h1><p class="dim">{escape(scope(comparison))}</p>'
    digits = comparison.settings.digits
    yield from _table(*standing_grid(comparison), digits)
    yield "<h2>Differences</h2>"
    if len(comparison.pairs) == 1:
        yield f"<p>{escape(' minus '.join(reversed(comparison.pairs[0])))}</p>"
    yield from _table(*readable_grid(comparison), digits)
    yield from (f'<p class="dim">{escape(note)}</p>' for note in notes(comparison))
    measure = comparison.measures[0].name
    for first, second in comparison.pairs:
        yield f"<h2>{escape(second)} minus {escape(first)}, query by query</h2>"
        yield from _bars(np.sort(difference(comparison, first, second, measure))[::-1], measure, digits)
        of_pair = [move for move in moved if (move.baseline, move.system) == (first, second)]
        if of_pair:
            yield "<h2>Queries that moved most</h2>"
        for move in of_pair:
            yield from _details(move, digits)
    yield "<h2>All figures</h2>"
    yield from _table(*contrast_grid(comparison), digits, kind="all")
    yield "</body></html>"


def _table(header: Sequence[str], rows: Sequence[Row], digits: int, *, kind: str = "") -> Iterator[str]:
    columns = list(zip(*rows, strict=True))
    text = [not any(isinstance(cell.value, int | float) for cell in column) for column in columns]
    left = [is_text and (at == 0 or name in ("comparison", "system", "against")) for at, (is_text, name) in
            enumerate(zip(text, header, strict=True))]  # fmt: skip

    two = noted(rows)

    def line(tag: str, texts: Sequence[str], notes: Sequence[str]) -> str:
        found = ""
        for text, note, is_left, has_note in zip(texts, notes, left, two, strict=True):
            kinds = [kind for kind, given in (("text", is_left), ("marked", has_note)) if given]
            found += f'<{tag} class="{" ".join(kinds)}">{text}</{tag}>' if kinds else f"<{tag}>{text}</{tag}>"
            found += f'<{tag} class="mark">{note}</{tag}>' if has_note else ""
        return f"<tr>{found}</tr>"

    yield f'<div class="scroll"><table class="{kind}">' if kind else '<div class="scroll"><table>'
    yield line("th", [escape(name) for name in header], [""] * len(header))
    for row in rows:
        texts = [escape(shown(cell.value, digits)) for cell in row]
        texts = [f"<b>{text}</b>" if cell.best else text for text, cell in zip(texts, row, strict=True)]
        yield line("td", texts, [escape(cell.note) for cell in row])
    yield "</table></div>"


def _bars(differences: np.ndarray, measure: str, digits: int) -> Iterator[str]:
    """A bar a query, the largest gain to the left. differences: (queries,), falling"""
    count = len(differences)
    most = max(float(np.abs(differences).max()), EXACTLY)
    middle, scale = _HEIGHT / 2, (_HEIGHT / 2 - 16) / most
    width = _WIDTH / count
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="difference of {escape(measure)} by query">'
    for at, value in enumerate(differences.tolist()):
        if abs(value) <= EXACTLY:
            continue
        tall = abs(value) * scale
        top = middle - tall if value > 0 else middle
        kind = "up" if value > 0 else "down"
        yield (
            f'<rect class="{kind}" x="{at * width:.2f}" y="{top:.2f}" width="{max(width * 0.9, 0.4):.2f}" height="{tall:.2f}"/>'
        )
    yield f'<line class="axis" x1="0" x2="{_WIDTH}" y1="{middle}" y2="{middle}"/>'
    better, worse = int((differences > EXACTLY).sum()), int((differences < -EXACTLY).sum())
    yield f'<text x="{_WIDTH}" y="14" text-anchor="end">{escape(measure)}: up to {most:.{digits}f} either way</text>'
    yield (
        f'<text x="0" y="{_HEIGHT - 4}">{better:,} better, {count - better - worse:,} equal, {worse:,} worse of {count:,}'
        "</text></svg>"
    )


def _details(move: Move, digits: int) -> Iterator[str]:
    kind = "gain" if move.after > move.before else "loss"
    yield f"<details><summary>{escape(move.text or move.query_id)} <code>{escape(move.query_id)}</code><br>"
    yield f'<span class="{kind}">{escape(headline(move, digits))}</span></summary><ul>'
    for place in move.relevant:
        yield _item(f"relevant, {placed(place)}", place)
    for what, place in leading(move):
        yield _item(what, place)
    yield "</ul></details>"


def _item(what: str, place: Place) -> str:
    words = escape(place.snippet).replace(MARK[0], "<mark>").replace(MARK[1], "</mark>")
    title = f"<b>{escape(place.title)}</b> " if place.title else ""
    return f"<li>{escape(what)}: {title}<code>{escape(place.id)}</code><br>{words}</li>"
