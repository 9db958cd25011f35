"""Candidate negatives of a query: hits per source, rejections by filters, and sampled negatives.

A source is a run, an index or a file of training examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from drtk.records import Example, Query

CE = "ce"  # key of cross-encoder scores in `CandidatePool.values`


@dataclass(frozen=True, slots=True)
class Hits:
    """Hits of a query in one source, best first.

    ids: passage ids    scores: score of each passage; empty if the source has no scores
    is_ranked: False if the order has no meaning, as for the shuffled negatives of a training example
    """

    ids: Sequence[str]
    scores: Sequence[float] = ()
    is_ranked: bool = True


@dataclass(frozen=True, slots=True)
class MiningQuery:
    """A query with its hits by source name. Some fields are only set by sources that are training examples.

    query: text and answers of the query; None if they are not needed
    positives: ids of the positives in the training examples
    ce_scores: cross-encoder scores in the training examples, by passage id
    extra: other fields of the training examples
    vector_position: place of the query's vector in an embeddings folder: shard index and row; None without such a folder
    """

    query_id: str
    hits: dict[str, Hits] = field(default_factory=dict)
    query: Query | None = None
    positives: tuple[str, ...] = ()
    ce_scores: dict[str, float] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    vector_position: tuple[int, int] | None = None


def merge_queries(records: Sequence[MiningQuery]) -> MiningQuery:
    """Merge records of the same query, which come from several sources or from several lines of a file.

    If several records have hits of the same source, the last hits with scores are kept; without scores, the lists are
    concatenated. If a passage is a positive in one record and a negative in another, the cross-encoder score of the
    positive is kept. If several records have the same extra field, its last value is kept.
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
            if old is None or new.scores:
                hits[source] = new
            elif not old.scores:
                ids = list(dict.fromkeys((*old.ids, *new.ids)))
                hits[source] = Hits(ids, is_ranked=old.is_ranked and len(ids) == len(old.ids))
        ce_scores |= record.ce_scores
        extra |= record.extra
    for record in records:
        ce_scores |= {id: record.ce_scores[id] for id in record.positives if id in record.ce_scores}
    positives = tuple(dict.fromkeys(id for record in records for id in record.positives))
    return MiningQuery(first.query_id, hits, first.query, positives, ce_scores, extra, first.vector_position)


class Candidate(NamedTuple):
    """A passage retrieved by a source, or a random passage.

    rank: 1-based rank in the source, or position in an unranked list (`Hits.is_ranked`); 0 for a random passage
    score: None for a random passage, or if the source has no scores
    """

    id: str
    source: str
    rank: int
    score: float | None


def drop_duplicates(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the first candidate of each passage id, in the original order."""
    unique: dict[str, Candidate] = {}
    for candidate in candidates:
        unique.setdefault(candidate.id, candidate)
    return list(unique.values())


class Rejection(NamedTuple):
    """A rejected candidate, the name of the filter, the candidate's value (rank, score, …) and the filter's limit for it.

    limit: None if the filter has no limit
    """

    candidate: Candidate
    filter: str
    value: float | None
    limit: float | None


@dataclass(slots=True)
class CandidatePool:
    """Candidates of a query, the results of the filters, and the sampled negatives.

    positives: passage ids; the first `num_judged` come from judgments or training examples, the others contain an answer
    candidates: candidates that no filter has rejected yet, by source, best first
    num_candidates: number of distinct passages before filtering
    rejected: first rejection of each rejected candidate, by passage id; rejected_random: the same for random passages
    promoted: ids of candidates that became positives because they contain an answer
    values: {passage id: {filter name: value, such as a score or a similarity}}
    skipped: reason why no training example is written for the query; "" if one is written
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
    def reference_positives(self) -> list[str]:
        """Ids of the positives whose scores limit the scores of negatives: judged positives, or all if none is judged."""
        return self.positives[: self.num_judged] or self.positives

    @property
    def num_random(self) -> int:
        """Number of negatives that are random passages."""
        return [negative.rank for negative in self.negatives].count(0)

    @property
    def num_not_sampled(self) -> int:
        """Number of candidates that passed all filters but were not sampled."""
        num_sampled = len(self.negatives) - self.num_random
        return self.num_candidates - num_sampled - len(self.rejected) - len(self.promoted)

    def all_candidates(self) -> list[Candidate]:
        """Return the candidates of all sources; a passage retrieved by several sources is contained several times."""
        return [candidate for candidates in self.candidates.values() for candidate in candidates]

    def unique_candidates(self) -> list[Candidate]:
        """Return one candidate per passage: the one from the first source that retrieved the passage."""
        return drop_duplicates(self.all_candidates())

    def reject(self, rejections: Iterable[Rejection]) -> None:
        """Remove rejected candidates from all sources, and record the first rejection of each candidate."""
        num_rejected = len(self.rejected)
        for rejection in rejections:
            self.rejected.setdefault(rejection.candidate.id, rejection)
        if len(self.rejected) > num_rejected:
            self._remove_candidates(self.rejected.keys())

    def promote(self, ids: Sequence[str]) -> None:
        """Make candidates positives. ids: passage ids, appended to the positives in this order"""
        self.promoted += ids
        self.positives += ids
        self._remove_candidates(frozenset(ids))

    def _remove_candidates(self, ids: AbstractSet[str]) -> None:
        for source, candidates in self.candidates.items():
            self.candidates[source] = [candidate for candidate in candidates if candidate.id not in ids]

    def set_value(self, id: str, name: str, value: float) -> None:
        """Store the value that the filter `name` computed for a passage."""
        self.values.setdefault(id, {})[name] = value

    def has_rank(self, candidate: Candidate) -> bool:
        """Return whether the candidate has a rank in its source; False for random passages and shuffled lists."""
        hits = self.query.hits.get(candidate.source)
        return candidate.rank > 0 and hits is not None and hits.is_ranked

    def find_reference_score(self, source: str) -> float | None:
        """Return the lowest score of the reference positives in a source; None if the source has no scores for them."""
        hits = self.query.hits.get(source)
        if hits is None or not hits.scores:
            return None
        references = set(self.reference_positives)
        return min((score for id, score in zip(hits.ids, hits.scores, strict=True) if id in references), default=None)
