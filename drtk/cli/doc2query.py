"""drtk doc2query: queries that a passage answers, written by a model."""

from __future__ import annotations

from typing import Annotated

import typer

from drtk.cli.decorators import record_filter
from drtk.cli.options import Device, Output, Seed, Source, with_settings
from drtk.expansion.config import KeepSettings
from drtk.models.config import GenerationSettings
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.runners import RunnerSettings

WINDOW = 256  # passages between two places to go on from: each takes long

WritingModel = Annotated[
    str, typer.Option("--model", metavar="MODEL", help="Folder or hub name of a T5 or BART model.")
]


@with_settings(GenerationSettings)
@with_settings(KeepSettings, name="keeping")
@with_settings(RunnerSettings, name="running")
@record_filter("corpus", passages=True, bare=True, parts=True)
def doc2query(
    model: WritingModel,
    source: Source = "-",
    output: Output = "-",
    seed: Seed = 42,
    device: Device = "auto",
    *,
    settings: GenerationSettings,
    keeping: KeepSettings,
    running: RunnerSettings,
    job: FilterJob,
) -> None:
    """Add queries that a model writes for each passage.

    Reads a corpus and writes it again, each passage with "queries": [...]. What is sampled depends on the seed and the
    passage's id alone. With --scorer and --keep or --min-score, queries that do not fit their passage go again.
    """
    from drtk.data.jsonl import read_passages
    from drtk.errors import UsageError
    from drtk.expansion.generate import Generate, stripped
    from drtk.expansion.keep_queries import BestShare, check_keeping
    from drtk.runtime.runners import run_filter
    from drtk.runtime.sharding import WHOLE

    settings.check()
    scored = check_keeping(keeping, written=False)
    if keeping.keep is not None and job.part != WHOLE:
        raise UsageError(
            "--keep takes a share of all queries, and a part does not know the others': "
            "--scores in the parts, then drtk keep-queries --keep on all of them"
        )
    passages = read_passages(source, intake=job.intake, side_files=job.side_files)
    generating = (model, settings, seed, device, "queries", stripped, job.bare)
    if not scored:
        run_filter(passages, job, Generate, *generating, running=running, window=WINDOW)
        return
    from drtk.expansion.generate import GenerateAndJudge
    from drtk.models.cross_encoder import resolve_title
    from drtk.models.model_folder import locate

    title = resolve_title(keeping.scorer, keeping.scorer_title, strict=True)
    job.lookups = (str(locate(keeping.scorer)),)
    run_filter(
        passages, job, GenerateAndJudge, generating, keeping, title, device, job.bare,
        running=running, window=WINDOW, revise=None if keeping.keep is None else BestShare(keeping, job.counts),
    )  # fmt: skip
