"""drtk chunk: split long documents into passages."""

from __future__ import annotations

from drtk.cli.decorators import record_filter
from drtk.cli.options import Output, Source, with_settings
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.runners import RunnerSettings
from drtk.text.config import ChunkSettings


@with_settings(ChunkSettings)
@with_settings(RunnerSettings, name="running")
@record_filter("corpus", passages=True, bare=True, parts=True, writes=("save_punkt",))
def chunk(
    source: Source = "-",
    output: Output = "-",
    *,
    settings: ChunkSettings,
    running: RunnerSettings,
    job: FilterJob,
) -> None:
    """Split long documents into passages.

    Reads a corpus and writes a corpus whose ids are DOC#0, DOC#1, … A passage is a run of whole sentences, as many as fit.
    """
    from drtk.data.jsonl import read_passages
    from drtk.text.chunking import chunk_corpus

    documents = read_passages(source, tracker=job.tracker, side_files=job.side_files)
    chunk_corpus(documents, settings, job, running=running)
