"""Which k1 and b of BM25 serve a collection best, by its judgements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from drtk.errors import MismatchError, UsageError
from drtk.indexing.base import Ranking, SparseIndex
from drtk.records import Query
from drtk.runtime.progress import Progress

Judgements = Mapping[str, Mapping[str, int]]  # query id -> passage id -> grade
Rankings = Mapping[str, Ranking]
GRID = "k1=0.6,0.82,0.9,1.2,1.6 b=0.2,0.4,0.55,0.68,0.75,0.9"


@dataclass(frozen=True, slots=True)
class Tuned:
    """What one choice of k1 and b is worth."""

    k1: float
    b: float
    value: float


def parse_grid(text: str) -> list[tuple[float, float]]:
    """All pairs of "k1=0.6,0.9 b=0.4,0.75", k1 first. Raises UsageError for anything else, and for values out of bounds."""
    axes: dict[str, list[float]] = {}
    for part in text.split():
        name, _, listed = part.partition("=")
        try:
            values = [float(value) for value in listed.split(",")]
        except ValueError:
            values = []
        if name not in ("k1", "b") or name in axes or not values:
            raise UsageError(f"a grid reads like 'k1=0.6,0.9,1.2 b=0.4,0.75', not '{text}'")
        axes[name] = values
    if set(axes) != {"k1", "b"}:
        raise UsageError(f"a grid names both k1 and b: '{text}'")
    for k1, b in product(axes["k1"], axes["b"]):
        if not (0 <= k1 < float("inf") and 0 <= b <= 1):
            raise UsageError(f"k1 must be at least 0 and b between 0 and 1: k1 {k1:g}, b {b:g}")
    return list(product(axes["k1"], axes["b"]))


def tune(
    open_with: Callable[[float, float], SparseIndex],
    queries: Sequence[Query],
    qrels: Judgements,
    *,
    grid: Sequence[tuple[float, float]],
    measure: Callable[[Judgements, Rankings], float],
    depth: int = 1000,
    progress: Progress | None = None,
) -> list[Tuned]:
    """Every point of `grid` with its value, the best first; equal values keep the grid's order.

    open_with: the index, ready to be searched with a k1 and a b
    measure:   the value (higher is better) of rankings by query id against the judgements
    Queries without judgements are not searched. Raises MismatchError where no query has any.
    """
    judged = [query for query in queries if query.id in qrels]
    if not judged:
        raise MismatchError("none of the queries has a judgement; are these the qrels of these queries?")
    texts = [query.text for query in judged]
    found: list[Tuned] = []
    for k1, b in grid:
        rankings = open_with(k1, b).search(texts, depth)
        value = measure(qrels, {query.id: ranking for query, ranking in zip(judged, rankings, strict=True)})
        found.append(Tuned(k1, b, value))
        if progress is not None:
            progress.add()
    return sorted(found, key=lambda point: -point.value)
