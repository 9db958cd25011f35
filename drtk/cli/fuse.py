"""drtk fuse: one run out of several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
WINDOW = 50  # queries fused between two flushes: each may have thousands of hits in every run


@with_settings(FuseSettings)
@record_filter("run")
def fuse(
    runs: FusedRuns, output: Output = "-", *, qrels: SweepQrels = None, settings: FuseSettings, job: FilterJob
) -> None:
    """Make one run out of several.

    Reads TREC runs and writes one whose scores fall strictly, so that every tool sees the same order.
    The first run is read query by query, the others are held in memory.
    """
    from drtk.data.runs import iter_aligned
    from drtk.data.trec import load_run, run_lines, run_rankings
    from drtk.retrieval.fusion import FUSIONS, parse_weights
    from drtk.retrieval.fusion import fuse as fused
    from drtk.runtime.progress import log

    method = FUSIONS.load(settings.method)
    settings.check()
    if runs.count("-") > 1:
        raise UsageError("stdin can be only one of the runs")
    if settings.sweep and (qrels is None or settings.method == "round-robin" or settings.weights):
        raise UsageError("--sweep needs --qrels, a method that has weights, and none given with --weights")
    scored = _scored(runs, settings, log)
    others = [load_run(run, intake=job.intake) for run in runs[1:]]
    weights: Sequence[float]
    if settings.sweep:
        first = load_run(runs[0], intake=job.intake)
        weights, job.counts["best"] = _swept(runs, [first, *others], str(qrels), settings, job, scored)
        stream: Iterator[tuple[str, Ranking]] = iter(first.items())
    else:
        weights = parse_weights(settings.weights, len(runs))
        stream = run_rankings(runs[0], intake=job.intake)
    job.counts["weights"] = list(weights)
    if scored is not None:
        job.counts["scored_depths"] = scored

    def write(window: list[tuple[str, list[Ranking]]]) -> Iterator[bytes]:
        for query_id, rankings in window:
            yield from run_lines(query_id, fused(rankings, weights, settings, method, scored=scored), settings.tag)

    job.window, job.no_input = WINDOW, "no query came in, so nothing is fused"
    job.run(_counted(iter_aligned(stream, others), log), write, unit="queries")


def _scored(runs: Sequence[str], settings: FuseSettings, log: Callable[[str], None]) -> list[int | None] | None:
    """To which rank each run's scores are a model's, where the method goes by their scale; None where no run says so.

    Below that rank `drtk rerank` only counts down, and numbers that say nothing would make up the mean and the deviation.
    """
    from drtk.data.runs import read_scored_depth

    if settings.method != "zscore" and (settings.method != "weighted" or settings.normalize == "none"):
        return None
    depths = [read_scored_depth(run) for run in runs]
    for run, depth in zip(runs, depths, strict=True):
        if depth is not None:
            log(f"fuse: {run} is scored to rank {depth:,} (its manifest): its scale is that of those ranks")
    return depths if any(depths) else None


def _counted(
    queries: Iterator[tuple[str, list[Ranking | None]]], log: Callable[[str], None]
) -> Iterator[tuple[str, list[Ranking]]]:
    alone = 0
    for query_id, rankings in queries:
        alone += not all(rankings)
        yield query_id, [ranking or [] for ranking in rankings]
    if alone:
        log(f"fuse: {alone:,} {'query is' if alone == 1 else 'queries are'} not in every run")


def _swept(
    names: Sequence[str],
    runs: Sequence[Mapping[str, Ranking]],
    qrels: str,
    settings: FuseSettings,
    job: FilterJob,
    scored: Sequence[int | None] | None,
) -> tuple[tuple[float, ...], float]:
    """The weights with the highest score on the judged queries, and that score; every point is told on stderr."""
    from drtk.data.checks import JudgedHits
    from drtk.data.ids import document_id
    from drtk.data.trec import QueryHits
    from drtk.evaluation.evaluate import Evaluator, View
    from drtk.evaluation.judged_runs import read_judgements
    from drtk.evaluation.measures import parse_measures
    from drtk.retrieval.fusion import FUSIONS, sweep
    from drtk.runtime.progress import log

    measures = parse_measures(settings.measure)
    if len(measures) != 1:
        raise UsageError("--measure: name one")
    judgements = read_judgements(qrels, job.intake)
    evaluator = Evaluator(judgements, measures)
    view = View(by=document_id if settings.by == "source" else None)

    def score(fused: Mapping[str, Ranking]) -> float:
        hits = {
            query: QueryHits(query, [id for id, _ in found], [at for _, at in found]) for query, found in fused.items()
        }
        return float(
            evaluator("fused", {query: view(found) for query, found in hits.items()}).overall[measures[0].name]
        )

    if not any(query in run for query in judgements for run in runs):
        example = next((query for run in runs for query in run), "")
        wanted = next(iter(judgements))
        raise UsageError(
            f"--sweep: no query of the runs has judgements in {qrels} (runs: '{example}', judgements: '{wanted}'); "
            "pass the judgements of these queries"
        )
    for name, run in zip(names, runs, strict=True):
        judged = JudgedHits(name, judgements, of=view.by)
        if not any(judged.add(query, [id for id, _ in ranking]) for query, ranking in run.items()):
            judged.warn()
    tried = []
    for weights, value in sweep(runs, judgements, settings, FUSIONS.load(settings.method), score, scored=scored):
        tried.append((weights, value))
        log(f"fuse: weights {_listed(weights)}: {measures[0].name} {value:.4f}")
    best = max(tried, key=lambda point: (point[1], -max(point[0])))  # among equals the most even one
    log(f"fuse: best weights {_listed(best[0])}: {measures[0].name} {best[1]:.4f}")
    return best


def _listed(weights: Sequence[float]) -> str:
    return ",".join(f"{weight:g}" for weight in weights)
