"""drtk termweight: how much each word piece of a passage matters."""

from __future__ import annotations

from typing import Annotated

import typer

from drtk.cli.jobs import record_filter
from drtk.cli.options import Device, Output, Seed, Source, with_settings
from drtk.enrichment.termweights import TERM_WEIGHTS
from drtk.io.filtering import FilterJob
from drtk.settings.running import RunnerSettings
from drtk.settings.weighting import WeightingSettings


@with_settings(WeightingSettings)
@with_settings(RunnerSettings, name="running")
@record_filter("corpus", passages=True, bare=True)
def termweight(
    method: Annotated[str, typer.Option("--method", metavar="METHOD", help=f"One of {', '.join(TERM_WEIGHTS)}.")],
    source: Source = "-",
    output: Output = "-",
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="Folder or hub name of the model that reads passages."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", metavar="NAME", help="Whose word pieces are weighted: a model folder or hub name."),
    ] = None,
    collection: Annotated[
        list[str] | None,
        typer.Option("--collection", metavar="FILE", help="Statistics of the collection; repeatable, parts add up."),
    ] = None,
    collect: Annotated[bool, typer.Option("--collect", help="Write statistics of the input, not weights.")] = False,
    merge: Annotated[
        bool, typer.Option("--merge", help="Join the files of --collection, and read nothing else.")
    ] = False,
    report: Annotated[
        bool,
        typer.Option("--report", help="Tell how many stop words would be hidden, were the passages masked by weight."),
    ] = False,
    seed: Seed = 42,
    device: Device = "auto",
    *,
    settings: WeightingSettings,
    running: RunnerSettings,
    job: FilterJob,
) -> None:
    """Add a weight to each word piece of a passage.

    Reads a corpus and writes it again, each passage with "weights": [...], one a word piece of its text.
    """
    from drtk.enrichment.termweights import passes
    from drtk.errors import UsageError

    if collect and merge:
        raise UsageError("--collect reads passages, --merge joins what it wrote: one of them")
    plan = passes.planned(
        TERM_WEIGHTS.check(method), settings, tokenizer=tokenizer, model=model, device=device, seed=seed
    )
    if collect:
        passes.collect(source, plan, running=running, job=job)
    elif merge:
        passes.merge(collection or [], plan, job)
    else:
        passes.weigh(source, plan, collection or [], report=report, running=running, job=job)
