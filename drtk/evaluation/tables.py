"""Render tables as text, Markdown, LaTeX, CSV or JSON lines."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from drtk.evaluation.evaluate import Evaluation, Value
from drtk.evaluation.measures import Measure
from drtk.runtime.progress import printable

_MARKDOWN = re.compile(r"[\\`*>\[\]|~#]|<(?=[A-Za-z/!?])|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
_LATEX = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}


@dataclass(frozen=True)
class Cell:
    """A cell's value, whether it is the best of its kind, and what stands after it (a mark, a spread)."""

    value: Value | None
    best: bool = False
    note: str = ""


Row = list[Cell]


def grid_lines(header: list[str], rows: Sequence[Row], format: str, *, digits: int = 4) -> Iterator[str]:
    """Lines, without their ends, of a table; CSV holds values in full and no notes."""
    if format == "csv":
        yield from _csv_lines(header, rows)
        return
    text = {"table": _aligned, "markdown": _markdown, "latex": _latex}[format]
    cells = [[Shown(printable(shown(cell.value, digits)), cell.note, cell.best) for cell in row] for row in rows]
    yield from text([*map(printable, header)], cells, _texts_among(rows))


class Shown(NamedTuple):
    """A cell in words: its value, what stands after it, and whether it is the best of its kind."""

    text: str
    note: str
    best: bool


def shown(value: Value | None, digits: int) -> str:
    """A value with so many decimals; whole numbers and texts as they are."""
    if value is None:
        return ""
    if isinstance(value, str | int):
        return str(value)
    return f"{value:z.{digits}f}"  # z: what rounds to nothing has no sign


def _texts_among(rows: Sequence[Row]) -> list[bool]:
    """For each column, whether it holds text, which stands to the left."""
    columns = list(zip(*rows, strict=True)) if rows else []
    return [all(not isinstance(cell.value, float | int) for cell in column) for column in columns]


def noted(rows: Sequence[Sequence[Cell | Shown]]) -> list[bool]:
    """For each column, whether something stands after a value in it: that has a column of its own, so that digits line up."""
    return [any(cell.note for cell in column) for column in zip(*rows, strict=True)]


def _aligned(header: list[str], rows: list[list[Shown]], left: list[bool]) -> Iterator[str]:
    """Texts to the left; values to the right, and what stands after them in a column of its own."""
    starred = any(cell.best for row in rows for cell in row)
    lines = [[(name, "") for name in header]]
    lines += [[(cell.text, cell.note + "*" * cell.best) for cell in row] for row in rows]
    lines = [[(text + note, "") if is_text else (text, note) for (text, note), is_text in zip(line, left, strict=True)]
             for line in lines]  # fmt: skip
    columns = list(zip(*lines, strict=True))
    widths = [max(len(text) for text, _ in column) for column in columns]
    rooms = [max(len(note) for _, note in column) for column in columns]
    if starred:  # every column of values has room for the star
        rooms = [max(room, not is_text) for room, is_text in zip(rooms, left, strict=True)]
    for line in lines:
        fields = [
            (text.ljust(width) if is_text else text.rjust(width)) + note.ljust(room)
            for (text, note), width, room, is_text in zip(line, widths, rooms, left, strict=True)
        ]
        yield "  ".join(fields).rstrip()


def _markdown(header: list[str], rows: list[list[Shown]], left: list[bool]) -> Iterator[str]:
    """Values to the right; to the left where something stands after some of them and they are all as long as each other."""
    lengths = [{len(cell.text) for cell in column} for column in zip(*rows, strict=True)]
    even = [has and len(found) == 1 for has, found in zip(noted(rows), lengths, strict=True)]

    def line(fields: Sequence[str]) -> str:
        return "| " + " | ".join(fields) + " |"

    yield line([escape_markdown(name) for name in header])
    yield line([":---" if text or same else "---:" for text, same in zip(left, even, strict=True)])
    for row in rows:
        cells = [(escape_markdown(cell.text) + cell.note.replace("|", "\\|"), cell.best) for cell in row]
        yield line([f"**{text}**" if best else text for text, best in cells])


def escape_markdown(text: str) -> str:
    """Return a text on one line, escaped for Markdown except for underscores inside words."""
    return _MARKDOWN.sub(r"\\\g<0>", printable(" ".join(text.split())))


def markdown_code(text: str) -> str:
    """Return a text on one line as a Markdown code span."""
    plain = printable(" ".join(text.split()))
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    return f"{fence} {plain} {fence}" if len(fence) > 1 else f"`{plain}`"


def _latex(header: list[str], rows: list[list[Shown]], left: list[bool]) -> Iterator[str]:
    """Two columns without a space between them where something stands after a value."""
    special = str.maketrans({c: f"\\{c}" for c in "&%$#_{}"} | {c: f"${c}$" for c in "<>|"} | _LATEX)
    two = noted(rows)

    def line(cells: Sequence[Shown]) -> str:
        fields: list[str] = []
        for cell, has_note in zip(cells, two, strict=True):
            text, note = cell.text.translate(special), cell.note.translate(special)
            note = "~" + note.removeprefix(" ") if note.startswith(" ") else note  # a space after & would be lost
            parts = [text, note] if has_note else [text]
            fields += [f"\\textbf{{{part}}}" if cell.best and part else part for part in parts]
        return " & ".join(fields) + " \\\\"

    kinds = zip(left, two, strict=True)
    yield "\\begin{tabular}{" + "".join(("l" if text else "r") + "@{}l" * has for text, has in kinds) + "}"
    yield "\\hline"
    yield line([Shown(name, "", False) for name in header])
    yield "\\hline"
    yield from map(line, rows)
    yield "\\hline"
    yield "\\end{tabular}"


