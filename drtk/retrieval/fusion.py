"""Fuse several runs into one ranking per query."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from statistics import fmean, pstdev

import numpy as np

from drtk.data.runs import iter_aligned_rankings, read_scored_depth
from drtk.data.trec import Ranking, format_run_lines, iter_rankings, load_run
from drtk.errors import UsageError
from drtk.registry import Registry
from drtk.retrieval.config import FuseSettings
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.progress import log, warn
from drtk.runtime.streams import STANDARD, get_source_name

BATCH_SIZE = 50  # queries; each may have thousands of hits in every run

# A fusion method is a function (rankings, weights, *, settings: FuseSettings) -> (id, score) pairs in any order.
# rankings: rankings of one query, one per run; [] if a run lacks the query
Fusion = Callable[..., Ranking]
FUSIONS = Registry(
    "fusion method",
    {
        "rrf": (
            "drtk.retrieval.fusion:fuse_reciprocal_ranks",
            "sum of weight / (k + rank) over the runs (Cormack 2009)",
        ),
        "weighted": (
            "drtk.retrieval.fusion:sum_normalized_scores",
            "weighted sum of scores scaled to 0 to 1; a missing score counts as the run's lowest",
        ),
        "linear": ("drtk.retrieval.fusion:sum_raw_scores", "weighted sum of raw scores (DPR: weights 1, 1.1)"),
        "zscore": ("drtk.retrieval.fusion:sum_zscores", "weighted sum of z-scores"),
        "max": ("drtk.retrieval.fusion:take_highest_score", "highest raw score; merges the runs of index shards"),
        "round-robin": ("drtk.retrieval.fusion:interleave", "documents of each run in turn (GAR)"),
    },
)


def fuse_reciprocal_ranks(rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking:
    """Fuse by the sum of weight / (k + rank) over the runs that retrieved a document; ranks start at 1."""
    scores: dict[str, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for rank, (id, _) in enumerate(ranking, start=1):
            scores[id] = scores.get(id, 0.0) + weight / (settings.rrf_k + rank)
    return list(scores.items())


def sum_normalized_scores(rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking:
    """Fuse by the weighted sum of scores that are scaled to the range 0 to 1; a missing score counts as the run's lowest."""
    return _sum_scores(rankings, weights, _scale_minmax)


