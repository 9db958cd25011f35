"""The report of a mining run as an HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from math import ceil, floor, inf, log10

from drtk.mining.audit import SUSPICIONS, Row
from drtk.mining.report import FILTERS, MEASURES, Figures, Spread, Table, tables

BINS = 40
WIDTH, HEIGHT = 460, 190  # of a picture, in pixels
_LEFT, _RIGHT, _ABOVE, _BELOW = 46, 16, 26, 24  # around the bars


def histogram(caption: str, spread: Spread) -> Iterator[str]:
    """Lines of a figure: bars, ticks at round numbers, and a caption with the least, the most and the mean."""
    shares, edges = spread.histogram(BINS)
    whole = all((edge - 0.5).is_integer() for edge in edges)  # bins around whole numbers
    up = ticks(0.0, max(shares), 3, beyond=True)
    wide, tall = WIDTH - _LEFT - _RIGHT, HEIGHT - _ABOVE - _BELOW
    bottom = _ABOVE + tall

    def across(value: float) -> float:
        return _LEFT + wide * (value - edges[0]) / (edges[-1] - edges[0])

    yield f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(caption)}">'
    yield f'<text x="0" y="12">share of {spread.count:,} negatives</text>'
    for share in up:
        y = bottom - tall * share / up[-1]
        yield f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.2f}" y2="{y:.2f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.2f}" text-anchor="end">{100 * share:.4g}%</text>'
    width = wide / len(shares)
    for at, share in enumerate(shares):
        if share:
            height = tall * share / up[-1]
            yield (
                f'<rect x="{_LEFT + (at + 0.05) * width:.2f}" y="{bottom - height:.2f}" '
                f'width="{width * 0.9:.2f}" height="{height:.2f}"/>'
            )
    for value in ticks(edges[0], edges[-1], 8, least=1.0 if whole else 0.0):
        x = across(value)
        yield f'<line x1="{x:.2f}" x2="{x:.2f}" y1="{bottom}" y2="{bottom + 5}"/>'
        yield f'<text x="{x:.2f}" y="{bottom + 18}" text-anchor="middle">{value:z.6g}</text>'
    told = f"{caption}; {spread.least:z.4g} to {spread.most:z.4g}, mean {spread.mean:z.4g}"
    yield f"</svg><figcaption>{escape(told)}</figcaption></figure>"


def ticks(low: float, high: float, about: int, *, least: float = 0.0, beyond: bool = False) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from `low` to `high`, about so many, at least `least` apart.

    beyond: whether the last is the first one that is not below `high`
    """
    rough = max((high - low) / about, least, 1e-9)
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    if beyond:
        last = ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


MARK = ("\x02", "\x03")  # around the words of a snippet that are in the question; escaping leaves them alone
HARDEST, LOST = 6, 4  # negatives and dropped candidates shown of a query
_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --dim: #666; --line: #d8d8d8; --page: #fff; --bar: #0072b2; --bad: #b3400a;
  --good: #00735c; --mark: #fff0a8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --dim: #a0a0a0; --line: #3a3a3a; --page: #161616;
  --bar: #56b4e9; --bad: #e69f00; --good: #4fc3a1; --mark: #5a4e00; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.dim, code { color: var(--dim); font-size: .9rem; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; } th:first-child, td:first-child { text-align: left; }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem 1.5rem; margin-top: 1rem; }
