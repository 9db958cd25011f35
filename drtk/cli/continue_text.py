"""drtk continue-text: continue passages with a language model."""

from __future__ import annotations

from typing import Annotated

import typer

from drtk.cli.decorators import record_filter
from drtk.cli.options import Device, Output, Seed, Source, with_settings
from drtk.models.config import ContinuationSettings
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.runners import RunnerSettings

WINDOW = 256  # passages between two points to resume from

LanguageModel = Annotated[
    str, typer.Option("--model", metavar="MODEL", help="Folder or hub name of a GPT-2-type model.")
]


@with_settings(ContinuationSettings)
@with_settings(RunnerSettings, name="running")
@record_filter("corpus", passages=True, bare=True, parts=True)
def continue_text(
    model: LanguageModel,
    source: Source = "-",
    output: Output = "-",
    seed: Seed = 42,
    device: Device = "auto",
    *,
    settings: ContinuationSettings,
    running: RunnerSettings,
    job: FilterJob,
) -> None:
    """Add continuations of each passage by a language model.

    Reads a corpus and writes it again, each passage with "continuations": [...] (MASTER). An empty continuation is
    replaced by the passage itself.
    """
    from drtk.data.jsonl import read_passages
    from drtk.expansion.generate import CONTINUATIONS, PassageExpander
    from drtk.runtime.runners import run_filter

    settings.check()
    passages = read_passages(source, tracker=job.tracker, side_files=job.side_files)
    run_filter(
        passages,
        job,
        PassageExpander,
        model,
        settings,
        seed,
        device,
        CONTINUATIONS,
        job.bare,
        running=running,
        window=WINDOW,
    )
