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

BATCH_SIZE = 256  # passages that are saved together


@with_settings(GenerationSettings, panel=GENERATION)
@with_settings(KeepQueriesSettings, name="keep_settings")
@with_settings(RunnerSettings, name="runner_settings")
@filter_command("corpus", passages=True, bare=True, sharded=True)
def doc2query(
    model: Annotated[str, make_option("--model MODEL", "Encoder-decoder such as T5 or BART, a folder or Hub name.")],
    source: Annotated[str, make_argument("INPUT", "Passages to generate queries for; - is stdin.")] = "-",
    output: Output = "-",
    seed: Seed = 42,
    device: Device = "auto",
    *,
    settings: GenerationSettings,
    keep_settings: KeepQueriesSettings,
    runner_settings: RunnerSettings,
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
    from drtk.models.model_folder import resolve_model_folder
    from drtk.runtime.runners import run_filter
    from drtk.runtime.sharding import WHOLE_INPUT

    settings.check()
    keep_settings.check(generates=True)
    if keep_settings.keep is not None and job.shard != WHOLE_INPUT:
        raise UsageError(
            "--keep requires the scores of all queries, but --shard computes only some; "
            "use --scores with shards, and drtk keep-queries --keep afterwards"
        )
    passages = read_passages(source, tracker=job.tracker, side_files=job.side_files)
    if keep_settings.scorer:
        job.lookups = (str(resolve_model_folder(keep_settings.scorer)),)
    revise = (
        None
        if keep_settings.keep is None
        else TopShareFilter(keep_settings.keep, job.counts, with_scores=keep_settings.scores)
    )
    run_filter(
        passages, job, PassageExpander, model, settings, seed, device, QUERIES, job.bare, keep_settings if keep_settings.scorer else None,
        runner_settings=runner_settings, batch_size=BATCH_SIZE, revise=revise,
    )  # fmt: skip
