"""Format rows of cells as aligned text, Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from drtk.runtime.progress import escape_control_characters

_MARKDOWN_SPECIAL = re.compile(r"[\\`*>\[\]|~#]|<(?=[A-Za-z/!?])|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
_NUMBER_PATTERN = re.compile(r"(?P<sign>[+-]?)(?P<whole>\d*)(?:\.(?P<decimals>\d+))?(?<=\d)")
_SIGNED_PATTERN = re.compile(r"((?<![\w.])[+-]\d[\d.]*|(?<=\s)-(?=\s))")  # in text; in math, - is a minus sign
_LATEX_ESCAPES = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {c: f"${c}$" for c in "<>|"}
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    | {"†": "$^\\dagger$", "±": "$\\pm$", "…": "\\dots{}", "∞": "$\\infty$", "\N{MINUS SIGN}": "$-$"}
)


@dataclass(frozen=True)
class Cell:
    """A table cell.

    best: whether the value is the best of its column; note: text after the value, such as a standard deviation
    """

    value: str | float | None
    best: bool = False
    note: str = ""


Row = list[Cell]


def format_table(
    header: list[str], rows: Sequence[Row], format: str, *, digits: int = 4, right: bool = False
) -> Iterator[str]:
    """Yield the lines of a table without line ends.

    format: table (aligned text), markdown, latex or csv; CSV has all digits and no notes
    digits: number of decimals of floats in the other formats
    right: right-align text, too, except in the first column
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
    """Format a float with `digits` decimals; return integers and text unchanged, and "" for None."""
    if value is None:
        return ""
    return str(value) if isinstance(value, str | int) else f"{value:z.{digits}f}"  # z: no sign before a rounded 0


def find_text_columns(rows: Sequence[Row]) -> list[bool]:
    """Return, for each column, True if it has no numbers."""
    return [all(not isinstance(cell.value, float | int) for cell in column) for column in zip(*rows, strict=True)]


def find_note_columns(rows: Sequence[Row]) -> list[bool]:
    """Return, for each column, True if any cell has a note. Notes get a column of their own, so that digits are aligned."""
    return [any(cell.note for cell in column) for column in zip(*rows, strict=True)]


def _format_aligned(header: list[str], rows: list[Row], is_text: list[bool]) -> Iterator[str]:
    has_best = any(cell.best for row in rows for cell in row)
    lines = [[(name, "") for name in header]]
    lines += [[(str(cell.value), cell.note + "*" * cell.best) for cell in row] for row in rows]
    lines = [[(text + note, "") if left else (text, note) for (text, note), left in zip(line, is_text, strict=True)]
             for line in lines]  # fmt: skip
    columns = list(zip(*lines, strict=True))
    widths = [max(len(text) for text, _ in column) for column in columns]
    # If any cell is marked as best, every column of numbers has room for a star.
    note_widths = [max(max(len(note) for _, note in column), has_best and not left)
                   for column, left in zip(columns, is_text, strict=True)]  # fmt: skip
    for line in lines:
        fields = [
            (text.ljust(width) if left else text.rjust(width)) + note.ljust(note_width)
            for (text, note), width, note_width, left in zip(line, widths, note_widths, is_text, strict=True)
        ]
        yield "  ".join(fields).rstrip()


def _format_markdown(header: list[str], rows: list[Row], is_text: list[bool]) -> Iterator[str]:
    """Right-align columns of numbers, except columns with notes whose values all have the same length."""
    lengths = [{len(str(cell.value)) for cell in column} for column in zip(*rows, strict=True)]
    is_even = [noted and len(widths) == 1 for noted, widths in zip(find_note_columns(rows), lengths, strict=True)]

    def format_line(fields: Sequence[str]) -> str:
        return "| " + " | ".join(fields) + " |"

    yield format_line([escape_markdown(name) for name in header])
    yield format_line([":---" if text or even else "---:" for text, even in zip(is_text, is_even, strict=True)])
    for row in rows:
        cells = [(escape_markdown(str(cell.value)) + cell.note.replace("|", "\\|"), cell.best) for cell in row]
        yield format_line([f"**{text}**" if best else text for text, best in cells])


def escape_markdown(text: str) -> str:
    """Escape a text for Markdown and put it on one line. Underscores inside words are not escaped."""
    return _MARKDOWN_SPECIAL.sub(r"\\\g<0>", escape_control_characters(" ".join(text.split())))


def format_markdown_code(text: str) -> str:
    """Format a text as a Markdown code span on one line."""
    plain = escape_control_characters(" ".join(text.split()))
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    return f"{fence} {plain} {fence}" if len(fence) > 1 else f"`{plain}`"


def _format_latex(header: list[str], rows: list[Row], is_text: list[bool]) -> Iterator[str]:
    """Use booktabs rules and siunitx columns for numbers; braces protect texts and notes in these columns."""
    kinds = []
    for column in zip(*rows, strict=True):
        numbers = [match for cell in column if (match := _NUMBER_PATTERN.fullmatch(str(cell.value)))]
        note = max((cell.note for cell in column), key=len)
        whole, decimals = (max((len(n[part] or "") for n in numbers), default=0) for part in ("whole", "decimals"))
        sign = "+" * any(number["sign"] for number in numbers)
        post = f", table-space-text-post={{{_escape_note(note)}}}" if note else ""
        kinds.append(f"S[table-format={sign}{whole}.{decimals}{post}]" if numbers else "l")
    is_number = [kind != "l" for kind in kinds]

    def format_line(cells: Sequence[Cell]) -> str:
        return " & ".join(map(_format_latex_cell, cells, is_number)) + " \\\\"

    yield "% \\usepackage{booktabs, siunitx} \\sisetup{detect-weight, retain-explicit-plus}"
    yield "\\begin{tabular}{" + " ".join(kinds) + "}"
    yield "\\toprule"
    yield format_line([Cell(name) for name in header])
    yield "\\midrule"
    yield from map(format_line, rows)
    yield "\\bottomrule"
    yield "\\end{tabular}"


def _format_latex_cell(cell: Cell, in_number_column: bool) -> str:
    text = str(cell.value)
    if in_number_column and _NUMBER_PATTERN.fullmatch(text):
        return "\\bfseries " * cell.best + text + (f"{{{_escape_note(cell.note)}}}" if cell.note else "")
    parts = _SIGNED_PATTERN.split(text)
    parts[::2], parts[1::2] = (
        [part.translate(_LATEX_ESCAPES) for part in parts[::2]],
        [f"${part}$" for part in parts[1::2]],
    )
    text = "".join(parts) + _escape_note(cell.note)
    text = f"\\textbf{{{text}}}" if cell.best else text
    return f"{{{text}}}" if in_number_column else text


def _escape_note(note: str) -> str:
    return ("~" * note.startswith(" ") + note.strip()).translate(_LATEX_ESCAPES | {ord("~"): "~"})
