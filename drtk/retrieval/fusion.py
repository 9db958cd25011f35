"""One ranking out of several: reciprocal ranks, weighted scores, or one in turn; scores fall strictly.

A method takes the rankings of one query, one of each run (empty where a run found nothing), and gives (id, score) in
any order, or in its own where scores fall already.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import fmean, pstdev
from typing import Protocol

from drtk.data.trec import Ranking
from drtk.errors import UsageError
from drtk.registry import Registry
from drtk.retrieval.config import FuseSettings

FUSIONS = Registry(
    "fusion method",
    {
        "rrf": ("drtk.retrieval.fusion:reciprocal_rank", "sum of 1 / (k + rank) over the runs (Cormack 2009)"),
        "weighted": ("drtk.retrieval.fusion:weighted_sum", "weighted sum of scores, a missing one being the least"),
        "linear": ("drtk.retrieval.fusion:linear_sum", "weighted sum of scores as they are (DPR: weights 1, 1.1)"),
        "zscore": ("drtk.retrieval.fusion:zscore_sum", "weighted sum of scores in standard deviations from their mean"),
        "round-robin": ("drtk.retrieval.fusion:round_robin", "one of each run in turn, in the order of the runs (GAR)"),
    },
)


class Fusion(Protocol):
    """What is registered in FUSIONS."""

    def __call__(self, rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking: ...


def reciprocal_rank(rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking:
    """Sum over the runs of weight / (k + rank), rank from 1; a document a run lacks gets nothing from it."""
    scores: dict[str, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for rank, (id, _) in enumerate(ranking, start=1):
            scores[id] = scores.get(id, 0.0) + weight / (settings.rrf_k + rank)
    return list(scores.items())


def weighted_sum(rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking:
    """Weighted sum of (normalised) scores over the union of the runs; a missing score is the run's lowest."""
    normalize = _NORMALIZE[settings.normalize]
    union = dict.fromkeys(id for ranking in rankings for id, _ in ranking)
    scores = dict.fromkeys(union, 0.0)
    for ranking, weight in zip(rankings, weights, strict=True):
        if not ranking:
            continue
        normal = dict(zip((id for id, _ in ranking), normalize([score for _, score in ranking]), strict=True))
        least = min(normal.values())
        for id in scores:
            scores[id] += weight * normal.get(id, least)
    return list(scores.items())


