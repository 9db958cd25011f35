"""drtk doc2query: generate queries that a passage answers."""

from __future__ import annotations

from typing import Annotated

from drtk.cli.decorators import filter_command
from drtk.cli.options import Device, Output, Seed, make_argument, make_option, with_settings
from drtk.config import GENERATION
from drtk.expansion.config import KeepQueriesSettings
from drtk.models.config import GenerationSettings
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.runners import RunnerSettings

BATCH_SIZE = 256  # passages that are processed and saved together


@with_settings(GenerationSettings, panel=GENERATION)
@with_settings(KeepQueriesSettings, name="keeping")
@with_settings(RunnerSettings, name="running")
@filter_command("corpus", passages=True, bare=True, sharded=True)
def doc2query(
    model: Annotated[str, make_option("--model MODEL", "T5 or BART model, a folder or Hub name.")],
    source: Annotated[str, make_argument("INPUT", "Passages to generate queries for; - is stdin.")] = "-",
    output: Output = "-",
    seed: Seed = 42,
    device: Device = "auto",
    *,
    settings: GenerationSettings,
    keeping: KeepQueriesSettings,
    running: RunnerSettings,
    job: FilterJob,
) -> None:
    """Add generated queries to each passage.

    Writes each passage with "queries": [...]. With --scorer and --keep or --min-score, drops queries that do not fit their
    passage (Doc2Query--). Sampling depends only on the seed and the passage id.

    Examples:
    drtk doc2query corpus.jsonl --model castorini/doc2query-t5-base-msmarco -o queried.jsonl
    drtk doc2query corpus.jsonl --model t5 --n 20 --scorer crossencoder --keep 0.7 -o queried.jsonl
    """
    from drtk.data.readers import read_passages
    from drtk.errors import UsageError
    from drtk.expansion.generate import PassageExpander
    from drtk.expansion.keep_queries import QUERIES, TopShareFilter
    from drtk.models.model_folder import locate
    from drtk.runtime.runners import run_filter
    from drtk.runtime.sharding import WHOLE_INPUT

    settings.check()
    keeping.check(generates=True)
    if keeping.keep is not None and job.shard != WHOLE_INPUT:
        raise UsageError(
            "--keep requires the scores of all queries, but --shard computes only some; "
            "use --scores with shards, and drtk keep-queries --keep afterwards"
        )
    passages = read_passages(source, tracker=job.tracker, side_files=job.side_files)
    if keeping.scorer:
        job.lookups = (str(locate(keeping.scorer)),)
    revise = None if keeping.keep is None else TopShareFilter(keeping.keep, job.counts, with_scores=keeping.scores)
    run_filter(
        passages, job, PassageExpander, model, settings, seed, device, QUERIES, job.bare, keeping if keeping.scorer else None,
        running=running, batch_size=BATCH_SIZE, revise=revise,
    )  # fmt: skip
