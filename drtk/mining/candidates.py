"""A query's candidates: what each source retrieved, and what became of every passage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from drtk.records import Example, Query

CE = "ce"  # the name of cross-encoder scores among the values of a passage


@dataclass(frozen=True, slots=True)
class Hits:
    """A query's passages in one source, best first; `scores` as long as `ids`, or empty if the source has none.

    is_ranked: False if positions mean nothing, as in the shuffled negatives of an example.
    """

    ids: Sequence[str]
    scores: Sequence[float] = ()
    is_ranked: bool = True


@dataclass(frozen=True, slots=True)
class MiningQuery:
    """A query with the hits of each source, by source name: a record of the job.

    positives, ce_scores, extra: of training examples that are mined again: their positives, cross-encoder scores by
    passage, and unknown fields. row: (shard, row) of its vector in an embeddings folder.
    """

    query_id: str
    hits: dict[str, Hits] = field(default_factory=dict)
    query: Query | None = None
    positives: tuple[str, ...] = ()
    ce_scores: dict[str, float] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    row: tuple[int, int] | None = None


def merge_queries(parts: Sequence[MiningQuery]) -> MiningQuery:
    """Merge what several sources, or several lines of a file, have for one query.

    Hits with scores replace hits of the same source without; two lists without scores are joined. A positive keeps the
    score it has as a positive. Of unknown fields that differ, the last one stays.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    hits: dict[str, Hits] = {}
    ce_scores: dict[str, float] = {}
    extra: dict[str, Any] = {}
    for part in parts:
        for source, new in part.hits.items():
            old = hits.get(source)
            hits[source] = new if old is None or new.scores else old if old.scores else _join_hits(old, new)
        ce_scores |= part.ce_scores
        extra |= part.extra
    for part in parts:
        ce_scores |= {id: part.ce_scores[id] for id in part.positives if id in part.ce_scores}
    positives = tuple(dict.fromkeys(id for part in parts for id in part.positives))
    return MiningQuery(first.query_id, hits, first.query, positives, ce_scores, extra, first.row)


def _join_hits(first: Hits, second: Hits) -> Hits:
    ids = list(dict.fromkeys((*first.ids, *second.ids)))
    return Hits(ids, is_ranked=first.is_ranked and len(ids) == len(first.ids))


class Candidate(NamedTuple):
    """A passage as a source retrieved it; ranks from 1 (0: sampled at random), `score` None if the source has none."""

    id: str
    source: str
    rank: int
    score: float | None


class Rejection(NamedTuple):
    """Why a candidate is no negative: the filter, the value it measured, and its limit for this query."""

    candidate: Candidate
    filter: str
    value: float | None
    limit: float | None


@dataclass(slots=True)
class Pool:
    """The candidates of a query on their way through the filters.

    positives: the first `num_judged` are judged, others come from answers. num_candidates: different passages at the start.
    values: what filters measured, by passage id and filter name. skipped: why the query makes no example, "" if it does.
    """

    query: MiningQuery
    positives: list[str]
    num_judged: int
    candidates: dict[str, list[Candidate]]
    num_candidates: int = 0
    rejected: dict[str, Rejection] = field(default_factory=dict)
    rejected_random: dict[str, Rejection] = field(default_factory=dict)
    promoted: list[str] = field(default_factory=list)
    negatives: list[Candidate] = field(default_factory=list)
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    skipped: str = ""
    example: Example | None = None

    @property
    def query_id(self) -> str:
        return self.query.query_id

    @property
    def references(self) -> list[str]:
        """The positives that negatives are compared with: the judged ones, if there are any."""
        return self.positives[: self.num_judged] or self.positives

    @property
    def num_random(self) -> int:
        """How many negatives are random passages."""
        return [one.rank for one in self.negatives].count(0)

    @property
    def num_not_sampled(self) -> int:
        """How many candidates passed all filters and were not sampled."""
        num_sampled = len(self.negatives) - self.num_random
        return self.num_candidates - num_sampled - len(self.rejected) - len(self.promoted)

    def all_candidates(self) -> list[Candidate]:
        """Return the candidates of all sources; a passage of several sources appears several times."""
        return [one for found in self.candidates.values() for one in found]

    def unique_candidates(self) -> list[Candidate]:
        """Return each candidate once, as the first of its sources retrieved it."""
        unique: dict[str, Candidate] = {}
        for one in self.all_candidates():
            unique.setdefault(one.id, one)
        return list(unique.values())

    def reject(self, rejections: Iterable[Rejection]) -> None:
        """Remove candidates from all sources, and keep the first reason for each."""
        new: dict[str, Rejection] = {}
        for rejection in rejections:
            new.setdefault(rejection.candidate.id, rejection)
        if new:
            self.rejected |= new
            self._remove(new.keys())

    def promote(self, ids: Sequence[str]) -> None:
        """Turn candidates into positives, in this order."""
        self.promoted += ids
        self.positives += ids
        self._remove(frozenset(ids))

    def _remove(self, ids: AbstractSet[str]) -> None:
        for source, found in self.candidates.items():
            self.candidates[source] = [one for one in found if one.id not in ids]

    def set_value(self, id: str, name: str, value: float) -> None:
        """Store what a filter measured of a passage."""
        self.values.setdefault(id, {})[name] = value

    def has_rank(self, one: Candidate) -> bool:
        """Return whether the candidate's position is a rank, and not one in a shuffled list."""
        return one.rank > 0 and one.source in self.query.hits and self.query.hits[one.source].is_ranked

    def reference_score(self, source: str) -> float | None:
        """Return the lowest score of a reference in a source; None if it has no scores, or retrieved no reference."""
        hits = self.query.hits.get(source)
        if hits is None or not hits.scores:
            return None
        wanted = set(self.references)
        return min((score for id, score in zip(hits.ids, hits.scores, strict=True) if id in wanted), default=None)
