"""What a window of pools goes through: filters by place, checks by content, the draw, random passages, and a last look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from drtk.retrieval.mining.checks import Filter
from drtk.retrieval.mining.miner import WITHOUT_POSITIVES, Miner
from drtk.retrieval.mining.pool import Drop, Pool, Sighting
from drtk.retrieval.mining.texts import Texts

ROUNDS = 10  # how often random passages that a check refuses are drawn anew


class Check(Protocol):
    """Measures passages, notes what it finds as marks, and says what is too much."""

    name: str

    def measure(self, pools: Sequence[Pool], wanted: Sequence[Sequence[str]]) -> None: ...

    def limit(self, pool: Pool) -> float | None: ...

    def is_beyond(self, value: float, limit: float) -> bool: ...


@dataclass
class Stages:
    """Brings pools to their negatives.

    promote: measured first; what it finds becomes a positive. checks: drop what is beyond their limit. looks: measure what
    was kept, and drop nothing. texts: forgotten after each window.
    """

    miner: Miner
    filters: Sequence[Filter] = ()
    promote: Check | None = None
    checks: Sequence[Check] = ()
    looks: Sequence[Check] = ()
    texts: Texts | None = None
    _rivals: list[Check] = field(init=False)

    def __post_init__(self) -> None:
        self._rivals = ([self.promote] if self.promote else []) + list(self.checks)

    def __call__(self, pools: Sequence[Pool], grades_of: Callable[[str], Mapping[str, int]]) -> None:
        """Choose the negatives of each pool, or say why it is left out."""
        if self.promote is not None:
            self._promote([pool for pool in pools if not pool.left_out], self.promote)
        for pool in pools:
            if not pool.left_out and not pool.positives:
                pool.left_out = WITHOUT_POSITIVES
        going = [pool for pool in pools if not pool.left_out]
        for filter in self.filters:
            filter(going)
        for check in self.checks:
            self._drop(going, check)
        for pool in going:
            self.miner.draw(pool)
        self._fill(going, grades_of)
        for check in self.looks:
            check.measure(going, [[one.id for one in pool.kept] for pool in going])
        if self.texts is not None:
            self.texts.forget()

    def _promote(self, pools: Sequence[Pool], check: Check) -> None:
        check.measure(pools, [[one.id for one in pool.sightings()] for pool in pools])
        for pool in pools:
            limit = check.limit(pool)
            if limit is not None:
                found = [one.id for one in pool.sightings() if check.is_beyond(pool.marks[one.id][check.name], limit)]
                pool.promote(found)

    def _drop(self, pools: Sequence[Pool], check: Check) -> None:
        check.measure(pools, [[one.id for one in pool.sightings()] for pool in pools])
        for pool in pools:
            pool.drop(_beyond(pool, list(pool.sightings()), check))

    def _fill(self, pools: Sequence[Pool], grades_of: Callable[[str], Mapping[str, int]]) -> None:
        """Fill up with random passages, which the checks judge too; those they refuse are noted and drawn anew."""
        waiting = list(pools)
        for number in range(ROUNDS if self._rivals else 1):
            drawn = [self.miner.fill(pool, grades_of(pool.query_id), pool.refused, round=number) for pool in waiting]
            short = []
            some = [(pool, found) for pool, found in zip(waiting, drawn, strict=True) if found]
            for check in self._rivals:
                check.measure([pool for pool, _ in some], [[one.id for one in found] for _, found in some])
            for pool, found in some:
                lost: dict[str, Drop] = {}
                for check in self._rivals:
                    lost = _beyond(pool, found, check) | lost  # by the first check that refuses it
                pool.kept = [*pool.kept, *(one for one in found if one.id not in lost)]
                if lost:
                    pool.refused |= lost
                    short.append(pool)
            waiting = short
            if not waiting:
                break


def _beyond(pool: Pool, sightings: Sequence[Sighting], check: Check) -> dict[str, Drop]:
    limit = check.limit(pool) if sightings else None
    if limit is None:
        return {}
    values = ((one, pool.marks[one.id][check.name]) for one in sightings)
    return {one.id: Drop(one, check.name, value, limit) for one, value in values if check.is_beyond(value, limit)}
