"""Print evaluations as text, Markdown, LaTeX, CSV, JSON lines or as trec_eval does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson

from drtk.evaluation.config import EvalSettings
from drtk.evaluation.evaluate import Evaluation
from drtk.evaluation.measures import Measure
from drtk.runtime.tables import Cell, Row, format_table, format_value

MAX_COLUMNS = 8  # with more measures, each measure gets a row


@dataclass(frozen=True)
class Parts:
    """What an evaluation averages over: the heading of its column, the key and count in JSON lines, the name of the average.

    is_ranked: mark the best of each part, with systems side by side
    """

    name: str = "query"
    field: str = "query_id"
    count: str = "queries"
    all: str = "all"
    is_ranked: bool = False


QUERIES = Parts()


def format_results(
    results: Sequence[Evaluation], measures: Sequence[Measure], settings: EvalSettings, parts: Parts = QUERIES
) -> Iterator[str]:
    """Yield the lines of a table in the format of the settings; JSON lines and CSV have values in full."""
    per_part = settings.per_query or parts is not QUERIES
    if settings.format == "jsonl":
        for result in results:
            for part, values in result.per_query.items() if per_part else ():
                yield orjson.dumps({"run": result.name, parts.field: part, **values}).decode()
            yield orjson.dumps({"run": result.name, parts.count: result.queries, **result.overall}).decode()
    elif settings.format == "trec":
        for result in results:
            for query, values in (*(result.per_query.items() if per_part else ()), ("all", result.overall)):
                for measure in measures:
                    if measure.name in values:
                        yield f"{measure.name:<22}\t{query}\t{format_value(values[measure.name], 4)}"
    else:
        by_measure = len(measures) > MAX_COLUMNS or (parts.is_ranked and len(results) > 1)
        table = _by_measure if by_measure else _by_run
        yield from format_table(*table(results, measures, per_part, parts), settings.format, digits=settings.digits)


def format_overall(results: Sequence[Evaluation], measures: Sequence[Measure], format: str) -> Iterator[str]:
    """Yield the lines of a table of averages only."""
    table = _by_measure if len(measures) > MAX_COLUMNS else _by_run
    return format_table(*table(results, measures, False, QUERIES), format)


def _by_run(
    results: Sequence[Evaluation], measures: Sequence[Measure], per_part: bool, parts: Parts
) -> tuple[list[str], list[Row]]:
    names = [measure.name for measure in measures]
    best = _find_best(results, measures)
    rows = []
    for at, result in enumerate(results):
        if per_part:
            for part, values in result.per_query.items():
                rows.append([Cell(result.name), Cell(part), *(Cell(values.get(name)) for name in names)])
        overall = [Cell(result.overall.get(name), (name, at) in best) for name in names]
        rows.append([Cell(result.name), *([Cell(parts.all)] if per_part else []), *overall])
    return ["run", *([parts.name] if per_part else []), *names], rows


def _by_measure(
    results: Sequence[Evaluation], measures: Sequence[Measure], per_part: bool, parts: Parts
) -> tuple[list[str], list[Row]]:
    best = _find_best(results, measures)
    rows: list[Row] = []
    for name in (measure.name for measure in measures):
        for part in dict.fromkeys(part for result in results for part in result.per_query) if per_part else ():
            values = [result.per_query.get(part, {}).get(name) for result in results]
            highest = max((float(v) for v in values if v is not None), default=0.0) if parts.is_ranked else None
            cells = [Cell(value, value is not None and value == highest) for value in values]
            rows.append([Cell(name), Cell(part), *cells])
        overall = [Cell(result.overall.get(name), (name, at) in best) for at, result in enumerate(results)]
        if any(cell.value is not None for cell in overall):
            rows.append([Cell(name), *([Cell(parts.all)] if per_part else []), *overall])
    return ["measure", *([parts.name] if per_part else []), *(result.name for result in results)], rows


def _find_best(results: Sequence[Evaluation], measures: Sequence[Measure]) -> set[tuple[str, int]]:
    """Return (measure, index of a run) of the highest averages, if there are several runs."""
    best: set[tuple[str, int]] = set()
    for measure in measures:
        if len(results) > 1 and measure.aggregate in ("mean", "geometric"):
            values = [float(result.overall[measure.name]) for result in results]
            best |= {(measure.name, at) for at, value in enumerate(values) if value == max(values)}
    return best
