"""Example queries of a report: what two systems put first, chosen so that neither is shown in a false light."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from drtk.io.trec import Judgements


@dataclass(frozen=True)
class TopHit:
    """What a system puts first, and at which rank its first relevant document stands (None: not retrieved)."""

    system: str
    id: str | None
    title: str
    snippet: str
    relevant: bool
    rank: int | None


@dataclass(frozen=True)
class ExampleQuery:
    """A query with the top hits of two systems."""

    query_id: str
    text: str
    why: str
    hits: tuple[TopHit, TopHit]

    def row(self) -> dict[str, Any]:
        """As it stands in report.json."""
        return {"query_id": self.query_id, "query": self.text, "why": self.why, "hits": [asdict(h) for h in self.hits]}


def first_relevant(ranking: Sequence[str], grades: Mapping[str, int], rel: int) -> int | None:
    """The rank of the first relevant document, or None."""
    return next((rank for rank, id in enumerate(ranking, start=1) if grades.get(id, rel - 1) >= rel), None)


def choose_queries(
    first: Mapping[str, Sequence[str]],
    second: Mapping[str, Sequence[str]],
    judgements: Judgements,
    count: int,
    *,
    rel: int = 1,
) -> list[tuple[str, str]]:
    """(query, why) of `count` queries: in turn one where the second system is better, one where the first is, one alike.

    Within a kind, the largest difference of reciprocal ranks comes first, then what a hash of the id decides: which
    queries are shown depends on nothing else.
    """
    kinds: dict[str, list[tuple[float, bytes, str]]] = {"second": [], "first": [], "alike": []}
    for query, grades in judgements.items():
        places = [first_relevant(run.get(query, ()), grades, rel) for run in (first, second)]
        a, b = (0.0 if place is None else 1 / place for place in places)
        kind = "second" if b > a else "first" if a > b else "alike"
        kinds[kind].append((-abs(a - b), hashlib.blake2b(query.encode(), digest_size=8).digest(), query))
    for found in kinds.values():
        found.sort(reverse=True)
    chosen: list[tuple[str, str]] = []
    while len(chosen) < count and any(kinds.values()):
        for kind, found in kinds.items():
            if found and len(chosen) < count:
                chosen.append((found.pop()[2], kind))
    return chosen
