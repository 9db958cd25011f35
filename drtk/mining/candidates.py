"""Candidate passages of a query: the hits of each source, their rejections, and the negatives sampled from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from drtk.records import Example, Query

CE = "ce"  # the name of cross-encoder scores among the values of a passage


@dataclass(frozen=True, slots=True)
class Hits:
    """Hits of a query in one source, best first.

    scores: one for each id; empty if the source has no scores
    is_ranked: False if the order has no meaning, as in the shuffled negatives of an example
    """

    ids: Sequence[str]
    scores: Sequence[float] = ()
    is_ranked: bool = True


@dataclass(frozen=True, slots=True)
class MiningQuery:
    """A query with its hits by source name.

    positives, ce_scores, extra: from training examples that are a source: their positives, cross-encoder scores by passage
    id, and other fields
    row: shard and row of the query's vector in an embeddings folder
    """

    query_id: str
    hits: dict[str, Hits] = field(default_factory=dict)
    query: Query | None = None
    positives: tuple[str, ...] = ()
    ce_scores: dict[str, float] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    row: tuple[int, int] | None = None


def merge_queries(records: Sequence[MiningQuery]) -> MiningQuery:
    """Merge the records of one query from several sources, or from several lines of a file.

    Hits with scores replace hits of the same source without scores; two lists without scores are concatenated. A passage
    that is a positive in one record and a negative in another keeps its score as a positive. If other fields differ, the
    last value is kept.
    """
    first = records[0]
    if len(records) == 1:
        return first
    hits: dict[str, Hits] = {}
    ce_scores: dict[str, float] = {}
    extra: dict[str, Any] = {}
    for record in records:
        for source, new in record.hits.items():
            old = hits.get(source)
            hits[source] = new if old is None or new.scores else old if old.scores else _concatenate(old, new)
        ce_scores |= record.ce_scores
        extra |= record.extra
    for record in records:
        ce_scores |= {id: record.ce_scores[id] for id in record.positives if id in record.ce_scores}
    positives = tuple(dict.fromkeys(id for record in records for id in record.positives))
    return MiningQuery(first.query_id, hits, first.query, positives, ce_scores, extra, first.row)


def _concatenate(first: Hits, second: Hits) -> Hits:
    ids = list(dict.fromkeys((*first.ids, *second.ids)))
    return Hits(ids, is_ranked=first.is_ranked and len(ids) == len(first.ids))


class Candidate(NamedTuple):
    """A passage retrieved by a source. rank: from 1; 0 for a random passage. score: None if the source has no scores."""

    id: str
    source: str
    rank: int
    score: float | None


class Rejection(NamedTuple):
    """A rejected candidate, the filter that rejected it, the measured value, and the limit for this query."""

    candidate: Candidate
    filter: str
    value: float | None
    limit: float | None


@dataclass(slots=True)
class CandidatePool:
    """Candidates of a query, what the filters measured and rejected, and the negatives that were sampled.

    positives: the first `num_judged` come from judgments or examples, the others contain an answer
    candidates: those not rejected yet, by source
    num_candidates: distinct passages before filtering
    promoted: candidates that became positives because they contain an answer
    values: measured values by passage id and filter name
    skipped: why no example is written for the query; "" if one is
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
        """The positives whose scores limit those of negatives: the judged ones, or all if none is judged."""
        return self.positives[: self.num_judged] or self.positives

    @property
    def num_random(self) -> int:
        """The number of negatives that are random passages."""
        return [negative.rank for negative in self.negatives].count(0)

    @property
    def num_not_sampled(self) -> int:
        """The number of candidates that passed all filters but were not sampled."""
        num_sampled = len(self.negatives) - self.num_random
        return self.num_candidates - num_sampled - len(self.rejected) - len(self.promoted)

    def all_candidates(self) -> list[Candidate]:
        """Return the candidates of all sources; a passage retrieved by several sources appears several times."""
        return [candidate for candidates in self.candidates.values() for candidate in candidates]

    def unique_candidates(self) -> list[Candidate]:
        """Return each passage once, with the first source that retrieved it."""
        unique: dict[str, Candidate] = {}
        for candidate in self.all_candidates():
            unique.setdefault(candidate.id, candidate)
        return list(unique.values())

    def reject(self, rejections: Iterable[Rejection]) -> None:
        """Remove candidates from all sources, and record the first rejection of each."""
        new: dict[str, Rejection] = {}
        for rejection in rejections:
            new.setdefault(rejection.candidate.id, rejection)
        if new:
            self.rejected |= new
            self._remove(new.keys())

    def promote(self, ids: Sequence[str]) -> None:
        """Make candidates positives, in this order."""
        self.promoted += ids
        self.positives += ids
        self._remove(frozenset(ids))

    def _remove(self, ids: AbstractSet[str]) -> None:
        for source, candidates in self.candidates.items():
            self.candidates[source] = [candidate for candidate in candidates if candidate.id not in ids]

    def set_value(self, id: str, name: str, value: float) -> None:
        """Store the value that a filter measured for a passage."""
        self.values.setdefault(id, {})[name] = value

    def has_rank(self, candidate: Candidate) -> bool:
        """Return whether the candidate's source ranks its hits: not so for random passages and shuffled lists."""
        hits = self.query.hits.get(candidate.source)
        return candidate.rank > 0 and hits is not None and hits.is_ranked

    def find_reference_score(self, source: str) -> float | None:
        """Return the lowest score of a reference positive in a source; None if the source retrieved or scored none."""
        hits = self.query.hits.get(source)
        if hits is None or not hits.scores:
            return None
        references = set(self.references)
        return min((score for id, score in zip(hits.ids, hits.scores, strict=True) if id in references), default=None)
