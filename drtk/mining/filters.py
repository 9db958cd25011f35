"""Filters by rank and score, which reject candidates that may be unjudged positives, and the base class of content filters.

Score filters compare a candidate in its own source, and reject with `Pool.reject`. Content filters measure the passage
itself (`content_filters`); random passages pass through them too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isnan

from drtk.errors import UsageError
from drtk.mining.candidates import Candidate, Pool, Rejection
from drtk.mining.config import MineSettings

ScoreFilter = Callable[[Pool], None]
UNRETRIEVED = (
    "unretrieved"  # the name under which `margin` and `max_share` reject if there is no positive to compare with
)
LOOKED_UP = "looked into for answers"  # key in the counts: how many passages, and how many of them without text
MAX_SHARE = 2.0  # a larger share is probably a percentage


def build_score_filters(settings: MineSettings, sources: Sequence[str] | None) -> list[ScoreFilter]:
    """Return the filters by rank and score that `settings` select, in the order in which they are applied.

    sources: the runs and indexes, whose names limits may use; None: any name.
    Raises UsageError for a limit that is no number or names another source.
    """
    filters: list[ScoreFilter] = []
    if settings.from_rank > 1:
        filters.append(partial(reject_by_rank, first=settings.from_rank, only_examples=sources == []))
    for name, given in (("max-score", settings.max_score), ("min-score", settings.min_score)):
        if given:
            filters.append(partial(reject_by_score, name=name, limits=parse_limits(given, name, sources)))
    for name, given in (("margin", settings.margin), ("max-share", settings.max_share)):
        if given:
            limits, keep = parse_limits(given, name, sources), settings.unretrieved == "keep"
            if name == "max-share" and not all(0 <= share <= MAX_SHARE for share in limits.values()):
                raise UsageError(f"`max_share` is a share of the positive's score, 0 to {MAX_SHARE:g} (95% is 0.95)")
            filters.append(partial(reject_near_positive, name=name, limits=limits, keep_unretrieved=keep))
    return filters


def parse_limits(given: Sequence[str], name: str, sources: Sequence[str] | None) -> dict[str, float]:
    """Return limits by source from `X` (for all, under "") and `NAME=X`. Raises UsageError as `build_score_filters` does."""
    limits: dict[str, float] = {}
    option = f"`{name.replace('-', '_')}`"
    for text in given:
        source, _, number = text.rpartition("=")
        try:
            limits[source] = float(number)
        except ValueError:
            raise UsageError(f"{option}: '{text}' is neither a number nor NAME=NUMBER") from None
        if isnan(limits[source]):
            raise UsageError(f"{option}: is not a number")
        if source and sources is not None and source not in sources:
            raise UsageError(f"{option}: there is no source '{source}' among {', '.join(sources)}")
    return limits


def reject_by_rank(pool: Pool, first: int, *, only_examples: bool = False) -> None:
    """Reject ranks before `first`. Raises UsageError for shuffled lists if no source has ranks."""
    if only_examples and not all(map(pool.has_rank, pool.all_candidates())):
        raise UsageError(
            f"`from_rank` needs ranks; the negatives of query '{pool.query_id}' are in no order: name the run they are from"
        )
    early = [one for one in pool.all_candidates() if one.rank < first and pool.has_rank(one)]
    pool.reject(Rejection(one, "rank", one.rank, first) for one in early)


def reject_by_score(pool: Pool, name: str, limits: Mapping[str, float]) -> None:
    """Reject scores above (max-score) or below (min-score) the limit of their source.

    A high score in one source rejects the passage from all. A low one removes it from this source only.
    """
    is_min = name == "min-score"
    beyond: list[Rejection] = []
    for one in pool.all_candidates():
        limit = limits.get(one.source, limits.get(""))
        if limit is not None and one.score is not None and (one.score < limit if is_min else one.score > limit):
            beyond.append(Rejection(one, name, one.score, limit))
    if is_min:
        low = {rejection.candidate for rejection in beyond}
        for source, found in pool.candidates.items():
            pool.candidates[source] = [one for one in found if one not in low]
        left = {one.id for one in pool.all_candidates()}
        beyond = [rejection for rejection in beyond if rejection.candidate.id not in left]
    pool.reject(beyond)


def reject_near_positive(pool: Pool, name: str, limits: Mapping[str, float], *, keep_unretrieved: bool = False) -> None:
    """Reject scores above the positive's less a margin, or above a share of it (name "max-share").

    A source that did not retrieve the positive ranks all its hits above it, so all of them are rejected.
    """
    compute = compute_margin_limit if name == "margin" else compute_share_limit
    rejections: list[Rejection] = []
    for source, found in pool.candidates.items():
        distance = limits.get(source, limits.get(""))
        if distance is None:
            continue
        reference = pool.reference_score(source)
        if reference is not None:
            limit = compute(reference, distance)
            rejections += [
                Rejection(one, name, one.score, limit) for one in found if one.score is not None and one.score > limit
            ]
        elif not keep_unretrieved:
            rejections += [Rejection(one, UNRETRIEVED, one.score, None) for one in found if one.score is not None]
    pool.reject(rejections)


def compute_margin_limit(reference: float, margin: float) -> float:
    """Return the highest score of a negative: the positive's score less the margin."""
    return reference - margin


def compute_share_limit(reference: float, share: float) -> float:
    """Return the highest score of a negative: a share of the positive's score; below it by as much if that is negative."""
    return reference - (1 - share) * abs(reference)


class ContentFilter:
    """Measure passages, and reject those that reach `max_value` (None: reject none).

    A subclass sets `name`, and stores in `measure` the values of passages with `Pool.set_value`.
    """

    name: str

    def __init__(self, max_value: float | None = None) -> None:
        self.max_value = max_value

    def measure(self, pools: Sequence[Pool], ids: Sequence[Sequence[str]]) -> None:
        """Store the values of passages; `ids` are those of each pool."""
        raise NotImplementedError

    def limit(self, pool: Pool) -> float | None:
        """Return the limit for this query; None: nothing is rejected."""
        return self.max_value

    def is_beyond(self, value: float, limit: float) -> bool:
        """Return whether a passage with this value is rejected."""
        return value >= limit

    def find_beyond_limit(self, pool: Pool, candidates: Sequence[Candidate]) -> list[Rejection]:
        """Return rejections of the candidates, which were measured before, that are beyond the limit."""
        limit = self.limit(pool) if candidates else None
        if limit is None:
            return []
        values = ((one, pool.values[one.id][self.name]) for one in candidates)
        return [Rejection(one, self.name, value, limit) for one, value in values if self.is_beyond(value, limit)]
