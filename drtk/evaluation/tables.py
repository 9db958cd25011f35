"""Render evaluations as text, Markdown, LaTeX, CSV, JSON lines or trec_eval's lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson

from drtk.evaluation.evaluate import Evaluation, Value
from drtk.evaluation.measures import Measure
from drtk.runtime.tables import Cell, Row, format_table, format_value

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
        yield from format_table(header, rows, format, digits=digits)


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
        return f"{measure.name:<22}\t{query}\t{format_value(value, 4)}"

    for result in results:
        if per_query:
            for query, values in result.per_query.items():
                yield from (line(m, query, values[m.name]) for m in measures if m.name in values)
        yield from (line(m, "all", result.overall[m.name]) for m in measures if m.name in result.overall)
