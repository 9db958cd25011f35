"""Values of one or several runs as text: aligned, Markdown, LaTeX, CSV, JSON lines, or as trec_eval prints them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson

from drtk.evaluation.evaluate import Evaluation, Value
from drtk.evaluation.measures import Measure

WIDEST = 8  # measures a table has side by side; more of them go below each other


@dataclass(frozen=True)
class Cell:
    """A cell's value, and whether it is the best of its measure."""

    value: Value | None
    best: bool = False


Row = list[Cell]


def table_lines(
    results: Sequence[Evaluation], measures: Sequence[Measure], *, format: str, per_query: bool, digits: int = 4
) -> Iterator[str]:
    """Lines, without their ends, of a table in `format`; JSON lines and CSV hold values in full."""
    if format == "jsonl":
        yield from _json_lines(results, per_query)
    elif format == "trec":
        yield from _trec_lines(results, measures, per_query)
    else:
        header, rows = _rows(results, measures, per_query)
        if format == "csv":
            yield from _csv_lines(header, rows)
            return
        text = {"table": _aligned, "markdown": _markdown, "latex": _latex}[format]
        cells = [[(_text(cell.value, digits), cell.best) for cell in row] for row in rows]
        yield from text(header, cells, _texts_among(rows))


def _rows(results: Sequence[Evaluation], measures: Sequence[Measure], per_query: bool) -> tuple[list[str], list[Row]]:
    """Header and rows: a run a row, or, where there are many measures, a measure a row."""
    names = [measure.name for measure in measures]
    best = _best(results, measures)
    if len(names) > WIDEST:
        header = ["measure", *(["query"] if per_query else []), *(result.name for result in results)]
        rows = [row for name in names for row in _by_measure(name, results, per_query, best)]
        return header, rows
    header = ["run", *(["query"] if per_query else []), *names]
    rows = []
    for at, result in enumerate(results):
        if per_query:
            for query, values in result.per_query.items():
                rows.append([Cell(result.name), Cell(query), *(Cell(values.get(name)) for name in names)])
        overall = [Cell(result.overall.get(name), (name, at) in best) for name in names]
        rows.append([Cell(result.name), *([Cell("all")] if per_query else []), *overall])
    return header, rows


def _by_measure(name: str, results: Sequence[Evaluation], per_query: bool, best: set[tuple[str, int]]) -> Iterator[Row]:
    if per_query:
        for query in dict.fromkeys(query for result in results for query in result.per_query):
            yield [Cell(name), Cell(query), *(Cell(result.per_query.get(query, {}).get(name)) for result in results)]
    overall = [Cell(result.overall.get(name), (name, at) in best) for at, result in enumerate(results)]
    if any(cell.value is not None for cell in overall):
        yield [Cell(name), *([Cell("all")] if per_query else []), *overall]


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


def _text(value: Value | None, digits: int) -> str:
    if value is None:
        return ""
    if isinstance(value, str | int):
        return str(value)
    return f"{value:.{digits}f}"


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


def _csv_lines(header: list[str], rows: list[Row]) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([["" if cell.value is None else cell.value for cell in row] for row in rows])
    yield from buffer.getvalue().splitlines()


def _json_lines(results: Sequence[Evaluation], per_query: bool) -> Iterator[str]:
    for result in results:
        if per_query:
            for query, values in result.per_query.items():
                yield orjson.dumps({"run": result.name, "query_id": query, **values}).decode()
        yield orjson.dumps({"run": result.name, "queries": result.queries, **result.overall}).decode()


def _trec_lines(results: Sequence[Evaluation], measures: Sequence[Measure], per_query: bool) -> Iterator[str]:
    def line(measure: Measure, query: str, value: Value) -> str:
        return f"{measure.name:<22}\t{query}\t{_text(value, 4)}"

    for result in results:
        if per_query:
            for query, values in result.per_query.items():
                yield from (line(m, query, values[m.name]) for m in measures if m.name in values)
        yield from (line(m, "all", result.overall[m.name]) for m in measures if m.name in result.overall)
