"""A comparison as lines of text: for a terminal, as Markdown, LaTeX, JSON lines or CSV."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import isinf

import orjson

from drtk.evaluation.compare import Comparison, Contrast, Move, Place, Standing
from drtk.runtime.progress import printable
from drtk.runtime.tables import Cell, Row, escape_markdown, format_table, markdown_code

WIDTH = 100


def comparison_lines(comparison: Comparison, moved: Sequence[Move]) -> Iterator[str]:
    """Lines, without their ends, in the format of the settings (html apart)."""
    format = comparison.settings.format
    if format == "jsonl":
        yield from _json_lines(comparison, moved)
        return
    if format == "csv":
        header, rows = contrast_grid(comparison)
        yield from format_table(header, rows, "csv")
        return
    if format == "latex":
        yield from (f"% {line}" for line in notes(comparison))
        yield from _latex(comparison)
        return
    yield from map(printable, _paragraphs(comparison, moved, markdown=format == "markdown"))


def scope(comparison: Comparison) -> str:
    """How much is compared, in a sentence."""
    count = len(comparison.queries)
    queries = "1 query" if count == 1 else f"{count:,} queries"
    return f"{len(comparison.systems)} systems, {queries}."


def notes(comparison: Comparison) -> list[str]:
    """What the marks and columns mean."""
    settings = comparison.settings
    family = len(comparison.pairs)
    corrected = (
        f"Holm's correction over the {family} comparisons of a measure" if family > 1 else "one comparison a measure"
    )
    if settings.correction == "none":
        corrected = "not corrected"
    effect = "d: the same in standard deviations of the differences (Cohen's d for pairs)"
    found = [
        f"† differs significantly: both tests have a p below {settings.alpha:g} ({corrected}).",
        f"difference: mean over queries, with its {settings.confidence:.0%} interval; {effect}.",
        f"p(t): paired two-sided t-test; p(rand): two-sided randomisation test, {settings.permutations:,} sign assignments.",
    ]
    if any(len(system.runs) > 1 for system in comparison.systems):
        found.append(
            "± is the standard deviation over the runs of a system; tests are of its values averaged over them."
        )
    if len(comparison.queries) == 1:
        found.append("One query tells nothing about others: no test can be made.")
    return found


def standing_grid(comparison: Comparison) -> tuple[list[str], list[Row]]:
    """A row a system: the average of each measure, best ones marked, with a dagger where it differs from the baseline."""
    settings = comparison.settings
    marked = {
        (c.system, c.measure) for c in comparison.contrasts if not settings.all_pairs and comparison.significant(c)
    }
    rows: list[Row] = []
    table = comparison.standings()
    best = [max(row[at].mean for row in table) for at in range(len(comparison.measures))]
    for row in table:
        cells = [Cell(row[0].system)]
        for at, standing in enumerate(row):
            note = _spread(standing, settings.digits) + ("†" if (standing.system, standing.measure) in marked else "")
            cells.append(Cell(standing.mean, standing.mean == best[at], note))
        rows.append(cells)
    return ["system", *(measure.name for measure in comparison.measures)], rows


def _spread(standing: Standing, digits: int) -> str:
    return "" if standing.sd is None else f" ± {standing.sd:.{digits}f} ({standing.runs})"


def contrast_grid(comparison: Comparison) -> tuple[list[str], list[Row]]:
    """A row a pair and measure: difference, interval, effect, t, both p values, and how many queries went which way."""
    header = ["measure", "system", "against", "difference", "low", "high", "d", "t", "p(t)", "p(rand)"]
    corrected = comparison.settings.correction != "none" and len(comparison.pairs) > 1
    if corrected:
        header[8:] = ["p(t)", "corrected", "p(rand)", "corrected"]
    header += ["better", "equal", "worse"]
    rows: list[Row] = []
    for c in comparison.contrasts:
        low, high = c.interval or (None, None)
        tests = [c.t_p, c.randomisation_p]
        if corrected:
            tests = [c.t_p, c.t_p_corrected, c.randomisation_p, c.randomisation_p_corrected]
        found = [
            c.measure,
            c.system,
            c.baseline,
            c.difference,
            low,
            high,
            c.effect,
            c.t,
            *tests,
            c.better,
            c.equal,
            c.worse,
        ]
        rows.append([Cell(value) for value in found])
    return header, rows


def readable_grid(comparison: Comparison) -> tuple[list[str], list[Row]]:
    """`contrast_grid` for eyes: signs before differences, the interval in one column, p values as short as they may be."""
    digits = comparison.settings.digits
    corrected = comparison.settings.correction != "none" and len(comparison.pairs) > 1
    several = len(comparison.pairs) > 1
    header = ["measure", *(["comparison"] if several else []), "difference", "interval", "d", "t", "p(t)", "p(rand)"]
    header += ["better", "equal", "worse"]
    rows: list[Row] = []
    for c in comparison.contrasts:
        low_high = "-" if c.interval is None else f"{c.interval[0]:+z.{digits}f} … {c.interval[1]:+z.{digits}f}"
        p_t, p_r = (c.t_p_corrected, c.randomisation_p_corrected) if corrected else (c.t_p, c.randomisation_p)
        t = "-" if c.t is None else ("∞" if c.t > 0 else "-∞") if isinf(c.t) else f"{c.t:z.2f}"
        effect = "-" if c.effect is None else f"{c.effect:+z.2f}"
        mark = "†" if comparison.significant(c) else ""
        named = [c.measure, *([f"{c.system} - {c.baseline}"] if several else [])]
        texts = [low_high, effect, t, chance(p_t), chance(p_r)]
        gain = Cell(f"{c.difference:+z.{digits}f}", note=mark)
        rows.append([*map(Cell, named), gain, *map(Cell, texts), Cell(c.better), Cell(c.equal), Cell(c.worse)])
    return header, rows


def chance(p: float) -> str:
    """A p value in two or three significant digits."""
    if p < 0.0001:
        return "<.0001"
    return f"{p:.4f}" if p < 0.1 else f"{p:.3f}"


def _paragraphs(comparison: Comparison, moved: Sequence[Move], *, markdown: bool) -> Iterator[str]:
    format = "markdown" if markdown else "table"
    digits = comparison.settings.digits
    pair = "" if len(comparison.pairs) > 1 else " minus ".join(reversed(comparison.pairs[0]))
    yield f"# {escape_markdown(comparison.settings.title)}" if markdown else comparison.settings.title
    yield from [""] * markdown
    yield scope(comparison)
    yield ""
    yield from format_table(*standing_grid(comparison), format, digits=digits)
    yield ""
    yield from [f"## {escape_markdown(pair) or 'Differences'}", ""] if markdown else [f"{pair}:"] if pair else []
    yield from format_table(*readable_grid(comparison), format, digits=digits)
    yield ""
    for note in notes(comparison):
        yield from [note, ""] if markdown else textwrap.wrap(note, WIDTH, subsequent_indent="  ")
    for at, move in enumerate(moved):
        pair_of = (move.baseline, move.system)
        if at == 0 or pair_of != (moved[at - 1].baseline, moved[at - 1].system):
            title = f"Queries that moved most, {move.system} against {move.baseline}"
            yield from [f"## {escape_markdown(title)}", ""] if markdown else ["", f"{title}:"]
        yield from [""] * (not markdown)
        yield from _markdown_move(move, digits) if markdown else _move(move, digits)


def headline(move: Move, digits: int) -> str:
    """The values of a query in both systems, and the difference."""
    change = move.after - move.before
    return (
        f"{move.measure} {move.before:.{digits}f} ({move.baseline}) → {move.after:.{digits}f} ({move.system}), "
        f"{change:+z.{digits}f}"
    )


def placed(place: Place) -> str:
    """Where a document stood and where it stands."""
    before, after = ("not retrieved" if rank is None else f"rank {rank}" for rank in (place.before, place.after))
    return f"{before} → {after}"


def leading(move: Move) -> Iterator[tuple[str, Place]]:
    """What stands first in a system and is not relevant."""
    first, second = move.firsts
    if first is not None and first == second:
        yield f"first in both, {_judged(first)}", first
        return
    for name, place in zip((move.baseline, move.system), move.firsts, strict=True):
        if place is not None:
            yield f"first in {name}, {_judged(place)}", place


def _judged(place: Place) -> str:
    return "not judged" if place.grade is None else f"grade {place.grade}"


def _move(move: Move, digits: int) -> Iterator[str]:
    title = f"{move.query_id}  {' '.join(move.text.split())}".rstrip()
    yield from textwrap.wrap(title, WIDTH, subsequent_indent="  ")
    yield f"  {headline(move, digits)}"
    listed = [(f"relevant, {placed(place)}", place) for place in move.relevant] + list(leading(move))
    for what, place in listed:
        name = place.id if not place.title else f"{place.id}  {' '.join(place.title.split())}"
        yield "  " + textwrap.shorten(f"- {what}: {name}", WIDTH - 2, placeholder=" …")
        if place.snippet:
            yield from textwrap.wrap(
                place.snippet, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4, max_lines=2, placeholder=" …"
            )


def _markdown_move(move: Move, digits: int) -> Iterator[str]:
    name = escape_markdown(move.text or move.query_id)
    yield f"**{name}** ({markdown_code(move.query_id)}): {escape_markdown(headline(move, digits))}"
    yield ""
    for what, place in [(f"relevant, {placed(place)}", place) for place in move.relevant] + list(leading(move)):
        name, snippet = escape_markdown(place.title or place.id), escape_markdown(place.snippet)
        yield f"- {escape_markdown(what)}: **{name}** ({markdown_code(place.id)}) {snippet}".rstrip()
    yield ""


def _latex(comparison: Comparison) -> Iterator[str]:
    """Two tables: averages, then differences."""
    for grid in (standing_grid(comparison), readable_grid(comparison)):
        yield ""
        yield from format_table(*grid, "latex", digits=comparison.settings.digits)


def _json_lines(comparison: Comparison, moved: Sequence[Move]) -> Iterator[str]:
    yield orjson.dumps(
        {"kind": "comparison", "queries": len(comparison.queries), "settings": asdict(comparison.settings)}
    ).decode()
    for row in comparison.standings():
        yield from (orjson.dumps({"kind": "system"} | asdict(standing)).decode() for standing in row)
    for contrast in comparison.contrasts:
        yield orjson.dumps({"kind": "contrast"} | _contrast_row(comparison, contrast)).decode()
    for move in moved:
        yield orjson.dumps({"kind": "move"} | move.row()).decode()


def _contrast_row(comparison: Comparison, contrast: Contrast) -> dict[str, object]:
    return contrast.row() | {"significant": comparison.significant(contrast)}