def _csv_lines(header: list[str], rows: Sequence[Row]) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([["" if cell.value is None else cell.value for cell in row] for row in rows])
    yield from buffer.getvalue().splitlines()


WIDEST = 8  # measures a table has side by side; more of them go below each other


@dataclass(frozen=True)
class Parts:
    """What an evaluation is made of: `name` heads their column, `field` is the key in JSON lines, `all` their average.

    ranked: whether the best of each part is marked too, and several systems stand side by side
    """

    name: str = "query"
    field: str = "query_id"
    count: str = "queries"
    all: str = "all"
    ranked: bool = False


QUERIES = Parts()


def table_lines(
    results: Sequence[Evaluation],
    measures: Sequence[Measure],
    *,
    format: str,
    per_query: bool,
    digits: int = 4,
    parts: Parts = QUERIES,
) -> Iterator[str]:
    """Lines, without their ends, of a table in `format`; JSON lines and CSV hold values in full.

    per_query: whether the values of the parts are shown too
    """
    if format == "jsonl":
        yield from _json_lines(results, per_query, parts)
    elif format == "trec":
        yield from _trec_lines(results, measures, per_query)
    else:
        header, rows = _rows(results, measures, per_query, parts)
        yield from grid_lines(header, rows, format, digits=digits)


def _rows(
    results: Sequence[Evaluation], measures: Sequence[Measure], per_query: bool, parts: Parts
) -> tuple[list[str], list[Row]]:
    """Header and rows: a run a row, or, where there are many measures or systems stand side by side, a measure a row."""
    names = [measure.name for measure in measures]
    best = _best(results, measures)
    if len(names) > WIDEST or (parts.ranked and len(results) > 1):
        header = ["measure", *([parts.name] if per_query else []), *(result.name for result in results)]
        rows = [row for measure in measures for row in _by_measure(measure, results, per_query, best, parts)]
        return header, rows
    header = ["run", *([parts.name] if per_query else []), *names]
    rows = []
    for at, result in enumerate(results):
        if per_query:
            for part, values in result.per_query.items():
                rows.append([Cell(result.name), Cell(part), *(Cell(values.get(name)) for name in names)])
        overall = [Cell(result.overall.get(name), (name, at) in best) for name in names]
        rows.append([Cell(result.name), *([Cell(parts.all)] if per_query else []), *overall])
    return header, rows


def _by_measure(
    measure: Measure, results: Sequence[Evaluation], per_query: bool, best: set[tuple[str, int]], parts: Parts
) -> Iterator[Row]:
    name = measure.name
    if per_query:
        for part in dict.fromkeys(part for result in results for part in result.per_query):
            values = [result.per_query.get(part, {}).get(name) for result in results]
            highest = max((float(value) for value in values if value is not None), default=0.0)
            marked = [parts.ranked and value is not None and float(value) == highest for value in values]
            yield [Cell(name), Cell(part), *(Cell(*pair) for pair in zip(values, marked, strict=True))]
    overall = [Cell(result.overall.get(name), (name, at) in best) for at, result in enumerate(results)]
    if any(cell.value is not None for cell in overall):
        yield [Cell(name), *([Cell(parts.all)] if per_query else []), *overall]


def _best(results: Sequence[Evaluation], measures: Sequence[Measure]) -> set[tuple[str, int]]:
    """(measure, position of a run) of the highest averages, where there is more than one run."""
    found: set[tuple[str, int]] = set()
    if len(results) < 2:
        return found
    for measure in measures:
        if measure.aggregate not in ("mean", "geometric"):
            continue
        values = [float(result.overall[measure.name]) for result in results]
        found |= {(measure.name, at) for at, value in enumerate(values) if value == max(values)}
    return found


def _json_lines(results: Sequence[Evaluation], per_query: bool, parts: Parts) -> Iterator[str]:
    for result in results:
        if per_query:
            for part, values in result.per_query.items():
                yield orjson.dumps({"run": result.name, parts.field: part, **values}).decode()
        yield orjson.dumps({"run": result.name, parts.count: result.queries, **result.overall}).decode()


def _trec_lines(results: Sequence[Evaluation], measures: Sequence[Measure], per_query: bool) -> Iterator[str]:
    def line(measure: Measure, query: str, value: Value) -> str:
        return f"{measure.name:<22}\t{query}\t{shown(value, 4)}"

    for result in results:
        if per_query:
            for query, values in result.per_query.items():
                yield from (line(m, query, values[m.name]) for m in measures if m.name in values)
        yield from (line(m, "all", result.overall[m.name]) for m in measures if m.name in result.overall)
