"""Rows of cells as text: aligned, Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from drtk.evaluation.evaluate import Value


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
    cells = [[(shown(cell.value, digits) + cell.note, cell.best) for cell in row] for row in rows]
    yield from text(header, cells, _texts_among(rows))


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


def _aligned(header: list[str], rows: list[list[tuple[str, bool]]], left: list[bool]) -> Iterator[str]:
    marked = any(best for row in rows for _, best in row)
    texts = [[text + ("*" if best else " " if marked else "") for text, best in row] for row in rows]
    widths = [max(len(line[at].rstrip()) for line in [header, *texts]) for at in range(len(header))]
    if marked:  # room for the star, also where the heading is what makes a column wide
        widths = [max(width, len(name) + (not text)) for width, name, text in zip(widths, header, left, strict=True)]
    heads = [name if text or not marked else name + " " for name, text in zip(header, left, strict=True)]
    for line in [heads, *texts]:
        fields = [
            field.rstrip().ljust(width) if text else field.rjust(width)
            for field, width, text in zip(line, widths, left, strict=True)
        ]
        yield "  ".join(fields).rstrip()


def _markdown(header: list[str], rows: list[list[tuple[str, bool]]], left: list[bool]) -> Iterator[str]:
    def line(fields: Sequence[str]) -> str:
        return "| " + " | ".join(field.replace("|", "\\|") for field in fields) + " |"

    yield line(header)
    yield line([":---" if text else "---:" for text in left])
    for row in rows:
        yield line([f"**{text}**" if best else text for text, best in row])


def _latex(header: list[str], rows: list[list[tuple[str, bool]]], left: list[bool]) -> Iterator[str]:
    special = str.maketrans({c: f"\\{c}" for c in "&%$#_{}"} | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}"})

    def line(fields: Sequence[str]) -> str:
        return " & ".join(fields) + " \\\\"

    yield "\\begin{tabular}{" + "".join("l" if text else "r" for text in left) + "}"
    yield "\\hline"
    yield line([name.translate(special) for name in header])
    yield "\\hline"
    for row in rows:
        fields = [text.translate(special) for text, _ in row]
        yield line([f"\\textbf{{{field}}}" if best else field for field, (_, best) in zip(fields, row, strict=True)])
    yield "\\hline"
    yield "\\end{tabular}"


def _csv_lines(header: list[str], rows: Sequence[Row]) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([["" if cell.value is None else cell.value for cell in row] for row in rows])
    yield from buffer.getvalue().splitlines()
