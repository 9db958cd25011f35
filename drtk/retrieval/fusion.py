"""Fuse several rankings into one with strictly falling scores.

A method takes the rankings of one query, one of each run (empty if a run has none), and returns pairs (id, score).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import fmean, pstdev
from typing import Protocol

from drtk.data.runs import iter_aligned, read_scored_depth
from drtk.data.trec import Ranking, format_run_lines, iter_rankings, load_run
from drtk.errors import UsageError
from drtk.registry import Registry
from drtk.retrieval.config import FuseSettings
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.progress import log
from drtk.runtime.streams import STANDARD

WINDOW = 50  # queries written at once: each may have thousands of hits in every run

FUSIONS = Registry(
    "fusion method",
    {
        "rrf": ("drtk.retrieval.fusion:fuse_reciprocal_ranks", "sum of 1 / (k + rank) over the runs (Cormack 2009)"),
        "weighted": (
            "drtk.retrieval.fusion:sum_normalized_scores",
            "weighted sum of scores, a missing one being the least",
        ),
        "linear": ("drtk.retrieval.fusion:sum_raw_scores", "weighted sum of scores as they are (DPR: weights 1, 1.1)"),
        "zscore": (
            "drtk.retrieval.fusion:sum_zscores",
            "weighted sum of scores in standard deviations from their mean",
        ),
        "round-robin": ("drtk.retrieval.fusion:interleave", "one of each run in turn, in the order of the runs (GAR)"),
    },
)


class Fusion(Protocol):
    """A fusion method, as registered in FUSIONS."""

    def __call__(self, rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking: ...


def fuse_reciprocal_ranks(rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking:
    """Return the sum over the runs of weight / (k + rank), rank from 1; a run that lacks a document adds nothing."""
    scores: dict[str, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for rank, (id, _) in enumerate(ranking, start=1):
            scores[id] = scores.get(id, 0.0) + weight / (settings.rrf_k + rank)
    return list(scores.items())


def sum_normalized_scores(rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking:
    """Return the weighted sum of normalized scores over the union of the runs; a missing score is the run's lowest."""
    normalize = _NORMALIZE[settings.norm]
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


def sum_raw_scores(rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking:
    """Return the weighted sum of unnormalized scores; weights 1 and 1.1 are DPR's for BM25 and dense scores (docs/methods/ear.md)."""
    return sum_normalized_scores(rankings, weights, settings=replace(settings, norm="none"))


def sum_zscores(rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking:
    """Return the weighted sum of z-scores, as for ensembles of re-rankers (docs/methods/hlatr.md)."""
    return sum_normalized_scores(rankings, weights, settings=replace(settings, norm="zscore"))


def interleave(rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking:
    """Take documents rank by rank from each run in turn, each once; the score is 1 / rank. Weights are ignored."""
    taken: dict[str, None] = {}
    for rank in range(max(map(len, rankings), default=0)):
        for ranking in rankings:
            if rank < len(ranking):
                taken.setdefault(ranking[rank][0])
    return [(id, 1 / rank) for rank, id in enumerate(taken, start=1)]


def _scale_minmax(scores: Sequence[float]) -> list[float]:
    """Scale scores to 0 to 1; equal scores all become 1, above a missing document's."""
    low, high = min(scores), max(scores)
    return [(score - low) / (high - low) if high > low else 1.0 for score in scores]


def _compute_zscores(scores: Sequence[float]) -> list[float]:
    """Return z-scores with the population standard deviation; equal scores all become 0."""
    mean, spread = fmean(scores), pstdev(scores)
    return [(score - mean) / spread if spread > 0 else 0.0 for score in scores]


_NORMALIZE: dict[str, Callable[[Sequence[float]], Sequence[float]]] = {
    "none": lambda scores: scores,
    "minmax": _scale_minmax,
    "zscore": _compute_zscores,
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
        return break_ties(method(cut, weights, settings=settings))[: settings.top]
    heads = [ranking[:depth] for ranking, depth in zip(cut, scored, strict=True)]
    fused = break_ties(method(heads, weights, settings=settings))
    known = {id for id, _ in fused}
    rest = dict.fromkeys(id for ranking in cut for id, _ in ranking if id not in known)
    return append_unscored(fused, rest)[: settings.top]


FindWeights = Callable[[Sequence[Mapping[str, Ranking]], "Sequence[int | None] | None"], Sequence[float]]


def fuse_runs(
    runs: Sequence[str], settings: FuseSettings, job: FilterJob, *, find_weights: FindWeights | None = None
) -> None:
    """Write the fusion of TREC runs. The first run is read query by query, the others are held in memory.

    find_weights: returns the weights for all runs in memory and their scored depths; None to take `settings.weights`
    """
    job.record(settings, runs=list(runs))
    method = FUSIONS.load(settings.method)
    if runs.count(STANDARD) > 1:
        raise UsageError("stdin can be only one of the runs")
    # Below the scored ranks `drtk rerank` only counts down: such scores would distort the mean and the deviation.
    scored: list[int | None] | None = None
    if settings.method == "zscore" or (settings.method == "weighted" and settings.norm != "none"):
        scored = [read_scored_depth(run) for run in runs]
        for run, depth in zip(runs, scored, strict=True):
            if depth is not None:
                log(f"fuse: {run} is scored to rank {depth:,} (its manifest): its scale is that of those ranks")
        scored = scored if any(scored) else None
    others = [load_run(run, tracker=job.tracker) for run in runs[1:]]
    weights: Sequence[float]
    if find_weights is not None:
        first = load_run(runs[0], tracker=job.tracker)
        weights = find_weights([first, *others], scored)
        stream: Iterator[tuple[str, Ranking]] = iter(first.items())
    else:
        weights = parse_weights(settings.weights, len(runs))
        stream = iter_rankings(runs[0], tracker=job.tracker)
    job.counts["weights"] = list(weights)
    if scored is not None:
        job.counts["scored_depths"] = scored

    def rankings_by_query() -> Iterator[tuple[str, list[Ranking]]]:
        incomplete = 0
        for query_id, rankings in iter_aligned(stream, others):
            incomplete += not all(rankings)
            yield query_id, [ranking or [] for ranking in rankings]
        if incomplete:
            log(f"fuse: {incomplete:,} {'query is' if incomplete == 1 else 'queries are'} not in every run")

    def write_window(window: list[tuple[str, list[Ranking]]]) -> Iterator[bytes]:
        for query_id, rankings in window:
            fused = fuse(rankings, weights, settings, method, scored=scored)
            yield from format_run_lines(query_id, fused, settings.tag)

    job.window, job.no_input = WINDOW, "no query came in, so nothing is fused"
    job.run(rankings_by_query(), write_window, unit="queries")


def append_unscored(head: Ranking, rest: Iterable[str]) -> Ranking:
    """Append documents without a score to a ranking; each gets a score 1 below the one before it.

    Scores fall strictly, in single precision too.
    """
    floor = head[-1][1] if head else 0.0
    tail = [(id, floor - place) for place, id in enumerate(rest, start=1)]
    return break_ties(head + tail) if tail else head


def break_ties(scored: Ranking) -> Ranking:
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
            last = score = _next_lower_float(last)
        ranking.append((id, score))
    return ranking


def _next_lower_float(number: float) -> float:
    """Return the next lower number in single precision."""
    (bits,) = struct.unpack("<i", struct.pack("<f", number))
    if number == 0:
        return -float(struct.unpack("<f", struct.pack("<i", 1))[0])
    return float(struct.unpack("<f", struct.pack("<i", bits - 1 if number > 0 else bits + 1))[0])
