"""Format evaluations as text, Markdown, LaTeX, CSV, JSON lines or trec_eval output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson

from drtk.evaluation.config import EvalSettings
from drtk.evaluation.evaluate import Evaluation, Value
from drtk.evaluation.measures import Measure
from drtk.runtime.tables import Cell, Row, format_table, format_value

MAX_COLUMNS = 8  # with more measures, each measure gets a row


@dataclass(frozen=True)
class RowLabels:
    """Labels of the items that an evaluation averages over: queries or BEIR collections.

    name: column heading; field, count: JSON keys of an item's id and the number of items; average: label of the average
    has_system_columns: for several systems, one column per system, with the best value of each row marked
    """

    name: str = "query"
    field: str = "query_id"
    count: str = "queries"
    average: str = "all"
    has_system_columns: bool = False


QUERIES = RowLabels()


def format_results(
    results: Sequence[Evaluation], measures: Sequence[Measure], settings: EvalSettings, labels: RowLabels = QUERIES
) -> Iterator[str]:
    """Yield the lines of a table in the format of the settings; JSON lines and CSV have values in full precision."""
    per_query = settings.per_query or labels is not QUERIES
    if settings.format == "jsonl":
        for result in results:
            for query, values in result.per_query.items() if per_query else ():
                yield orjson.dumps({"run": result.name, labels.field: query, **values}).decode()
            yield orjson.dumps({"run": result.name, labels.count: result.num_queries, **result.overall}).decode()
    elif settings.format == "trec":
        for result in results:
            for query, values in (*(result.per_query.items() if per_query else ()), ("all", result.overall)):
                for measure in measures:
                    if measure.name in values:
                        yield f"{measure.name:<22}\t{query}\t{format_value(values[measure.name], 4)}"
    else:
        table = _build_table(results, measures, labels, per_query=per_query)
        yield from format_table(*table, settings.format, digits=settings.digits)


def _build_table(
    results: Sequence[Evaluation], measures: Sequence[Measure], labels: RowLabels, *, per_query: bool
) -> tuple[list[str], list[Row]]:
    """Return header and rows: one row per run (with `per_query`, also per query), with one column per measure.

    With more than MAX_COLUMNS measures, or several runs and `has_system_columns`: one row per measure (and query), with
    one column per run. The best mean of several runs is marked; with `has_system_columns`, also the best of each query.
    """

    def get_value(result: Evaluation, query: str | None, measure: Measure) -> Value | None:
        return (result.overall if query is None else result.per_query.get(query, {})).get(measure.name)

    def make_cell(result: Evaluation, query: str | None, measure: Measure) -> Cell:
        value = get_value(result, query, measure)
        is_marked = (query is None or labels.has_system_columns) and measure.aggregate in ("mean", "geometric")
        if value is None or len(results) < 2 or not is_marked:
            return Cell(value)
        values = [get_value(other, query, measure) for other in results]
        return Cell(value, float(value) == max(float(other) for other in values if other is not None))

    def make_labels(name: str, query: str | None) -> list[Cell]:
        return [Cell(name), *([Cell(labels.average if query is None else query)] if per_query else [])]

    queries_of = {result.name: list(result.per_query if per_query else ()) for result in results}
    header = [labels.name] if per_query else []
    if len(measures) <= MAX_COLUMNS and not (labels.has_system_columns and len(results) > 1):
        rows = [
            [*make_labels(result.name, query), *(make_cell(result, query, measure) for measure in measures)]
            for result in results
            for query in (*queries_of[result.name], None)
        ]
        return ["run", *header, *(measure.name for measure in measures)], rows
    has_average = {measure.name for measure in measures if any(measure.name in result.overall for result in results)}
    queries = dict.fromkeys(query for ids in queries_of.values() for query in ids)
    rows = [
        [*make_labels(measure.name, query), *(make_cell(result, query, measure) for result in results)]
        for measure in measures
        for query in (*queries, None)
        if query is not None or measure.name in has_average
    ]
    return ["measure", *header, *(result.name for result in results)], rows
