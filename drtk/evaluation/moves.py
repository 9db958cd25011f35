"""Queries that a system gained or lost most, and the passages that changed place there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from drtk.evaluation.comparison import Comparison, Trace, difference
from drtk.evaluation.significance import EXACTLY

SHOWN = 4  # relevant documents of a query
Text = Callable[[str, str], tuple[str, str]]  # (question, id) -> title and snippet


@dataclass(frozen=True)
class Place:
    """A document and its rank in both systems (None: not retrieved); grade None where it is not judged."""

    id: str
    grade: int | None
    before: int | None
    after: int | None
    title: str = ""
    snippet: str = ""

    @property
    def moved(self) -> float:
        """By how much its reciprocal rank rose."""
        return (1 / self.after if self.after else 0.0) - (1 / self.before if self.before else 0.0)


@dataclass(frozen=True)
class Move:
    """A query, its value in both systems, its relevant documents, and what stands first in each if that is not one of them."""

    baseline: str
    system: str
    measure: str
    query_id: str
    text: str
    before: float
    after: float
    relevant: tuple[Place, ...]
    firsts: tuple[Place | None, Place | None]

    def row(self) -> dict[str, Any]:
        """As JSON lines hold it."""
        return asdict(self)


def moves(comparison: Comparison, *, texts: Mapping[str, str], show: Text | None) -> list[Move]:
    """For each pair, the queries that gained most and those that lost most, by the first measure; queries of like difference by id.

    texts: of queries, by id; show: title and snippet of a document
    """
    found = []
    measure, count = comparison.measures[0].name, comparison.settings.moved
    for first, second in comparison.pairs:
        changes = difference(comparison, first, second, measure)
        by_gain = sorted(zip(changes.tolist(), comparison.queries, strict=True), key=lambda item: (-item[0], item[1]))
        gained = [query for change, query in by_gain[:count] if change > EXACTLY]
        lost = [query for change, query in by_gain[::-1][:count] if change < -EXACTLY]
        found += [_move(comparison, first, second, query, texts.get(query, ""), show) for query in gained + lost]
    return found


def _move(comparison: Comparison, first: str, second: str, query: str, text: str, show: Text | None) -> Move:
    measure = comparison.measures[0].name
    systems = [comparison.system(name) for name in (first, second)]
    before, after = (system.traces.get(query, Trace((), {})) for system in systems)
    grades = comparison.judgements[query]
    rel = comparison.settings.rel

    def place(id: str) -> Place:
        title, snippet = show(text, id) if show else ("", "")
        return Place(id, grades.get(id), _rank(before, id), _rank(after, id), title, snippet)

    good = [place(id) for id, grade in grades.items() if grade >= rel]
    moved = [item for item in good if item.before != item.after]
    moved.sort(key=lambda item: (-abs(item.moved), -(item.grade or 0), item.id))
    tops = [trace.top[0] if trace.top else None for trace in (before, after)]
    firsts = [None if top is None or grades.get(top, rel - 1) >= rel else place(top) for top in tops]
    values = [float(system.values(measure, [query])[0]) for system in systems]
    return Move(first, second, measure, query, text, values[0], values[1], tuple(moved[:SHOWN]), (firsts[0], firsts[1]))


def _rank(trace: Trace, id: str) -> int | None:
    """Where a document stands; for one that is not judged, as far as the trace reaches."""
    if id in trace.ranks:
        return trace.ranks[id]
    return trace.top.index(id) + 1 if id in trace.top else None
