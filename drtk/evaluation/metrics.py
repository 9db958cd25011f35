"""Compute measures of one query from the ranks of judged documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log2

RECALL_LEVELS = tuple(level / 10 for level in range(11))


@dataclass(frozen=True)
class JudgedRanks:
    """Judged documents of a ranking: their ranks (from 1, ascending) and grades, and the length of the whole ranking.

    Documents with a grade below 0 are pooled but not judged, as in trec_eval.
    """

    ranks: Sequence[int]
    grades: Sequence[int]
    length: int

    @classmethod
    def from_ranking(cls, ids: Sequence[str], grades: Mapping[str, int]) -> JudgedRanks:
        """Return the judged documents of a ranking. ids: document ids, best first; grades: judgments of the query"""
        judged = [(rank, grades[id]) for rank, id in enumerate(ids, start=1) if id in grades]
        return cls([rank for rank, _ in judged], [grade for _, grade in judged], len(ids))

    def truncate(self, depth: int | None) -> JudgedRanks:
        """Return the ranking truncated to its top `depth` ranks."""
        if depth is None or self.length <= depth:
            return self
        count = sum(rank <= depth for rank in self.ranks)
        return JudgedRanks(self.ranks[:count], self.grades[:count], depth)

    def remove(self, rank: int) -> JudgedRanks:
        """Return the ranking without the document at `rank`; documents below it move up."""
        pairs = [(r - (r > rank), g) for r, g in zip(self.ranks, self.grades, strict=True) if r != rank]
        return JudgedRanks([r for r, _ in pairs], [g for _, g in pairs], self.length - 1)

    def drop_unjudged(self) -> JudgedRanks:
        """Return the ranking without unjudged documents, which include those with a negative grade."""
        grades = [grade for grade in self.grades if grade >= 0]
        return JudgedRanks(range(1, len(grades) + 1), grades, len(grades))

    def find_relevant_ranks(self, rel: int, cutoff: int | None = None) -> list[int]:
        """Return the ranks of relevant documents in the top `cutoff`."""
        last = self.length if cutoff is None else cutoff
        return [rank for rank, grade in zip(self.ranks, self.grades, strict=True) if grade >= rel and rank <= last]


# Arguments of the measures: the ranks of judged documents (`ranking`), the grades of all judged documents of the query
# (`judged_grades`), the minimum relevance grade (`rel`) and the number of ranks that count (`cutoff`; None: all).


def reciprocal_rank(
    ranking: JudgedRanks, judged_grades: Sequence[int], *, rel: int = 1, cutoff: int | None = None
) -> float:
    """Return 1 / rank of the first relevant document, or 0 if none is in the top `cutoff` (RR, MRR)."""
    ranks = ranking.find_relevant_ranks(rel, cutoff)
    return 1 / ranks[0] if ranks else 0.0


def recall(ranking: JudgedRanks, judged_grades: Sequence[int], *, rel: int = 1, cutoff: int | None = None) -> float:
    """Return the share of the relevant documents that is in the top `cutoff`; 0 without relevant documents."""
    total = count_relevant(ranking, judged_grades, rel=rel)
    return len(ranking.find_relevant_ranks(rel, cutoff)) / total if total else 0.0


def precision(ranking: JudgedRanks, judged_grades: Sequence[int], *, rel: int = 1, cutoff: int) -> float:
    """Return the number of relevant documents in the top `cutoff`, divided by `cutoff`."""
    return len(ranking.find_relevant_ranks(rel, cutoff)) / cutoff


def success(ranking: JudgedRanks, judged_grades: Sequence[int], *, rel: int = 1, cutoff: int) -> float:
    """Return 1 if a relevant document is in the top `cutoff`, else 0 (hit rate)."""
    return float(bool(ranking.find_relevant_ranks(rel, cutoff)))


def average_precision(
    ranking: JudgedRanks, judged_grades: Sequence[int], *, rel: int = 1, cutoff: int | None = None
) -> float:
    """Return the sum of precisions at the ranks of relevant documents, divided by R, the number of relevant documents.

    The sum is over the top `cutoff`. The value is 0 if R is 0.
    """
    total = count_relevant(ranking, judged_grades, rel=rel)
    ranks = ranking.find_relevant_ranks(rel, cutoff)
    return sum(number / rank for number, rank in enumerate(ranks, start=1)) / total if total else 0.0


def r_precision(ranking: JudgedRanks, judged_grades: Sequence[int], *, rel: int = 1) -> float:
    """Return precision at rank R, the number of relevant documents; 0 if R is 0."""
    total = int(count_relevant(ranking, judged_grades, rel=rel))
    return len(ranking.find_relevant_ranks(rel, total)) / total if total else 0.0


def ndcg(
    ranking: JudgedRanks,
    judged_grades: Sequence[int],
    *,
    rel: int = 1,
    cutoff: int | None = None,
    gains: Mapping[int, float] | None = None,
    exponential: bool = False,
) -> float:
    """Return nDCG, the discounted gain divided by the discounted gain of the ideal ranking; `rel` is ignored.

    The gain of a grade is `gains[grade]`, else 2^grade - 1 if `exponential`, else the grade; negative grades have gain 0.
    The discount is log2(rank + 1). The value is 0 if the ideal ranking has no gain.
    """
    special = gains or {}

    def compute_gain(grade: int) -> float:
        if grade < 0:
            return 0.0
        return special.get(grade, 2.0**grade - 1 if exponential else float(grade))

    ideal_gains = sorted(map(compute_gain, judged_grades), reverse=True)[:cutoff]
    ideal = sum(value / log2(rank + 1) for rank, value in enumerate(ideal_gains, start=1))
    last = ranking.length if cutoff is None else cutoff
    pairs = zip(ranking.ranks, ranking.grades, strict=True)
    return (
        sum(compute_gain(grade) / log2(rank + 1) for rank, grade in pairs if rank <= last) / ideal if ideal > 0 else 0.0
    )


RANK_MEASURES: dict[str, Callable[..., float]] = {  # by trec_eval's name, without the cut-off
    "recip_rank": reciprocal_rank,
    "recall": recall,
    "P": precision,
    "success": success,
    "map": average_precision,
    "map_cut": average_precision,
    "Rprec": r_precision,
    "ndcg": ndcg,
    "ndcg_cut": ndcg,
    "num_ret": lambda ranking, judged_grades, rel: float(ranking.length),
    "num_rel_ret": lambda ranking, judged_grades, rel: float(len(ranking.find_relevant_ranks(rel))),
}


def compute_unjudged_share(ranking: JudgedRanks, judged_grades: Sequence[int], *, rel: int = 1, cutoff: int) -> float:
    """Return the share of unjudged documents in the top `cutoff` (trec_eval's unj); missing ranks count as judged."""
    judged = ranking.find_relevant_ranks(0, cutoff)  # of any grade but negative ones
    return (min(cutoff, ranking.length) - len(judged)) / cutoff


def count_relevant(ranking: JudgedRanks, judged_grades: Sequence[int], *, rel: int = 1) -> float:
    """Return the number of relevant documents of the query."""
    return float(sum(grade >= rel for grade in judged_grades))


def precision_at_recall(ranking: JudgedRanks, judged_grades: Sequence[int], *, rel: int = 1, recall: float) -> float:
    """Return interpolated precision, the highest precision at any rank with a recall of at least `recall`.

    `recall` times the number of relevant documents is rounded half up, as in trec_eval 10 (trec_eval 9 rounds up).
    """
    needed = int(recall * sum(grade >= rel for grade in judged_grades) + 0.5)
    ranks = ranking.find_relevant_ranks(rel)
    return max((count / rank for count, rank in enumerate(ranks, start=1) if count >= needed), default=0.0)


def eleven_point_average(
    ranking: JudgedRanks, judged_grades: Sequence[int], *, rel: int = 1, levels: Sequence[float] = RECALL_LEVELS
) -> float:
    """Return interpolated precision averaged over recall levels."""
    return sum(precision_at_recall(ranking, judged_grades, rel=rel, recall=level) for level in levels) / len(levels)


def rank_biased_precision(ranking: JudgedRanks, judged_grades: Sequence[int], *, rel: int = 1, p: float = 0.9) -> float:
    """Return (1 - p) times the sum of gain * p^(rank - 1) (Moffat and Zobel 2008), as trec_eval does; `rel` is ignored.

    Gains are grades, divided by the query's highest grade if that is above 1.
    """
    scale = max(1, *judged_grades) if judged_grades else 1
    pairs = zip(ranking.ranks, ranking.grades, strict=True)
    return (1 - p) * sum(grade / scale * p ** (rank - 1) for rank, grade in pairs if grade > 0)


def rank_biased_residual(ranking: JudgedRanks, judged_grades: Sequence[int], *, rel: int = 1, p: float = 0.9) -> float:
    """Return the increase of rank-biased precision if all unjudged documents, also those not retrieved, were relevant.

    0 if all retrieved documents are judged, as in trec_eval.
    """
    judged = set(ranking.find_relevant_ranks(0))
    unjudged = [rank for rank in range(1, ranking.length + 1) if rank not in judged]
    return p**ranking.length + (1 - p) * sum(p ** (rank - 1) for rank in unjudged) if unjudged else 0.0


def utility(
    ranking: JudgedRanks,
    judged_grades: Sequence[int],
    *,
    rel: int = 1,
    weights: tuple[float, float, float, float] = (1.0, -1.0, 0.0, 0.0),
) -> float:
    """Return the weighted sum of four counts: retrieved relevant and non-relevant, missed relevant and non-relevant documents.

    The number of missed non-relevant documents assumes a collection of size 0, as in trec_eval.
    """
    retrieved = len(ranking.find_relevant_ranks(rel))
    missed = sum(grade >= rel for grade in judged_grades) - retrieved
    counts = retrieved, ranking.length - retrieved, missed, -ranking.length - missed
    return sum(weight * count for weight, count in zip(weights, counts, strict=True))


def relevance_string(ranking: JudgedRanks, judged_grades: Sequence[int], *, rel: int = 1, cutoff: int = 10) -> str:
    """Return a character per rank of the top `cutoff`, in single quotes.

    0-9: grade; '>': grade above 9; '-': unjudged; '.': negative grade (in the pool, but not judged).
    """
    characters = ["-"] * min(cutoff, ranking.length)
    for rank, grade in zip(ranking.ranks, ranking.grades, strict=True):
        if rank <= cutoff:
            characters[rank - 1] = "." if grade < 0 else str(grade) if grade <= 9 else ">"
    return f"'{''.join(characters)}'"
