"""The candidates of a query and what is known of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from drtk.records import Query


@dataclass(frozen=True, slots=True)
class Ranked:
    """A query's passages in one source, best first; `scores` as long as `ids`, or empty where the source has none.

    ordered: False for a list in no particular order, as the shuffled negatives of an example: places in it are no ranks
    """

    ids: Sequence[str]
    scores: Sequence[float] = ()
    ordered: bool = True


@dataclass(frozen=True, slots=True)
class Asked:
    """A query as the sources give it: a record of the job.

    found: what each source has, by its name. positives, ce, extra: of an example that is mined anew: its positives, the
    cross-encoder scores it holds by passage, its unknown fields. row: its place in an embeddings folder (shard, row).
    """

    query_id: str
    found: dict[str, Ranked]
    query: Query | None = None
    positives: tuple[str, ...] = ()
    ce: dict[str, float] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    row: tuple[int, int] | None = None


class Sighting(NamedTuple):
    """A passage as a source found it; ranks from 1, `score` None where the source has none."""

    id: str
    source: str
    rank: int
    score: float | None


class Drop(NamedTuple):
    """Why a candidate is no negative: the filter, the value it went by, and the limit for this query."""

    sighting: Sighting
    by: str
    value: float | None
    limit: float | None


@dataclass(slots=True)
class Pool:
    """A query's candidates on their way through the filters.

    positives: the judged ones first, `judged` of them. left_out: why the query makes no example, "" where it does.
    refused: random passages that a check would not have.
    marks: what checks measured of a passage, by id and check. seen: different candidates at the start.
    """

    asked: Asked
    positives: list[str]
    judged: int
    candidates: dict[str, list[Sighting]]
    seen: int = 0
    dropped: dict[str, Drop] = field(default_factory=dict)
    refused: dict[str, Drop] = field(default_factory=dict)
    promoted: list[str] = field(default_factory=list)
    kept: list[Sighting] = field(default_factory=list)
    marks: dict[str, dict[str, float]] = field(default_factory=dict)
    left_out: str = ""

    @property
    def query_id(self) -> str:
        return self.asked.query_id

    @property
    def references(self) -> list[str]:
        """The positives that negatives are measured against: the judged ones, where there are any."""
        return self.positives[: self.judged] or self.positives

    def sightings(self) -> Iterator[Sighting]:
        """The candidates, each once, as the first source that has it found it."""
        seen: set[str] = set()
        for found in self.candidates.values():
            for sighting in found:
                if sighting.id not in seen:
                    seen.add(sighting.id)
                    yield sighting

    def drop(self, drops: Mapping[str, Drop]) -> None:
        """Take passages out of all sources: what one source makes suspicious is no negative of another's."""
        if drops:
            self.dropped |= {id: drop for id, drop in drops.items() if id not in self.dropped}
            self._remove(drops)

    def promote(self, ids: Sequence[str]) -> None:
        """Make candidates positives, in this order."""
        self.promoted += ids
        self.positives += ids
        self._remove(frozenset(ids))

    def _remove(self, ids: Mapping[str, Any] | frozenset[str]) -> None:
        for source, found in self.candidates.items():
            self.candidates[source] = [sighting for sighting in found if sighting.id not in ids]

    def mark(self, id: str, check: str, value: float) -> None:
        """Note what a check measured of a passage."""
        self.marks.setdefault(id, {})[check] = value

    def has_rank(self, one: Sighting) -> bool:
        """Whether the place at which a passage was seen says how good its source thinks it is."""
        return one.rank > 0 and one.source in self.asked.found and self.asked.found[one.source].ordered

    def reference_score(self, source: str) -> float | None:
        """The lowest score that a source gave to a reference; None where it has no scores, or found none of them."""
        found = self.asked.found.get(source)
        if found is None or not found.scores:
            return None
        wanted = set(self.references)
        return min((score for id, score in zip(found.ids, found.scores, strict=True) if id in wanted), default=None)
