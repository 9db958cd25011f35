"""Format rows of cells as aligned text, Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from drtk.runtime.progress import escape_control_characters

_MARKDOWN = re.compile(r"[\\`*>\[\]|~#]|<(?=[A-Za-z/!?])|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {c: f"${c}$" for c in "<>|"}
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    | {"†": "$^\\dagger$", "±": "$\\pm$", "…": "\\dots{}", "∞": "$\\infty$"}
)


@dataclass(frozen=True)
class Cell:
    """A value, whether it is the best of its column, and a note printed after it (a mark, a standard deviation)."""

    value: str | float | None
    best: bool = False
    note: str = ""


Row = list[Cell]


def format_table(
    header: list[str], rows: Sequence[Row], format: str, *, digits: int = 4, right: bool = False
) -> Iterator[str]:
    """Yield the lines of a table without line ends.

    format: table (aligned text), markdown, latex or csv. CSV has values in full and no notes.
    digits: decimals of floats in the other formats
    right: align text to the right as well, except in the first column
    """
    if format == "csv":
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([["" if cell.value is None else cell.value for cell in row] for row in rows])
        yield from buffer.getvalue().splitlines()
        return
    texts = [
        [Cell(escape_control_characters(format_value(cell.value, digits)), cell.best, cell.note) for cell in row]
        for row in rows
    ]
    columns = {"table": _format_aligned, "markdown": _format_markdown, "latex": _format_latex}[format]
    is_text = [text and not (right and at) for at, text in enumerate(find_text_columns(rows))]
    yield from columns([*map(escape_control_characters, header)], texts, is_text)


def format_value(value: str | float | None, digits: int) -> str:
    """Return a float with this number of decimals, and whole numbers and text unchanged; "" for None."""
    if value is None:
        return ""
    return str(value) if isinstance(value, str | int) else f"{value:z.{digits}f}"  # z: no sign before a rounded 0


def find_text_columns(rows: Sequence[Row]) -> list[bool]:
    """Return for each column whether it holds no number."""
    return [all(not isinstance(cell.value, float | int) for cell in column) for column in zip(*rows, strict=True)]


def find_note_columns(rows: Sequence[Row]) -> list[bool]:
    """Return for each column whether any cell has a note: notes get a column of their own, so that digits line up."""
    return [any(cell.note for cell in column) for column in zip(*rows, strict=True)]


def _format_aligned(header: list[str], rows: list[Row], is_text: list[bool]) -> Iterator[str]:
    has_best = any(cell.best for row in rows for cell in row)
    lines = [[(name, "") for name in header]]
    lines += [[(str(cell.value), cell.note + "*" * cell.best) for cell in row] for row in rows]
    lines = [[(text + note, "") if left else (text, note) for (text, note), left in zip(line, is_text, strict=True)]
             for line in lines]  # fmt: skip
    columns = list(zip(*lines, strict=True))
    widths = [max(len(text) for text, _ in column) for column in columns]
    # If there are stars, every column of numbers leaves room for one.
    note_widths = [max(max(len(note) for _, note in column), has_best and not left)
                   for column, left in zip(columns, is_text, strict=True)]  # fmt: skip
    for line in lines:
        fields = [
            (text.ljust(width) if left else text.rjust(width)) + note.ljust(note_width)
            for (text, note), width, note_width, left in zip(line, widths, note_widths, is_text, strict=True)
        ]
        yield "  ".join(fields).rstrip()


def _format_markdown(header: list[str], rows: list[Row], is_text: list[bool]) -> Iterator[str]:
    """Align numbers to the right, but to the left if the column has notes and its values are equally long."""
    lengths = [{len(str(cell.value)) for cell in column} for column in zip(*rows, strict=True)]
    is_even = [noted and len(found) == 1 for noted, found in zip(find_note_columns(rows), lengths, strict=True)]

    def line(fields: Sequence[str]) -> str:
        return "| " + " | ".join(fields) + " |"

    yield line([escape_markdown(name) for name in header])
    yield line([":---" if text or even else "---:" for text, even in zip(is_text, is_even, strict=True)])
    for row in rows:
        cells = [(escape_markdown(str(cell.value)) + cell.note.replace("|", "\\|"), cell.best) for cell in row]
        yield line([f"**{text}**" if best else text for text, best in cells])


def escape_markdown(text: str) -> str:
    """Return a text on one line, escaped for Markdown except for underscores inside words."""
    return _MARKDOWN.sub(r"\\\g<0>", escape_control_characters(" ".join(text.split())))


def format_markdown_code(text: str) -> str:
    """Return a text on one line as a Markdown code span."""
    plain = escape_control_characters(" ".join(text.split()))
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    return f"{fence} {plain} {fence}" if len(fence) > 1 else f"`{plain}`"


def _format_latex(header: list[str], rows: list[Row], is_text: list[bool]) -> Iterator[str]:
    """Put notes into a second column without space before it."""
    has_notes = find_note_columns(rows)

    def line(cells: Sequence[Cell]) -> str:
        fields: list[str] = []
        for cell, noted in zip(cells, has_notes, strict=True):
            text, note = str(cell.value).translate(_LATEX), cell.note.translate(_LATEX)
            note = "~" + note.removeprefix(" ") if note.startswith(" ") else note  # LaTeX drops a space after &
            parts = [text, note] if noted else [text]
            fields += [f"\\textbf{{{part}}}" if cell.best and part else part for part in parts]
        return " & ".join(fields) + " \\\\"

    kinds = zip(is_text, has_notes, strict=True)
    yield "\\begin{tabular}{" + "".join(("l" if text else "r") + "@{}l" * noted for text, noted in kinds) + "}"
    yield "\\hline"
    yield line([Cell(name) for name in header])
    yield "\\hline"
    yield from map(line, rows)
    yield "\\hline"
    yield "\\end{tabular}"
