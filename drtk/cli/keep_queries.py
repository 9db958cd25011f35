"""drtk keep-queries: of queries written before, those that fit their passage."""

from __future__ import annotations

from drtk.cli.decorators import record_filter
from drtk.cli.options import Device, Output, Source, with_settings
from drtk.expansion.config import KeepSettings
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.runners import RunnerSettings


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
    from drtk.data.jsonl import read_passages
    from drtk.expansion.keep_queries import BestShare, KeepWritten, check_keeping, with_queries
    from drtk.runtime.runners import run_filter

    check_keeping(settings, written=True)
    found = read_passages(source, intake=job.intake, side_files=job.side_files)
    passages = with_queries(found, source, job.intake, scored=not settings.scorer)
    revise = None if settings.keep is None else BestShare(settings, job.counts)
    if not settings.scorer:
        run_filter(passages, job, KeepWritten, settings, job.bare, running=running, revise=revise)
        return
    from drtk.expansion.generate import JudgeWritten
    from drtk.models.cross_encoder import resolve_title
    from drtk.models.model_folder import locate

    title = resolve_title(settings.scorer, settings.scorer_title, strict=True)
    job.lookups = (str(locate(settings.scorer)),)
    arguments = (settings, title, device, job.bare)
    run_filter(passages, job, JudgeWritten, *arguments, running=running, revise=revise)
