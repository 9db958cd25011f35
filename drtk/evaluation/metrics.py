"""Measures of one ranking that pytrec_eval lacks, or has in an older form: plain functions of grades.

`grades` are those of the retrieved documents, best first, None where the judgements do not name a document; `known`
are all grades of the query. A document is relevant from grade `rel` on. Negative grades mean "in the pool, not judged".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
