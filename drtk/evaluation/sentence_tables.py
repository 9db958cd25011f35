"""Sentence results as text: a row a system, a column a task, averages where all of a kind are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import orjson

from drtk.evaluation.grids import Cell, Row, grid_lines
from drtk.evaluation.sentence_data import STS, TRANSFER
from drtk.evaluation.sentence_tasks import Loaded, Result, SentenceVectors, subset_cosines

LOW_IS_GOOD = ("alignment", "uniformity")
_DEV = "transfer dev average"  # SentEval selects the penalty by them (Chuang's thesis, tables 2.3 to 2.6)


def sentence_lines(found: Mapping[str, Sequence[Result]], format: str, *, digits: int) -> Iterator[str]:
    """Lines, without their ends; JSON lines hold a system and task each."""
    if format == "jsonl":
        for system, results in found.items():
            for result in results:
                row = {"system": system, "task": result.task, "values": result.values} | result.details
                yield orjson.dumps(row).decode()
            for name, (_, value) in _averages(results).items():
                yield orjson.dumps({"system": system, "task": name, "values": {name: value}}).decode()
        return
    rows = {system: _with_averages(results) for system, results in found.items()}
    header = list(next(iter(rows.values())))
    best = {name: _best(name, [row[name] for row in rows.values()]) for name in header}
    several = len(rows) > 1
    grid: list[Row] = [
        [Cell(system), *(Cell(value, several and value == best[name]) for name, value in row.items())]
        for system, row in rows.items()
    ]
    yield from grid_lines(["system", *header], grid, format, digits=digits)


def _columns(results: Sequence[Result]) -> dict[str, float]:
    return {name: value for result in results for name, value in result.values.items()}


def _averages(results: Sequence[Result]) -> dict[str, tuple[str, float]]:
    """Return {average: (task it is shown after, value)} for averages whose seven tasks were all evaluated."""
    values = _columns(results)
    dev = {result.task: float(result.details["dev"]) for result in results if "dev" in result.details}
    kinds = (("STS average", STS, values), ("transfer average", TRANSFER, values), (_DEV, TRANSFER, dev))
    return {
        name: (members[-1], sum(found[member] for member in members) / len(members))
        for name, members, found in kinds
        if all(member in found for member in members)
    }


def _with_averages(results: Sequence[Result]) -> dict[str, float]:
    """The values, each average after the last of its members."""
    found: dict[str, float] = {}
    averages = _averages(results)
    for name, value in _columns(results).items():
        found[name] = value
        found |= {average: mean for average, (last, mean) in averages.items() if last == name}
    return found


def _best(name: str, values: Sequence[float]) -> float:
    return min(values) if name in LOW_IS_GOOD else max(values)


def pair_lines(system: str, loaded: Sequence[Loaded], vectors: SentenceVectors) -> Iterator[bytes]:
    """Every rated pair with its cosine, as a JSON line."""
    for item in loaded:
        for subset, cosines in subset_cosines(item, vectors).items():
            for pair, cosine in zip(item.rated[subset].pairs, cosines.tolist(), strict=True):
                row = {
                    "system": system,
                    "task": item.task.name,
                    "subset": subset,
                    "sentence1": pair.first,
                    "sentence2": pair.second,
                    "score": pair.score,
                    "cosine": cosine,
                }
                yield orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
