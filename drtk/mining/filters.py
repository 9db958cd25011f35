"""Filters that reject possible false negatives by rank and score, and the base class of content filters.

Score filters compare the retrieval scores of a candidate and of the positives in one source. Content filters
(`content_filters`) read the text or vector of a passage, so they also apply to random passages.
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
ANSWER_CHECKS = "checked for answers"  # key of the counts of passages
MAX_SHARE = 2.0  # a larger share is probably a percentage


def build_score_filters(settings: MineSettings, sources: Sequence[str] | None) -> list[ScoreFilter]:
    """Return the filters by rank and score that `settings` select, in the order of application.

    sources: names of runs and indexes that a limit may refer to; None allows any name
    Raises UsageError for a limit that is not a number or refers to an unknown source.
    """
    filters: list[ScoreFilter] = []
    if settings.from_rank > 1:
        filters.append(partial(reject_by_rank, first=settings.from_rank, only_examples=sources == []))
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


def parse_limits(values: Sequence[str], name: str, sources: Sequence[str] | None) -> dict[str, float]:
    """Parse limits `NAME=X` and `X` into a dict by source name; key "" has the limit of all other sources.

    Raises the errors of `build_score_filters`.
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
        if source and sources is not None and source not in sources:
            raise UsageError(f"{field}: unknown source '{source}'; choose from {', '.join(sources)}")
    return limits


def reject_by_rank(pool: CandidatePool, first: int, *, only_examples: bool = False) -> None:
    """Reject candidates that rank above `first` in a source.

    only_examples: all sources are training examples; raise UsageError for candidates without a rank
    """
    if only_examples and not all(map(pool.has_rank, pool.all_candidates())):
        raise UsageError(
            f"`from_rank` requires ranks, but the negatives of query '{pool.query_id}' are shuffled; mine the original run"
        )
    early = [candidate for candidate in pool.all_candidates() if candidate.rank < first and pool.has_rank(candidate)]
    pool.reject(Rejection(candidate, "rank", candidate.rank, first) for candidate in early)


def reject_by_score(pool: CandidatePool, name: str, limits: Mapping[str, float]) -> None:
    """Reject candidates with a score above (name "max-score") or below ("min-score") the limit of their source.

    A passage above the limit of one source is rejected from all sources; a passage below it from this source only.
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
    """Reject candidates that score above the positive minus a margin (name "margin") or above a share of it ("max-share").

    keep_unretrieved: keep the candidates of a source that did not retrieve the positive. By default they are rejected,
            because they all rank above the positive.
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
    """Return the maximum score of a negative, a share of the positive's score: p - (1 - share) * |p|.

    The absolute value keeps the limit below p if p is negative.
    """
    return reference - (1 - share) * abs(reference)


class ContentFilter:
    """Base class of filters that measure a value of each passage, and reject passages that reach a limit.

    max_value: lowest rejected value; None rejects nothing
    Subclasses set `name`, and implement `measure`, which stores values with `CandidatePool.set_value`.
    """

    name: str

    def __init__(self, max_value: float | None = None) -> None:
        self.max_value = max_value

    def measure(self, pools: Sequence[CandidatePool], ids: Sequence[Sequence[str]]) -> None:
        """Measure passages and store the values in their pools. ids: passage ids to measure, for each pool"""
        raise NotImplementedError

    def get_limit(self, pool: CandidatePool) -> float | None:
        """Return the limit for the query of `pool`; None if nothing is rejected."""
        return self.max_value

    def is_beyond(self, value: float, limit: float) -> bool:
        """Return whether a passage with this value is rejected."""
        return value >= limit

    def find_rejections(
        self, pools: Sequence[CandidatePool], candidates: Sequence[Sequence[Candidate]]
    ) -> Iterator[list[Rejection]]:
        """Measure candidates of each pool; yield, for each pool, a rejection of each candidate beyond the limit."""
        self.measure(pools, [[candidate.id for candidate in passages] for passages in candidates])
        for pool, passages in zip(pools, candidates, strict=True):
            rejections: list[Rejection] = []
            if passages and (limit := self.get_limit(pool)) is not None:
                values = [pool.values[candidate.id][self.name] for candidate in passages]
                rejections = [
                    Rejection(candidate, self.name, value, limit)
                    for candidate, value in zip(passages, values, strict=True)
                    if self.is_beyond(value, limit)
                ]
            yield rejections
