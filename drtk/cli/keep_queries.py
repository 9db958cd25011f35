"""drtk keep-queries: of queries written before, those that fit their passage."""

from __future__ import annotations

from drtk.cli.jobs import record_filter
from drtk.cli.options import Device, Output, Source, with_settings
from drtk.io.filtering import FilterJob
from drtk.settings.keeping import KeepSettings
from drtk.settings.running import RunnerSettings


@with_settings(KeepSettings)
@with_settings(RunnerSettings, name="running")
@record_filter("corpus", passages=True, bare=True)
def keep_queries(
    source: Source = "-",
    output: Output = "-",
    device: Device = "auto",
    *,
    settings: KeepSettings,
    running: RunnerSettings,
    job: FilterJob,
) -> None:
    """Drop written queries that do not fit their passage.

    Reads passages with "queries": [...] and writes them with those that stay. Scores are those in "query_scores",
    or with --scorer those of a cross-encoder.
    """
    from drtk.enrichment.keeping import BestShare, KeepWritten, check_keeping, with_queries
    from drtk.io.jsonl import read_passages
    from drtk.runners.base import run_filter

    check_keeping(settings, written=True)
    found = read_passages(source, intake=job.intake, side_files=job.side_files)
    passages = with_queries(found, source, job.intake, scored=not settings.scorer)
    revise = None if settings.keep is None else BestShare(settings, job.counts)
    if not settings.scorer:
        run_filter(passages, job, KeepWritten, settings, job.bare, running=running, revise=revise)
        return
    from drtk.enrichment.judging import JudgeWritten
    from drtk.models.hub import locate
    from drtk.models.reranker import title_of

    title = title_of(settings.scorer, settings.scorer_title, sealed=True)
    job.looked_up = (str(locate(settings.scorer)),)
    arguments = (settings, title, device, job.bare)
    run_filter(passages, job, JudgeWritten, *arguments, running=running, revise=revise)
