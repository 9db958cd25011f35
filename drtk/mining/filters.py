"""Filters that reject possible false negatives by rank and score, and the base class of content filters.

Score filters use the rank and retrieval score of a candidate in its source, so they do not apply to random passages.
Content filters (`content_filters`) use the text or vector of a passage, so they also apply to random passages.
A source is a run, an index or a file of training examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import isnan

from drtk.errors import UsageError
from drtk.mining.candidates import Candidate, CandidatePool, Rejection
from drtk.mining.config import MineSettings

ScoreFilter = Callable[[CandidatePool], None]
UNRETRIEVED = "unretrieved"  # filter name of rejections by margin or max_share when the source retrieved no positive
ANSWER_CHECKS = "checked for answers"  # key in `counts`: numbers of passages, and of those without text
MAX_SHARE = 2.0  # a larger share is probably a percentage


def build_score_filters(settings: MineSettings, sources: Sequence[str]) -> list[ScoreFilter]:
    """Return the filters by rank and score that `settings` select, in the order of application.

    sources: names of the runs and indexes; [] if all sources are training examples
    Raises the errors of `parse_limits`, and UsageError for a share outside 0 to MAX_SHARE.
    """
    filters: list[ScoreFilter] = []
    if settings.from_rank > 1:
        filters.append(partial(reject_by_rank, first=settings.from_rank, only_examples=not sources))
    for name, values in (("max-score", settings.max_score), ("min-score", settings.min_score)):
        if values:
            filters.append(partial(reject_by_score, name=name, limits=parse_limits(values, name, sources)))
    for name, values in (("margin", settings.margin), ("max-share", settings.max_share)):
        if values:
            limits, keep = parse_limits(values, name, sources), settings.unretrieved == "keep"
            if name == "max-share" and not all(0 <= share <= MAX_SHARE for share in limits.values()):
                raise UsageError(
                    f"`max_share` must be between 0 and {MAX_SHARE:g}, a fraction of the positive's score (95% is 0.95)"
                )
            filters.append(partial(reject_near_positive, name=name, limits=limits, keep_unretrieved=keep))
    return filters


def parse_limits(values: Sequence[str], name: str, sources: Sequence[str]) -> dict[str, float]:
    """Parse limits `NAME=X` and `X`; return {source name: limit}, where key "" is the limit of all other sources.

    name: name of the filter, such as "max-score"    sources: as in `build_score_filters`
    Raises UsageError for a limit that is not a number or refers to an unknown source.
    """
    limits: dict[str, float] = {}
    field = f"`{name.replace('-', '_')}`"
    for text in values:
        source, _, number = text.rpartition("=")
        try:
            limits[source] = float(number)
        except ValueError:
            raise UsageError(f"{field}: expected a number or NAME=NUMBER, got '{text}'") from None
        if isnan(limits[source]):
            raise UsageError(f"{field}: expected a number, got NaN")
        if source and source not in sources:
            raise UsageError(f"{field}: unknown source '{source}'; choose from {', '.join(sources)}")
    return limits


def reject_by_rank(pool: CandidatePool, first: int, *, only_examples: bool) -> None:
    """Reject candidates with a rank before `first` (1-based) in any source; they are removed from all sources.

    only_examples: raise UsageError for candidates without a rank, because all sources are training examples
    """
    if only_examples and not all(map(pool.has_rank, pool.all_candidates())):
        raise UsageError(
            f"`from_rank` requires ranks, but the negatives of query '{pool.query_id}' are shuffled; mine the original run"
        )
    early = [candidate for candidate in pool.all_candidates() if candidate.rank < first and pool.has_rank(candidate)]
    pool.reject(Rejection(candidate, "rank", candidate.rank, first) for candidate in early)


def reject_by_score(pool: CandidatePool, name: str, limits: Mapping[str, float]) -> None:
    """Reject candidates with a score above (name "max-score") or below ("min-score") the limit of their source.

    A passage above "max-score" in one source is removed from all sources. A passage below "min-score" in one source is
    removed from this source only.
    limits: limit by source name; key "": all other sources
    """
    is_min = name == "min-score"
    rejections: list[Rejection] = []
    for candidate in pool.all_candidates():
        limit, score = limits.get(candidate.source, limits.get("")), candidate.score
        if limit is not None and score is not None and (score < limit if is_min else score > limit):
            rejections.append(Rejection(candidate, name, score, limit))
    if is_min:
        low = {rejection.candidate for rejection in rejections}
        for source, candidates in pool.candidates.items():
            pool.candidates[source] = [candidate for candidate in candidates if candidate not in low]
        remaining = {candidate.id for candidate in pool.all_candidates()}
        rejections = [rejection for rejection in rejections if rejection.candidate.id not in remaining]
    pool.reject(rejections)


def reject_near_positive(
    pool: CandidatePool, name: str, limits: Mapping[str, float], *, keep_unretrieved: bool = False
) -> None:
    """Reject candidates whose score is above a maximum that depends on the positive's score in the same source.

    Of several positives, the one with the lowest score counts.
    name: "margin": the maximum is the positive's score minus the limit; "max-share": the positive's score times the limit
    limits: limit by source name; key "": all other sources
    keep_unretrieved: keep the candidates of a source that did not retrieve the positive; by default they are rejected,
        because they all rank above the positive
    """
    compute_limit = compute_margin_limit if name == "margin" else compute_share_limit
    rejections: list[Rejection] = []
    for source, candidates in pool.candidates.items():
        parameter = limits.get(source, limits.get(""))
        if parameter is None:
            continue
        reference = pool.find_reference_score(source)
        scored = [(candidate, candidate.score) for candidate in candidates if candidate.score is not None]
        if reference is not None:
            limit = compute_limit(reference, parameter)
            rejections += [Rejection(candidate, name, score, limit) for candidate, score in scored if score > limit]
        elif not keep_unretrieved:
            rejections += [Rejection(candidate, UNRETRIEVED, score, None) for candidate, score in scored]
    pool.reject(rejections)


def compute_margin_limit(reference: float, margin: float) -> float:
    """Return the maximum score of a negative: the positive's score minus the margin."""
    return reference - margin