def sum_raw_scores(rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking:
    """Fuse by the weighted sum of raw scores, as DPR does with weights 1 and 1.1; a missing score counts as the run's lowest."""
    return _sum_scores(rankings, weights, list)


def sum_zscores(rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking:
    """Fuse by the weighted sum of z-scores, for ensembles of rerankers; a missing score counts as the run's lowest."""
    return _sum_scores(rankings, weights, _compute_zscores)


def _sum_scores(
    rankings: Sequence[Ranking], weights: Sequence[float], normalize: Callable[[Sequence[float]], list[float]]
) -> Ranking:
    """Return the weighted sum of normalized scores of each document.

    A document missing in a ranking gets the lowest score of that ranking; an empty ranking adds nothing.
    """
    scores = dict.fromkeys((id for ranking in rankings for id, _ in ranking), 0.0)
    for ranking, weight in zip(rankings, weights, strict=True):
        if not ranking:
            continue
        normalized = dict(zip((id for id, _ in ranking), normalize([score for _, score in ranking]), strict=True))
        lowest = min(normalized.values())
        for id in scores:
            scores[id] += weight * normalized.get(id, lowest)
    return list(scores.items())


def take_highest_score(rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking:
    """Fuse by the highest raw score of a document (CombMAX). Weights have no effect.

    Fusing the runs of disjoint index shards gives the run of the whole index, unless scores depend on the shard (BM25).
    """
    scores: dict[str, float] = {}
    for ranking in rankings:
        for id, score in ranking:
            scores[id] = max(score, scores.get(id, score))
    return list(scores.items())


def interleave(rankings: Sequence[Ranking], weights: Sequence[float], *, settings: FuseSettings) -> Ranking:
    """Fuse by round-robin: rank 1 of each run in turn, then rank 2, …, without duplicates. Weights have no effect.

    Scores are 1 / rank in the fused ranking.
    """
    fused: dict[str, None] = {}
    for rank in range(max(map(len, rankings), default=0)):
        for ranking in rankings:
            if rank < len(ranking):
                fused.setdefault(ranking[rank][0])
    return [(id, 1 / rank) for rank, id in enumerate(fused, start=1)]


def _scale_minmax(scores: Sequence[float]) -> list[float]:
    """Scale scores to the range 0 to 1. If all are equal, they become 1."""
    low, high = min(scores), max(scores)
    return [(score - low) / (high - low) if high > low else 1.0 for score in scores]


def _compute_zscores(scores: Sequence[float]) -> list[float]:
    """Return z-scores with the population standard deviation. If all scores are equal, they become 0."""
    mean, deviation = fmean(scores), pstdev(scores)
    return [(score - mean) / deviation if deviation > 0 else 0.0 for score in scores]


def parse_weights(text: str, num_runs: int) -> list[float]:
    """Parse weights such as `1,1.1`; "" sets all weights to 1. Raises UsageError unless there is one finite number per run."""
    if not text:
        return [1.0] * num_runs
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"`weights`: expected numbers separated by commas, such as 1,1.1; got '{text}'") from None
    if len(weights) != num_runs:
        raise UsageError(f"`weights`: got {len(weights)} weights for {num_runs} runs; give one weight per run")
    if not all(-inf < weight < inf for weight in weights):
        raise UsageError(f"`weights`: expected finite numbers, got '{text}'")
    return weights


def fuse(
    rankings: Sequence[Ranking],
    weights: Sequence[float],
    settings: FuseSettings,
    method: Fusion,
    *,
    scored_depths: Sequence[int | None] | None = None,
) -> Ranking:
    """Return the fused ranking of one query: the top `settings.top` documents, with strictly decreasing scores.

    scored_depths: number of top hits of each ranking that a reranker scored; None if all. Only scored hits are fused.
            Unscored documents are appended, in the order of the first ranking that contains them.
    """
    rankings = [ranking[: settings.depth] for ranking in rankings]
    if scored_depths is None:
        return break_ties(method(rankings, weights, settings=settings))[: settings.top]
    heads = [ranking[:depth] for ranking, depth in zip(rankings, scored_depths, strict=True)]
    fused = break_ties(method(heads, weights, settings=settings))
    scored = {id for id, _ in fused}
    unscored = dict.fromkeys(id for ranking in rankings for id, _ in ranking if id not in scored)
    return append_unscored(fused, unscored)[: settings.top]


FindWeights = Callable[[Sequence[Mapping[str, Ranking]], "Sequence[int | None] | None"], Sequence[float]]


def fuse_runs(
    runs: Sequence[str], settings: FuseSettings, job: FilterJob, *, find_weights: FindWeights | None = None
) -> None:
    """Fuse TREC runs, and write the fused run. The first run is streamed, unless `find_weights` is given.

    find_weights: computes the weights from {query id: ranking} of each run and the scored depths (see `fuse`); None uses
            `settings.weights`
    """
    job.record(settings, runs=list(runs))
    method = FUSIONS.load(settings.method)
    if runs.count(STANDARD) > 1:
        raise UsageError("only one run can be read from stdin (-); give files for the other runs")
    # `drtk rerank` writes decreasing placeholder scores below its depth, which would distort normalization.
    scored_depths: list[int | None] | None = None
    if settings.method in ("weighted", "zscore"):
        scored_depths = [read_scored_depth(run) for run in runs]
        for run, depth in zip(runs, scored_depths, strict=True):
            if depth is not None:
                log(f"{run}: reranked to depth {depth:,}; only the scores of the top {depth:,} are normalized")
        scored_depths = scored_depths if any(scored_depths) else None
    others = [load_run(run, tracker=job.tracker) for run in runs[1:]]
    empty = [run for run, other in zip(runs[1:], others, strict=True) if not other]
    weights: Sequence[float]
    if find_weights is not None:
        first = load_run(runs[0], tracker=job.tracker)
        weights = find_weights([first, *others], scored_depths)
        stream: Iterator[tuple[str, Ranking]] = iter(first.items())
    else:
        weights = parse_weights(settings.weights, len(runs))
        stream = iter_rankings(runs[0], tracker=job.tracker)
    job.counts["weights"] = list(weights)
    if scored_depths is not None:
        job.counts["scored_depths"] = scored_depths

    def iter_all_rankings() -> Iterator[tuple[str, list[Ranking]]]:
        num_incomplete, has_hits = 0, False
        for query_id, rankings in iter_aligned_rankings(stream, others):
            has_hits = has_hits or bool(rankings[0])
            num_incomplete += not all(rankings)
            yield query_id, [ranking or [] for ranking in rankings]
        for run in empty if has_hits else [runs[0], *empty]:  # such as the output of a failed search in a pipe
            warn(f"{get_source_name(run)}: the run is empty")
        if num_incomplete:
            log(
                f"{num_incomplete:,} {'query is' if num_incomplete == 1 else 'queries are'} missing from at least one run"
            )

    def fuse_batch(batch: list[tuple[str, list[Ranking]]]) -> Iterator[bytes]:
        for query_id, rankings in batch:
            fused = fuse(rankings, weights, settings, method, scored_depths=scored_depths)
            yield format_run_lines(query_id, fused, settings.tag)

    job.batch_size, job.no_input_warning = BATCH_SIZE, "there are no queries to fuse"
    job.run(iter_all_rankings(), fuse_batch, unit="queries")


def append_unscored(ranking: Ranking, ids: Iterable[str]) -> Ranking:
    """Append unscored documents to a ranking; each gets the previous score minus 1."""
    lowest = ranking[-1][1] if ranking else 0.0
    tail = [(id, lowest - position) for position, id in enumerate(ids, start=1)]
    return break_ties(ranking + tail) if tail else ranking


def break_ties(hits: Ranking) -> Ranking:
    """Sort by descending score, then by descending id; lower tied scores minimally, so that scores strictly decrease.

    Scores are compared in single precision, as in trec_eval, and strictly decrease in single precision too.
    """
    single = array("f", [score for _, score in hits])
    order = sorted(range(len(hits)), key=lambda hit: (single[hit], hits[hit][0]), reverse=True)
    ranking: Ranking = []
    previous = inf
    for hit in order:
        id, score = hits[hit]
        if single[hit] < previous:
            previous = single[hit]
        else:
            previous = score = float(np.nextafter(np.float32(previous), np.float32(-inf)))
        ranking.append((id, score))
    return ranking
