"""trec_eval's measures from the ranks of judged documents alone: everything else in a ranking only takes up places.

Each takes the judged documents of a ranking and all grades of the query. A document is relevant from grade `rel` on.
Values are those of pytrec_eval, which wants an entry for every retrieved document.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log2


@dataclass(frozen=True)
class JudgedRanks:
    """Ranks of the judged documents, from 1 and rising, their grades, and the length of the ranking."""

    ranks: Sequence[int]
    grades: Sequence[int]
    length: int

    def cut(self, depth: int | None) -> JudgedRanks:
        """The first `depth` ranks."""
        if depth is None or self.length <= depth:
            return self
        kept = sum(rank <= depth for rank in self.ranks)
        return JudgedRanks(self.ranks[:kept], self.grades[:kept], depth)

    def without(self, rank: int) -> JudgedRanks:
        """One document less: those below it move up."""
        pairs = [(r - (r > rank), g) for r, g in zip(self.ranks, self.grades, strict=True) if r != rank]
        return JudgedRanks([r for r, _ in pairs], [g for _, g in pairs], self.length - 1)

    def dense(self) -> list[int | None]:
        """A grade or None for every rank."""
        found: list[int | None] = [None] * self.length
        for rank, grade in zip(self.ranks, self.grades, strict=True):
            found[rank - 1] = grade
        return found

    def relevant(self, rel: int) -> list[int]:
        """Ranks of relevant documents."""
        return [rank for rank, grade in zip(self.ranks, self.grades, strict=True) if grade >= rel]


Compute = Callable[[JudgedRanks, Sequence[int], int], float]


def judged_measure(key: str) -> Compute | None:
    """How a measure that pytrec_eval knows by `key` comes out of judged ranks; None where it needs more than them."""
    if key in _WHOLE:
        return _WHOLE[key]
    family, _, cutoff = key.rpartition("_")
    if family not in _CUT or not cutoff.isdecimal() or int(cutoff) < 1:
        return None
    compute, depth = _CUT[family], int(cutoff)
    return lambda found, known, rel: compute(found, known, rel, depth)


def _count(known: Sequence[int], rel: int) -> int:
    return sum(grade >= rel for grade in known)


def _found(found: JudgedRanks, rel: int, depth: int) -> int:
    return sum(rank <= depth for rank in found.relevant(rel))


def _recall(found: JudgedRanks, known: Sequence[int], rel: int, depth: int) -> float:
    wanted = _count(known, rel)
    return _found(found, rel, depth) / wanted if wanted else 0.0


def _precision(found: JudgedRanks, known: Sequence[int], rel: int, depth: int) -> float:
    return _found(found, rel, depth) / depth


def _success(found: JudgedRanks, known: Sequence[int], rel: int, depth: int) -> float:
    return float(_found(found, rel, depth) > 0)


def _ndcg(found: JudgedRanks, known: Sequence[int], rel: int, depth: int) -> float:
    gains = sorted((grade for grade in known if grade > 0), reverse=True)[:depth]
    ideal = sum(gain / log2(rank + 1) for rank, gain in enumerate(gains, start=1))
    pairs = zip(found.ranks, found.grades, strict=True)
    return sum(grade / log2(rank + 1) for rank, grade in pairs if grade > 0 and rank <= depth) / ideal if ideal else 0.0


def _average_precision(found: JudgedRanks, known: Sequence[int], rel: int, depth: int) -> float:
    wanted = _count(known, rel)
    ranks = [rank for rank in found.relevant(rel) if rank <= depth]
    return sum(number / rank for number, rank in enumerate(ranks, start=1)) / wanted if wanted else 0.0


def _reciprocal_rank(found: JudgedRanks, known: Sequence[int], rel: int) -> float:
    return next((1 / rank for rank in found.relevant(rel)), 0.0)


def _r_precision(found: JudgedRanks, known: Sequence[int], rel: int) -> float:
    wanted = _count(known, rel)
    return _found(found, rel, wanted) / wanted if wanted else 0.0


def _uncut(compute: Callable[[JudgedRanks, Sequence[int], int, int], float]) -> Compute:
    return lambda found, known, rel: compute(found, known, rel, max(found.length, len(known)))


_CUT = {
    "ndcg_cut": _ndcg,
    "recall": _recall,
    "P": _precision,
    "success": _success,
    "map_cut": _average_precision,
}
_WHOLE: dict[str, Compute] = {
    "ndcg": _uncut(_ndcg),
    "map": _uncut(_average_precision),
    "recip_rank": _reciprocal_rank,
    "Rprec": _r_precision,
    "num_ret": lambda found, known, rel: float(found.length),
    "num_rel_ret": lambda found, known, rel: float(len(found.relevant(rel))),
}
