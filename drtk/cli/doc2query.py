"""drtk doc2query: generate queries that a passage answers."""

from __future__ import annotations

from typing import Annotated

from drtk.cli.decorators import filter_command
from drtk.cli.options import Device, Output, Seed, make_argument, make_option, with_settings
from drtk.config import GENERATION
from drtk.models.config import GenerationSettings
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.runners import RunnerSettings

BATCH_SIZE = 256  # passages that are saved together


@with_settings(GenerationSettings, panel=GENERATION)
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
    runner_settings: RunnerSettings,
    job: FilterJob,
) -> None:
    """Add generated queries to each passage.

    Writes each passage with "queries": [...]. Sampling depends only on the seed and the passage id. drtk keep-queries drops
    queries that do not fit their passage.

    Examples:
    drtk doc2query corpus.jsonl --model castorini/doc2query-t5-base-msmarco -o queried.jsonl
    drtk doc2query corpus.jsonl --model t5 --n 20 --bare -o queries.jsonl
    """
    from drtk.data.readers import read_passages
    from drtk.expansion.generate import PassageExpander
    from drtk.expansion.keep_queries import QUERIES
    from drtk.runtime.runners import run_filter

    passages = read_passages(source, tracker=job.tracker, side_files=job.side_files)
    run_filter(
        passages, job, PassageExpander, model, settings, seed, device, QUERIES, job.bare,
        runner_settings=runner_settings, batch_size=BATCH_SIZE,
    )  # fmt: skip
