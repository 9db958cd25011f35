"""drtk chunk: split long documents into passages."""

from __future__ import annotations

from typing import Annotated

from drtk.cli.decorators import filter_command
from drtk.cli.options import Output, make_argument, with_settings
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.runners import RunnerSettings
from drtk.text.config import ChunkSettings


@with_settings(ChunkSettings)
@with_settings(RunnerSettings, name="runner_settings")
@filter_command("corpus", passages=True, bare=True, sharded=True, writes=("save_punkt",))
def chunk(
    source: Annotated[str, make_argument("INPUT", "Documents to split; - is stdin.")] = "-",
    output: Output = "-",
    *,
    settings: ChunkSettings,
    runner_settings: RunnerSettings,
    job: FilterJob,
) -> None:
    """Split documents into passages.

    Passages have the ids DOC#0, DOC#1 … and consist of whole sentences, except with --policy words. By default, sentences
    longer than the maximum length are split.

    Examples:
    drtk chunk documents.jsonl --max-words 100 -o passages.jsonl
    drtk chunk documents.jsonl --tokenizer bert-base-uncased --max-tokens 128 -o passages.jsonl
    """
    from drtk.data.readers import read_passages
    from drtk.text.chunking import chunk_corpus

    documents = read_passages(source, tracker=job.tracker, side_files=job.side_files)
    chunk_corpus(documents, settings, job, runner_settings=runner_settings)
