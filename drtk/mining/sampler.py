"""Turn candidates into training examples: filter, check, sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from drtk.data.ids import CorpusIds, document_id
from drtk.mining.filters import Filter, Texts
from drtk.mining.policies import Policy
from drtk.mining.pool import Asked, Drop, Pool, Ranked, Sighting
from drtk.records import Example

RANDOM = "random"  # the source of negatives that no source gave
WITHOUT_NEGATIVES, WITHOUT_POSITIVES, WITHOUT_ANSWERS = "without_negatives", "without_positives", "without_answers"
LEFT_OUT = (WITHOUT_ANSWERS, WITHOUT_POSITIVES, WITHOUT_NEGATIVES)  # why a query makes no example
CE = "ce"  # the mark that becomes an example's score


@dataclass(frozen=True)
class Miner:
    """Makes pools, draws from them, and makes examples. Draws depend on the seed and the query's id alone.

    corpus: where random passages come from; without it none are added. by_source: judgements name documents.
    counts: what was left out, and how often. rescored: scores that examples bring along are not taken, others are made.
    """

    policy: Policy
    seed: int
    rel: int = 1
    by_source: bool = False
    corpus: CorpusIds | None = None
    counts: dict[str, int] = field(default_factory=dict)
    rescored: bool = False

    def pool(self, asked: Asked, grades: Mapping[str, int]) -> Pool:
        """A query's positives, and everything else within the policy's depth as candidates."""
        relevant = self.relevant(grades)
        named = self._passages_of(relevant, asked.found.values()) if self.by_source else relevant
        positives = list(dict.fromkeys((*named, *asked.positives)))
        wanted, of = self._excluded(relevant, positives)
        candidates = {
            source: [
                Sighting(id, source, rank, score)
                for rank, (id, score) in enumerate(
                    zip(
                        ranked.ids[: self.policy.depth],
                        ranked.scores[: self.policy.depth] or (None,) * len(ranked.ids[: self.policy.depth]),
                        strict=True,
                    ),
                    start=1,
                )
                if of(id) not in wanted and id not in wanted
            ]
            for source, ranked in asked.found.items()
        }
        pool = Pool(asked, positives, len(positives), candidates)
        if not self.rescored:
            for id, score in asked.ce.items():
                pool.mark(id, CE, score)
        pool.seen = len({one.id for found in candidates.values() for one in found})
        return pool

    def relevant(self, grades: Mapping[str, int]) -> list[str]:
        """What judgements call relevant, the highest grade first."""
        return sorted((id for id in grades if grades[id] >= self.rel), key=grades.__getitem__, reverse=True)

    def _excluded(self, relevant: Iterable[str], positives: Iterable[str]) -> tuple[set[str], Callable[[str], str]]:
        """What no negative may be, and what a passage's id is looked up by: itself, or its document."""
        of: Callable[[str], str] = (self.corpus or document_id) if self.by_source else _itself
        return {*relevant, *positives}, of

    def draw(self, pool: Pool) -> None:
        """Choose the negatives among the candidates that are left."""
        pool.kept = self.policy.choose(pool.candidates, self.policy.keep, Random(f"{self.seed}\0{pool.query_id}"))

    def fill(
        self, pool: Pool, grades: Mapping[str, int], refused: Iterable[str] = (), *, round: int = 0
    ) -> list[Sighting]:
        """Random passages that a query is short of; fewer where the corpus ends.

        None is positive, `refused`, or among what was retrieved within the depth: a candidate that was not drawn would come
        back without its rank and score, which tell whether it is suspicious.
        """
        number = self.policy.floor - len(pool.kept)
        if number <= 0 or self.corpus is None:
            return []
        wanted, of = self._excluded(self.relevant(grades), pool.positives)
        taken = {one.id for one in pool.kept} | set(refused) | pool.dropped.keys() | wanted
        taken |= {one.id for found in pool.candidates.values() for one in found}
        rng = Random(f"{self.seed}\0{pool.query_id}\0fill" + (f"\0{round}" if round else ""))
        ids = self.corpus.ids
        found: dict[str, Sighting] = {}
        looks = 0  # they end where listing would have cost as much: one document may own most of the corpus
        if len(ids) >= 4 * (number + len(taken)):  # otherwise it would mostly hit what is taken
            while len(found) < number and looks < number + len(ids):
                looks += 1
                id = ids[rng.randrange(len(ids))]
                if id not in taken and of(id) not in wanted:
                    found[id] = Sighting(id, RANDOM, 0, None)
        if len(found) < number:
            free = [id for id in ids if id not in taken and id not in found and of(id) not in wanted]
            drawn = rng.sample(free, min(number - len(found), len(free)))
            found |= {id: Sighting(id, RANDOM, 0, None) for id in drawn}
        return list(found.values())

    def example(self, pool: Pool) -> Example | None:
        """The example of a pool, or None, counted, where it is left out or has no negatives."""
        if not pool.left_out and not pool.kept:
            pool.left_out = WITHOUT_NEGATIVES
        if pool.left_out:
            self.counts[pool.left_out] = self.counts.get(pool.left_out, 0) + 1
            return None
        ids, sources = tuple(one.id for one in pool.kept), [one.source for one in pool.kept]
        scores = None
        if all(CE in pool.marks.get(id, {}) for id in (*pool.positives, *ids)):
            scores = {
                "positives": [pool.marks[id][CE] for id in pool.positives],
                "negatives": [pool.marks[id][CE] for id in ids],
            }
        return Example(
            pool.query_id, tuple(pool.positives), ids, scores, {"negatives": sources}, dict(pool.asked.extra)
        )

    def _passages_of(self, documents: Sequence[str], rankings: Iterable[Ranked]) -> list[str]:
        """The best-ranked passage of each document, in the first source that has one; where none has, its only one."""
        of = self.corpus or document_id
        best: dict[str, str] = {}
        wanted = set(documents)
        for ranking in rankings:
            for id in ranking.ids:
                document = of(id)
                if document in wanted:
                    best.setdefault(document, id)
        positives = []
        for document in documents:
            passage = best.get(document) or (self.corpus.only_passage(document) if self.corpus else None)
            if passage is None:
                self.counts["positives_not_found"] = self.counts.get("positives_not_found", 0) + 1
            else:
                positives.append(passage)
        return positives


def _itself(id: str) -> str:
    return id


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
