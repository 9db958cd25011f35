"""Filters that go by what a source says: rank and score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from drtk.errors import UsageError
from drtk.retrieval.mining.pool import Drop, Pool, Sighting
from drtk.settings.mining import MineSettings

Filter = Callable[[Sequence[Pool]], None]
UNRETRIEVED = "unretrieved"  # what --margin and --max-share drop where there is no positive to go by
PERCENT = 2.0  # a share above it is meant in per cent
PLACE_FILTERS = ("rank", "max-score", "min-score", "margin", "max-share", UNRETRIEVED)


def place_filters(settings: MineSettings, sources: Sequence[str] | None) -> list[Filter]:
    """The filters by rank and score that `settings` ask for, in the order in which they are applied.

    sources: names that limits may use, none of them where there are examples alone; None: anything may be one
    Raises UsageError for a limit that cannot be read. The filter by rank raises it for lists that are in no order, where no
    source has ranks.
    """
    found: list[Filter] = []
    if settings.from_rank > 1:
        found.append(_ranks(settings.from_rank, examples_alone=sources is not None and not sources))
    if settings.max_score:
        found.append(_scores("max-score", limits_of(settings.max_score, "--max-score", sources)))
    if settings.min_score:
        found.append(_scores("min-score", limits_of(settings.min_score, "--min-score", sources)))
    for name, given in (("margin", settings.margin), ("max-share", settings.max_share)):
        if given:
            wanted = limits_of(given, f"--{name}", sources)
            if name == "max-share" and min(wanted.values()) < 0:
                raise UsageError("--max-share: must be at least 0")
            if name == "max-share" and max(wanted.values()) > PERCENT:
                raise UsageError(f"--max-share {max(wanted.values()):g}: a share of 1 is all of it; 95% is 0.95")
            found.append(_beside_the_positive(name, wanted, keep=settings.unretrieved == "keep"))
    return found


def place_flags(settings: MineSettings) -> list[str]:
    """The flags of those filters, as they were given."""
    given = {
        "--from-rank": settings.from_rank > 1,
        "--max-score": settings.max_score,
        "--min-score": settings.min_score,
        "--margin": settings.margin,
        "--max-share": settings.max_share,
    }
    return [flag for flag, is_given in given.items() if is_given]


def limits_of(given: Sequence[str], flag: str, sources: Sequence[str] | None) -> dict[str, float]:
    """Limits by source from `X` (for all, under "") and `NAME=X`."""
    limits: dict[str, float] = {}
    for text in given:
        name, _, number = text.rpartition("=")
        try:
            limits[name] = float(number)
        except ValueError:
            raise UsageError(f"{flag}: '{text}' is neither a number nor NAME=NUMBER") from None
        if limits[name] != limits[name]:
            raise UsageError(f"{flag}: is not a number")
        if name and sources is not None and name not in sources:
            raise UsageError(f"{flag}: there is no source '{name}' among {', '.join(sources)}")
    return limits


def margin_limit(reference: float, margin: float) -> float:
    """The highest score of a negative: the positive's less the margin."""
    return reference - margin


def share_limit(reference: float, share: float) -> float:
    """The highest score of a negative: a share of the positive's, below it by as much where that is negative."""
    return reference - (1 - share) * abs(reference)


def _ranks(first: int, *, examples_alone: bool) -> Filter:
    def drop(pools: Sequence[Pool]) -> None:
        for pool in pools:
            if examples_alone and not all(map(pool.has_rank, _all(pool))):
                raise UsageError(
                    f"--from-rank goes by ranks, which examples lack: the negatives of query '{pool.query_id}' are in no "
                    "order; name the run they were drawn from"
                )
            early = (one for one in _all(pool) if one.rank < first and pool.has_rank(one))
            pool.drop(_first_of(Drop(one, "rank", one.rank, first) for one in early))

    return drop


def _scores(name: str, limits: Mapping[str, float]) -> Filter:
    """Above a limit in one source is out for all; below a limit is out only where no source has better to say."""
    low = name == "min-score"

    def drop(pools: Sequence[Pool]) -> None:
        for pool in pools:
            beyond = []
            for one in _all(pool):
                limit = limits.get(one.source, limits.get(""))
                if limit is not None and one.score is not None and (one.score < limit if low else one.score > limit):
                    beyond.append(Drop(one, name, one.score, limit))
            if low:
                places = {(drop.sighting.id, drop.sighting.source) for drop in beyond}
                for source, found in pool.candidates.items():
                    pool.candidates[source] = [one for one in found if (one.id, source) not in places]
                left = {one.id for one in _all(pool)}
                beyond = [drop for drop in beyond if drop.sighting.id not in left]
            pool.drop(_first_of(beyond))

    return drop


def _beside_the_positive(name: str, wanted: Mapping[str, float], *, keep: bool) -> Filter:
    limit_of = margin_limit if name == "margin" else share_limit

    def drop(pools: Sequence[Pool]) -> None:
        for pool in pools:
            drops: list[Drop] = []
            for source, found in pool.candidates.items():
                asked = wanted.get(source, wanted.get(""))
                if asked is None:
                    continue
                reference = pool.reference_score(source)
                if reference is not None:
                    limit = limit_of(reference, asked)
                    drops += [
                        Drop(one, name, one.score, limit)
                        for one in found
                        if one.score is not None and one.score > limit
                    ]
                elif not keep:
                    # The positive is below all that was retrieved, so all that was retrieved is above the limit.
                    drops += [Drop(one, UNRETRIEVED, one.score, None) for one in found if one.score is not None]
            pool.drop(_first_of(drops))

    return drop


def _all(pool: Pool) -> Iterable[Sighting]:
    return (one for found in pool.candidates.values() for one in found)


def _first_of(drops: Iterable[Drop]) -> dict[str, Drop]:
    found: dict[str, Drop] = {}
    for drop in drops:
        found.setdefault(drop.sighting.id, drop)
    return found