def linear_sum(rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking:
    """`weighted_sum` of the scores as they are: with weights 1 and 1.1, DPR's joining of BM25 and dense scores (methods, section 7.9)."""
    return weighted_sum(rankings, weights, settings=replace(settings, normalize="none"))


def zscore_sum(rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking:
    """`weighted_sum` of z-normalised scores, each query by itself: how ensembles of re-rankers are joined (methods, section 6.9)."""
    return weighted_sum(rankings, weights, settings=replace(settings, normalize="zscore"))


def round_robin(rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking:
    """Rank by rank, each run in turn, what has not been taken yet; the score is 1 / rank. Weights play no part."""
    taken: dict[str, None] = {}
    for rank in range(max(map(len, rankings), default=0)):
        for ranking in rankings:
            if rank < len(ranking):
                taken.setdefault(ranking[rank][0])
    return [(id, 1 / rank) for rank, id in enumerate(taken, start=1)]


def _minmax(scores: Sequence[float]) -> list[float]:
    """Scores from 0 to 1; all 1 where they are all the same, so that being found still counts for something."""
    low, high = min(scores), max(scores)
    return [(score - low) / (high - low) if high > low else 1.0 for score in scores]


def _zscore(scores: Sequence[float]) -> list[float]:
    """Scores less their mean, in standard deviations (of all, not of a sample); all 0 where they are the same."""
    middle, spread = fmean(scores), pstdev(scores)
    return [(score - middle) / spread if spread > 0 else 0.0 for score in scores]


_NORMALIZE: dict[str, Callable[[Sequence[float]], Sequence[float]]] = {
    "none": lambda scores: scores,
    "minmax": _minmax,
    "zscore": _zscore,
}


def parse_weights(text: str, runs: int) -> list[float]:
    """Weights given as `1,1.1`; all 1 where none are given. Raises UsageError where they do not fit the runs."""
    if not text:
        return [1.0] * runs
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--weights: '{text}' is not a list of numbers") from None
    if len(weights) != runs:
        raise UsageError(f"--weights: {len(weights)} weights for {runs} runs")
    if not all(-inf < weight < inf for weight in weights):
        raise UsageError(f"--weights: '{text}' is not finite")
    return weights


def fuse(
    rankings: Sequence[Ranking],
    weights: Sequence[float],
    settings: FuseSettings,
    method: Fusion,
    *,
    scored: Sequence[int | None] | None = None,
) -> Ranking:
    """The fused ranking of one query, cut to `settings.top`, its scores strictly falling.

    scored: to which rank the scores of each ranking are a model's (None: all are). What stands further down is fused as if
    the ranking lacked it; what no ranking has a score for follows below, in the order of the first that has it.
    """
    cut = [ranking[: settings.depth] for ranking in rankings]
    if scored is None:
        return strictly_falling(method(cut, weights, settings=settings))[: settings.top]
    heads = [ranking[:depth] for ranking, depth in zip(cut, scored, strict=True)]
    fused = strictly_falling(method(heads, weights, settings=settings))
    known = {id for id, _ in fused}
    rest = dict.fromkeys(id for ranking in cut for id, _ in ranking if id not in known)
    return with_rest(fused, rest)[: settings.top]


def with_rest(head: Ranking, rest: Iterable[str]) -> Ranking:
    """A ranking, and under it documents without a score: each gets 1 less than the one before, beginning below the head's least.

    Scores fall strictly, in single precision too.
    """
    floor = head[-1][1] if head else 0.0
    tail = [(id, floor - place) for place, id in enumerate(rest, start=1)]
    return strictly_falling(head + tail) if tail else head


def strictly_falling(scored: Ranking) -> Ranking:
    """Ordered by score, then by descending id, with ties undone by the least that shows in single precision.

    Whoever sorts the result again, as trec_eval does in single precision, finds the same order.
    """
    single = array("f", [score for _, score in scored])
    order = sorted(range(len(scored)), key=lambda at: (single[at], scored[at][0]), reverse=True)
    ranking: Ranking = []
    last = inf
    for at in order:
        id, score = scored[at]
        if single[at] < last:
            last = single[at]
        else:
            last = score = _below(last)
        ranking.append((id, score))
    return ranking


def _below(number: float) -> float:
    """The next lower number of single precision."""
    (bits,) = struct.unpack("<i", struct.pack("<f", number))
    if number == 0:
        return -float(struct.unpack("<f", struct.pack("<i", 1))[0])
    return float(struct.unpack("<f", struct.pack("<i", bits - 1 if number > 0 else bits + 1))[0])


def grid(runs: int, step: float) -> Iterator[tuple[float, ...]]:
    """Weights that add up to 1, in steps; the number of steps is what 1 / `step` rounds to."""
    steps = max(1, round(1 / step))

    def parts(left: int, of: int) -> Iterator[tuple[int, ...]]:
        if of == 1:
            yield (left,)
            return
        for first in range(left + 1):
            for rest in parts(left - first, of - 1):
                yield (first, *rest)

    for counts in parts(steps, runs):
        yield tuple(count / steps for count in counts)


def sweep(
    runs: Sequence[Mapping[str, Ranking]],
    queries: Iterable[str],
    settings: FuseSettings,
    method: Fusion,
    score: Callable[[Mapping[str, Ranking]], float],
    *,
    scored: Sequence[int | None] | None = None,
) -> Iterator[tuple[tuple[float, ...], float]]:
    """(weights, score of the fused rankings) for every point of the grid; `score` is higher for better rankings.

    scored: as `fuse` takes it
    """
    wanted = [query for query in queries if any(query in run for run in runs)]
    for weights in grid(len(runs), settings.step):
        found = {query: [run.get(query, []) for run in runs] for query in wanted}
        yield (
            weights,
            score({query: fuse(some, weights, settings, method, scored=scored) for query, some in found.items()}),
        )
