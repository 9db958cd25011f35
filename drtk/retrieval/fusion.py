"""Fuse several rankings into one with strictly falling scores.

A method takes the rankings of one query, one of each run (empty if a run has none), and returns pairs (id, score).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
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
    """A fusion method, as registered in FUSIONS."""

    def __call__(self, rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking: ...


def reciprocal_rank(rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking:
    """Return the sum over the runs of weight / (k + rank), rank from 1; a run that lacks a document adds nothing."""
    scores: dict[str, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for rank, (id, _) in enumerate(ranking, start=1):
            scores[id] = scores.get(id, 0.0) + weight / (settings.rrf_k + rank)
    return list(scores.items())


def weighted_sum(rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking:
    """Return the weighted sum of normalized scores over the union of the runs; a missing score is the run's lowest."""
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
    """Return the weighted sum of unnormalized scores; weights 1 and 1.1 are DPR's for BM25 and dense scores (methods: 7.9)."""
    return weighted_sum(rankings, weights, settings=replace(settings, normalize="none"))


def zscore_sum(rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking:
    """Return the weighted sum of z-scores, as for ensembles of re-rankers (methods: section 6.9)."""
    return weighted_sum(rankings, weights, settings=replace(settings, normalize="zscore"))


def round_robin(rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking:
    """Take documents rank by rank from each run in turn, each once; the score is 1 / rank. Weights are ignored."""
    taken: dict[str, None] = {}
    for rank in range(max(map(len, rankings), default=0)):
        for ranking in rankings:
            if rank < len(ranking):
                taken.setdefault(ranking[rank][0])
    return [(id, 1 / rank) for rank, id in enumerate(taken, start=1)]


def _minmax(scores: Sequence[float]) -> list[float]:
    """Scale scores to 0 to 1; equal scores all become 1, above a missing document's."""
    low, high = min(scores), max(scores)
    return [(score - low) / (high - low) if high > low else 1.0 for score in scores]


def _zscore(scores: Sequence[float]) -> list[float]:
    """Return z-scores with the population standard deviation; equal scores all become 0."""
    mean, spread = fmean(scores), pstdev(scores)
    return [(score - mean) / spread if spread > 0 else 0.0 for score in scores]


_NORMALIZE: dict[str, Callable[[Sequence[float]], Sequence[float]]] = {
    "none": lambda scores: scores,
    "minmax": _minmax,
    "zscore": _zscore,
}


def parse_weights(text: str, runs: int) -> list[float]:
    """Parse weights such as `1,1.1`; an empty text gives 1 for each run. Raises UsageError unless there is one per run."""
    if not text:
        return [1.0] * runs
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"`weights`: '{text}' is not a list of numbers") from None
    if len(weights) != runs:
        raise UsageError(f"`weights`: {len(weights)} weights for {runs} runs")
    if not all(-inf < weight < inf for weight in weights):
        raise UsageError(f"`weights`: '{text}' is not finite")
    return weights


def fuse(
    rankings: Sequence[Ranking],
    weights: Sequence[float],
    settings: FuseSettings,
    method: Fusion,
    *,
    scored: Sequence[int | None] | None = None,
) -> Ranking:
    """Return the fused ranking of one query, cut to `settings.top`, with strictly falling scores.

    scored: number of hits of each ranking that a model scored (None: all). Hits below are fused as if the ranking lacked
            them; documents that no model scored follow at the end, in the order of the first ranking that has them.
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
    """Append documents without a score to a ranking; each gets a score 1 below the one before it.

    Scores fall strictly, in single precision too.
    """
    floor = head[-1][1] if head else 0.0
    tail = [(id, floor - place) for place, id in enumerate(rest, start=1)]
    return strictly_falling(head + tail) if tail else head


def strictly_falling(scored: Ranking) -> Ranking:
    """Sort by score, then by descending id, and break ties by the smallest difference in single precision.

    Sorting the result again, as trec_eval does in single precision, gives the same order.
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
    """Return the next lower number in single precision."""
    (bits,) = struct.unpack("<i", struct.pack("<f", number))
    if number == 0:
        return -float(struct.unpack("<f", struct.pack("<i", 1))[0])
    return float(struct.unpack("<f", struct.pack("<i", bits - 1 if number > 0 else bits + 1))[0])
