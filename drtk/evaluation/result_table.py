"""Print evaluations as text, Markdown, LaTeX, CSV, JSON lines or as trec_eval does."""

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
    """What an evaluation averages over: the heading of its column, the key and count in JSON lines, the name of the average.

    is_ranked: mark the best of each part, with systems side by side
    """

    name: str = "query"
    field: str = "query_id"
    count: str = "queries"
    all: str = "all"
    is_ranked: bool = False


QUERIES = RowLabels()


def format_results(
    results: Sequence[Evaluation], measures: Sequence[Measure], settings: EvalSettings, parts: RowLabels = QUERIES
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
        table = _build_table(results, measures, parts, per_part=per_part)
        yield from format_table(*table, settings.format, digits=settings.digits)


def _build_table(
    results: Sequence[Evaluation], measures: Sequence[Measure], parts: RowLabels, *, per_part: bool
) -> tuple[list[str], list[Row]]:
    """Return header and rows: a row per run and part, or with many measures or ranked parts one per measure and part.

    The highest of several averages is marked, and with ranked parts the highest of each part.
    """

    def value(result: Evaluation, part: str | None, measure: Measure) -> Value | None:
        return (result.overall if part is None else result.per_query.get(part, {})).get(measure.name)

    def cell(result: Evaluation, part: str | None, measure: Measure) -> Cell:
        own = value(result, part, measure)
        is_ranked = part is None or parts.is_ranked
        if own is None or len(results) < 2 or not is_ranked or measure.aggregate not in ("mean", "geometric"):
            return Cell(own)
        values = (value(other, part, measure) for other in results)
        return Cell(own, float(own) == max(float(each) for each in values if each is not None))

    def label(name: str, part: str | None) -> list[Cell]:
        return [Cell(name), *([Cell(parts.all if part is None else part)] if per_part else [])]

    of_run = {result.name: [*(result.per_query if per_part else ()), None] for result in results}
    names = [parts.name] if per_part else []
    if len(measures) <= MAX_COLUMNS and not (parts.is_ranked and len(results) > 1):
        rows = [
            [*label(result.name, part), *(cell(result, part, measure) for measure in measures)]
            for result in results
            for part in of_run[result.name]
        ]
        return ["run", *names, *(measure.name for measure in measures)], rows
    has_overall = {measure.name for measure in measures if any(measure.name in result.overall for result in results)}
    all_parts = sorted(dict.fromkeys(part for each in of_run.values() for part in each), key=lambda part: part is None)
    rows = [
        [*label(measure.name, part), *(cell(result, part, measure) for result in results)]
        for measure in measures
        for part in all_parts
        if part is not None or measure.name in has_overall
    ]
    return ["measure", *names, *(result.name for result in results)], rows
