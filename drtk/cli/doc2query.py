"""drtk doc2query: queries that a passage answers, written by a model."""

from __future__ import annotations

from typing import Annotated

import typer

from drtk.cli.jobs import record_filter
from drtk.cli.options import Device, Output, Seed, Source, with_settings
from drtk.io.filtering import FilterJob
from drtk.settings.generation import GenerationSettings
from drtk.settings.running import RunnerSettings

WINDOW = 256  # passages between two places to go on from: each takes long

WritingModel = Annotated[
    str, typer.Option("--model", metavar="MODEL", help="Folder or hub name of a T5 or BART model.")
]


@with_settings(GenerationSettings)
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
    running: RunnerSettings,
    job: FilterJob,
) -> None:
    """Add queries that a model writes for each passage.

    Reads a corpus and writes it again, each passage with "queries": [...]. What is sampled depends on the seed and the
    passage's id alone.
    """
    from drtk.enrichment.generation import Generate, stripped
    from drtk.io.jsonl import read_passages
    from drtk.runners.base import run_filter

    passages = read_passages(source, intake=job.intake, side_files=job.side_files)
    run_filter(
        passages,
        job,
        Generate,
        model,
        settings,
        seed,
        device,
        "queries",
        stripped,
        job.bare,
        running=running,
        window=WINDOW,
    )
