"""Measures that pytrec_eval lacks, and trec_eval measures from the ranks of judged documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log2

Grades = Sequence[int | None]
RECALL_LEVELS = tuple(level / 10 for level in range(11))


def reciprocal_rank(grades: Grades, known: Sequence[int], *, rel: int = 1, cutoff: int | None = None) -> float:
    """1 / rank of the first relevant document, 0 where the first `cutoff` hold none."""
    for rank, grade in enumerate(grades[:cutoff], start=1):
        if grade is not None and grade >= rel:
            return 1 / rank
    return 0.0


def answered(grades: Grades, known: Sequence[int], *, rel: int = 1, cutoff: int) -> float:
    """1 if one of the first `cutoff` passages contains an answer (top-k answer accuracy), else 0."""
    return float(any(grade is not None and grade >= rel for grade in grades[:cutoff]))


def ndcg(
    grades: Grades,
    known: Sequence[int],
    *,
    rel: int = 1,
    cutoff: int | None = None,
    gains: Mapping[int, float] | None = None,
    exponential: bool = False,
) -> float:
    """Discounted gain over that of the best possible ranking of all judged documents; `rel` plays no part.

    The gain of a grade is `gains[grade]`, otherwise 2^grade - 1 where `exponential`, otherwise the grade; grades below
    0 gain nothing. Discount: log2(rank + 1).
    """
    special = gains or {}

    def gain(grade: int | None) -> float:
        if grade is None or grade < 0:
            return 0.0
        return special.get(grade, 2.0**grade - 1 if exponential else float(grade))

    def discounted(values: Sequence[float]) -> float:
        return sum(value / log2(rank + 1) for rank, value in enumerate(values[:cutoff], start=1))

    ideal = discounted(sorted(map(gain, known), reverse=True))
    return discounted([gain(grade) for grade in grades]) / ideal if ideal > 0 else 0.0


def unjudged(grades: Grades, known: Sequence[int], *, rel: int = 1, cutoff: int) -> float:
    """Share of `cutoff` ranks that holds an unjudged document (trec_eval's unj); missing ranks count as judged."""
    return sum(grade is None or grade < 0 for grade in grades[:cutoff]) / cutoff


def relevant(grades: Grades, known: Sequence[int], *, rel: int = 1) -> float:
    """How many relevant documents there are."""
    return float(sum(grade >= rel for grade in known))


def interpolated_precision(grades: Grades, known: Sequence[int], *, rel: int = 1, recall: float) -> float:
    """The best precision at any rank where at least `recall` of the relevant documents has been found.

    That share of R documents is recall * R, rounded half up, as in trec_eval 10 (trec_eval 9 rounds up).
    """
    needed = int(recall * sum(grade >= rel for grade in known) + 0.5)
    best, found = 0.0, 0
    for rank, grade in enumerate(grades, start=1):
        if grade is not None and grade >= rel:
            found += 1
            if found >= needed:
                best = max(best, found / rank)
    return best


def averaged_precision(
    grades: Grades, known: Sequence[int], *, rel: int = 1, levels: Sequence[float] = RECALL_LEVELS
) -> float:
    """Interpolated precision averaged over recall levels."""
    return sum(interpolated_precision(grades, known, rel=rel, recall=level) for level in levels) / len(levels)


def rank_biased_precision(grades: Grades, known: Sequence[int], *, rel: int = 1, p: float = 0.9) -> float:
    """(1 - p) times the sum of gain * p^(rank - 1) (Moffat and Zobel 2008), as trec_eval: `rel` plays no part.

    Gains are grades, divided by the query's highest grade where that is above 1.
    """
    scale = max(1, *known) if known else 1
    return (1 - p) * sum(grade / scale * p**at for at, grade in enumerate(grades) if grade is not None and grade > 0)


def rank_biased_residual(grades: Grades, known: Sequence[int], *, rel: int = 1, p: float = 0.9) -> float:
    """What rank-biased precision could still gain if all that is unjudged were relevant; 0 where nothing is unjudged."""
    places = [at for at, grade in enumerate(grades) if grade is None or grade < 0]
    return p ** len(grades) + (1 - p) * sum(p**at for at in places) if places else 0.0


def utility(
    grades: Grades,
    known: Sequence[int],
    *,
    rel: int = 1,
    weights: tuple[float, float, float, float] = (1.0, -1.0, 0.0, 0.0),
) -> float:
    """Weighted counts of relevant and other documents found, and of relevant and other documents missed.

    The last needs the size of the collection; trec_eval takes 0 unless told, and so do we.
    """
    found = sum(grade is not None and grade >= rel for grade in grades)
    wanted = sum(grade >= rel for grade in known)
    other = len(grades) - found
    a, b, c, d = weights
    return a * found + b * other + c * (wanted - found) + d * (found - len(grades) - wanted)


def relevance_string(grades: Grades, known: Sequence[int], *, rel: int = 1, cutoff: int = 10) -> str:
    """One character a rank: the grade, '>' above 9, '-' not in the pool, '.' in the pool but not judged."""

    def sign(grade: int | None) -> str:
        if grade is None:
            return "-"
        return "." if grade < 0 else str(grade) if grade <= 9 else ">"

    return f"'{''.join(map(sign, grades[:cutoff]))}'"


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
