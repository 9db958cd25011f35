"""drtk keep-queries: drop generated queries that do not fit their passage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from drtk.cli.decorators import filter_command
from drtk.cli.options import Device, Output, make_argument, with_settings
from drtk.expansion.config import KeepQueriesSettings
from drtk.records import Passage
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.runners import RunnerSettings


@with_settings(KeepQueriesSettings)
@with_settings(RunnerSettings, name="runner_settings")
@filter_command("corpus", passages=True, bare=True)
def keep_queries(
    source: Annotated[str, make_argument("INPUT", "Passages with generated queries; - is stdin.")] = "-",
    output: Output = "-",
    device: Device = "auto",
    *,
    settings: KeepQueriesSettings,
    runner_settings: RunnerSettings,
    job: FilterJob,
) -> None:
    """Drop generated queries that do not fit their passage (Doc2Query--).

    Reads passages with "queries", and uses their "query_scores" or the scores of a cross-encoder.

    Examples:
    drtk keep-queries queried.jsonl --scorer crossencoder --scores -o scored.jsonl
    drtk keep-queries scored.jsonl --keep 0.7 -o kept.jsonl
    """
    from drtk.data.readers import read_passages
    from drtk.expansion.keep_queries import QueryFilter, find_min_score, iter_with_queries
    from drtk.models.model_folder import resolve_model_folder
    from drtk.runtime.runners import run_filter

    def read() -> Iterator[Passage]:
        records = read_passages(source, tracker=job.tracker, side_files=job.side_files)
        return iter_with_queries(records, source, job.tracker, scored=not settings.scorer)

    if settings.keep is not None:
        job.tracker.copy_streams(source, *job.side_files)
        job.counts["min_score"] = find_min_score(read(), settings.keep)
        job.tracker.bad = 0  # the same records are read again
        settings = replace(settings, min_score=job.counts["min_score"])
    if settings.scorer:
        job.lookups = (str(resolve_model_folder(settings.scorer)),)
    run_filter(read(), job, QueryFilter, settings, device, job.bare, runner_settings=runner_settings)