def compute_share_limit(reference: float, share: float) -> float:
    """Return the maximum score of a negative, p - (1 - share) * |p|; this is share * p for a positive's score p >= 0.

    reference: the positive's score p; the absolute value keeps the maximum below a negative p
    """
    return reference - (1 - share) * abs(reference)


class ContentFilter:
    """Base class of filters that compute a value of each passage, and reject values at or above a limit.

    limit: lowest rejected value; None: reject nothing
    Subclasses set `name`, and implement `measure_passages`, which stores values with `CandidatePool.set_value`.
    """

    name: str

    def __init__(self, limit: float | None = None) -> None:
        self.limit = limit

    def measure_passages(self, pools: Sequence[CandidatePool], ids: Sequence[Sequence[str]]) -> None:
        """Compute the filter's value of passages and store it in the pool of their query. ids: passage ids for each pool"""
        raise NotImplementedError

    def get_limit(self, pool: CandidatePool) -> float | None:
        """Return the limit of values for the query of `pool`; None: reject nothing."""
        return self.limit

    def is_rejected(self, value: float, limit: float) -> bool:
        """Return whether a passage with this value is rejected: by default, a value of at least `limit`."""
        return value >= limit

    def find_rejections(
        self, pools: Sequence[CandidatePool], candidates: Sequence[Sequence[Candidate]]
    ) -> Iterator[list[Rejection]]:
        """Compute and store the value of each candidate; yield the rejections of each pool, in the order of its candidates.

        candidates: candidates to check, for each pool
        """
        self.measure_passages(pools, [[candidate.id for candidate in passages] for passages in candidates])
        for pool, passages in zip(pools, candidates, strict=True):
            rejections: list[Rejection] = []
            if passages and (limit := self.get_limit(pool)) is not None:
                values = [pool.values[candidate.id][self.name] for candidate in passages]
                rejections = [
                    Rejection(candidate, self.name, value, limit)
                    for candidate, value in zip(passages, values, strict=True)
                    if self.is_rejected(value, limit)
                ]
            yield rejections