figure { margin: 0; width: 28.75rem; max-width: 100%; } figcaption { font-size: .9rem; color: var(--dim); }
svg { width: 100%; height: auto; } svg rect { fill: var(--bar); } svg line { stroke: var(--line); }
svg text { fill: var(--dim); font-size: 12px; }
details { border-bottom: 1px solid var(--line); padding: .5rem 0; } summary { cursor: pointer; }
li { margin: .5rem 0; } mark { background: var(--mark); color: inherit; }
.bad { color: var(--bad); } .good { color: var(--good); }
"""

Show = Callable[[str, str], tuple[str, str]]  # ids of query and passage to the title and the words around the match


def report_page(figures: Figures, *, title: str, questions: Callable[[str], str], show: Show) -> Iterator[str]:
    """Lines of the page; nothing in it is fetched from elsewhere, and it can be read without JavaScript.

    questions: the text of a query, "" where it is not at hand. show: title and snippet of a passage, "" likewise.
    """
    yield "<!DOCTYPE html>"
    yield f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
    yield f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
    yield f'<h1>{escape(title)}</h1><p class="dim">{_summary(figures)}</p>'
    for table in tables(figures):
        yield from _table(table)
    pictures = {"rank": figures.rank, **figures.measures}
    yield '<div class="pictures">'
    for name, spread in pictures.items():
        if spread.count > 1:
            yield from histogram(MEASURES.get(name, "rank in its source"), spread)
    yield "</div>"
    if figures.shown:
        yield "<h2>Judge for yourself</h2>"
        yield '<p class="dim">The queries with the most suspicious negatives, then queries drawn at random. Is a negative an answer?</p>'
    for row in figures.shown:
        yield from _query(row, questions(row["query_id"]), show)
    yield "</body></html>"


def _summary(figures: Figures) -> str:
    suspects = f", {figures.suspects:,} of them suspicious" if figures.checked else ""
    return f"{figures.examples:,} examples of {figures.queries:,} queries, {figures.kept:,} negatives{suspects}"


def _table(table: Table) -> Iterator[str]:
    yield f'<h2>{escape(table.title)}</h2><div class="scroll"><table>'
    if any(table.header):
        yield "<tr>" + "".join(f"<th>{escape(name)}</th>" for name in table.header) + "</tr>"
    for row in table.rows:
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
    yield "</table></div>"


def _query(row: Row, question: str, show: Show) -> Iterator[str]:
    suspects = sum("suspicious" in one for one in row["kept"])
    told = f' <span class="bad">{suspects:,} suspicious</span>' if suspects else ""
    yield f"<details><summary>{escape(question or row['query_id'])} <code>{escape(row['query_id'])}</code>"
    yield f'<br><span class="dim">{len(row["kept"]):,} negatives</span>{told}</summary><ul>'
    for one in row["positives"][:HARDEST]:
        found = ", ".join(_ranked(source, rank) for source, (rank, _) in one["found"].items())
        where = found or "not found by any source"
        kind = "became a positive: holds an answer" if "promoted" in one else "positive"
        yield _item(f'<b class="good">{kind}</b>, {escape(where)}{_values(one)}', one["id"], row["query_id"], show)
    hardest = sorted(row["kept"], key=_hardness)[:HARDEST]
    for one in hardest:
        why = "; ".join(SUSPICIONS[name] for name in one.get("suspicious", ()))
        yield _item(
            f"negative, {escape(_place(one))}{_values(one)}"
            + (f' <span class="bad">{escape(why)}</span>' if why else ""),
            one["id"],
            row["query_id"],
            show,
        )
    for one in row["dropped"][:LOST]:
        limit = f", limit {one['limit']:.4g}" if "limit" in one else ""
        why = f"dropped: {FILTERS.get(one['by'], one['by'])}{limit}"
        yield _item(
            f'{escape(_place(one))}{_values(one)} <span class="dim">{escape(why)}</span>',
            one["id"],
            row["query_id"],
            show,
        )
    if len(row["dropped"]) > LOST:
        yield f'<li class="dim">{len(row["dropped"]) - LOST:,} more were dropped</li>'
    yield "</ul></details>"


def _hardness(one: Row) -> tuple[bool, int, float, int]:
    """The suspicious first, then those a cross-encoder, or the source, puts nearest the positive."""
    suspicions = len(one.get("suspicious", ()))
    nearness = one.get("ce_gap", one.get("gap"))
    return not suspicions, -suspicions, inf if nearness is None else nearness, int(one.get("rank", 1 << 30))


def _place(one: Row) -> str:
    return _ranked(one["source"], one["rank"]) if "rank" in one else one["source"]


def _ranked(source: str, rank: int) -> str:
    return f"rank {rank:,} of {source}"


def _values(one: Row) -> str:
    names = ("score", "gap", "ce", "overlap", "cosine")
    return "".join(f", {name} {one[name]:z.4g}" for name in names if name in one)


def _item(what: str, id: str, query_id: str, show: Show) -> str:
    title, words = show(query_id, id)
    body = escape(words).replace(MARK[0], "<mark>").replace(MARK[1], "</mark>")
    head = f"<b>{escape(title)}</b> " if title else ""
    return f"<li>{what}: {head}<code>{escape(id)}</code><br>{body}</li>"
