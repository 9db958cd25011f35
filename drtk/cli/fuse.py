"""drtk fuse: fuse runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from drtk.cli.decorators import record_filter
from drtk.cli.options import Output, with_settings
from drtk.errors import UsageError
from drtk.retrieval.config import FuseSettings
from drtk.runtime.filter_job import FilterJob

if TYPE_CHECKING:
    from drtk.data.trec import Ranking

FusedRuns = Annotated[
    list[str], typer.Argument(metavar="RUN…", help="TREC runs, in order; one may be - for stdin.", show_default=False)
]
SweepQrels = Annotated[
    str | None, typer.Option("--qrels", metavar="FILE", help="Judgements for --sweep: BEIR TSV or TREC qrels.")
]
WINDOW = 50  # queries written at once: each may have thousands of hits in every run


@with_settings(FuseSettings)
@record_filter("run")
def fuse(
    runs: FusedRuns, output: Output = "-", *, qrels: SweepQrels = None, settings: FuseSettings, job: FilterJob
) -> None:
    """Make one run out of several.

    Reads TREC runs and writes one whose scores fall strictly, so that every tool sees the same order.
    The first run is read query by query, the others are held in memory.
    """
    from drtk.data.runs import iter_aligned, read_scored_depth
    from drtk.data.trec import load_run, run_lines, run_rankings
    from drtk.retrieval.fusion import FUSIONS, parse_weights
    from drtk.retrieval.fusion import fuse as fuse_rankings
    from drtk.runtime.progress import log

    method = FUSIONS.load(settings.method)
    if runs.count("-") > 1:
        raise UsageError("stdin can be only one of the runs")
    if settings.sweep and (qrels is None or settings.method == "round-robin" or settings.weights):
        raise UsageError("--sweep needs --qrels, a method that has weights, and none given with --weights")
    # Below the scored ranks `drtk rerank` only counts down: such scores would distort the mean and the deviation.
    scored: list[int | None] | None = None
    if settings.method == "zscore" or (settings.method == "weighted" and settings.normalize != "none"):
        scored = [read_scored_depth(run) for run in runs]
        for run, depth in zip(runs, scored, strict=True):
            if depth is not None:
                log(f"fuse: {run} is scored to rank {depth:,} (its manifest): its scale is that of those ranks")
        scored = scored if any(scored) else None
    others = [load_run(run, intake=job.intake) for run in runs[1:]]
    weights: Sequence[float]
    if settings.sweep:
        first = load_run(runs[0], intake=job.intake)
        weights, job.counts["best"] = _find_weights(runs, [first, *others], str(qrels), settings, scored, job)
        stream: Iterator[tuple[str, Ranking]] = iter(first.items())
    else:
        weights = parse_weights(settings.weights, len(runs))
        stream = run_rankings(runs[0], intake=job.intake)
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
            fused = fuse_rankings(rankings, weights, settings, method, scored=scored)
            yield from run_lines(query_id, fused, settings.tag)

    job.window, job.no_input = WINDOW, "no query came in, so nothing is fused"
    job.run(rankings_by_query(), write_window, unit="queries")


def _find_weights(
    names: Sequence[str],
    runs: Sequence[Mapping[str, Ranking]],
    qrels: str,
    settings: FuseSettings,
    scored: Sequence[int | None] | None,
    job: FilterJob,
) -> tuple[tuple[float, ...], float]:
    """Return the weights with the highest score on the judged queries, the most even ones among equals, and the score."""
    from drtk.data.checks import JudgedHits
    from drtk.data.ids import document_id
    from drtk.evaluation.judged_runs import read_judgements
    from drtk.evaluation.tuning import RankingScorer, grid_search, weight_grid
    from drtk.retrieval.fusion import FUSIONS
    from drtk.retrieval.fusion import fuse as fuse_rankings
    from drtk.runtime.progress import log

    by = document_id if settings.by == "source" else None
    judgements = read_judgements(qrels, job.intake)
    score = RankingScorer(judgements, settings.measure, by=by)
    queries = [query for query in judgements if any(query in run for run in runs)]
    if not queries:
        example = next((query for run in runs for query in run), "")
        raise UsageError(
            f"--sweep: no query of the runs has judgements in {qrels} (runs: '{example}', judgements: "
            f"'{next(iter(judgements))}'); pass the judgements of these queries"
        )
    for name, run in zip(names, runs, strict=True):
        judged = JudgedHits(name, judgements, of=by)
        if not any(judged.add(query, [id for id, _ in ranking]) for query, ranking in run.items()):
            judged.warn()
    method = FUSIONS.load(settings.method)

    def rank(weights: tuple[float, ...]) -> dict[str, Ranking]:
        return {
            query: fuse_rankings([run.get(query, []) for run in runs], weights, settings, method, scored=scored)
            for query in queries
        }

    def report(weights: tuple[float, ...], value: float) -> None:
        log(f"fuse: weights {','.join(f'{weight:g}' for weight in weights)}: {score.name} {value:.4f}")

    best = grid_search(sorted(weight_grid(len(runs), settings.step), key=max), rank, score, report)[0]
    log(f"fuse: best weights {','.join(f'{weight:g}' for weight in best[0])}: {score.name} {best[1]:.4f}")
    return best
