"""Rows of cells as text: aligned, Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from drtk.evaluation.evaluate import Value
from drtk.io.progress import printable

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
