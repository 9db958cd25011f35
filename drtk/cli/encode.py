"""drtk encode: passages or queries to vectors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import typer

from drtk.cli.decorators import folder_maker
from drtk.cli.options import Device, Folder, Source, with_settings
from drtk.models.config import EncodeSettings
from drtk.records import Passage, Query
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.runners import RunnerSettings


@with_settings(EncodeSettings)
@with_settings(RunnerSettings, name="running")
@folder_maker("embeddings", resume=True, passages=True)
def encode(
    model: Annotated[str, typer.Option("--model", metavar="MODEL", help="Model folder, or hub name[@revision].")],
    output: Folder,
    source: Source = "-",
    role: Annotated[
        Literal["passage", "query"], typer.Option("--role", help="Whether the input holds passages or queries.")
    ] = "passage",
    shard: Annotated[
        str, typer.Option("--shard", metavar="N/OF", help="Encode one part of several, on several machines or GPUs.")
    ] = "1/1",
    device: Device = "auto",
    *,
    settings: EncodeSettings,
    running: RunnerSettings,
    job: FolderJob,
) -> None:
    """Turn passages or queries into vectors.

    Reads a corpus (or, with --role query, queries) and makes a folder of embeddings: 00000.npy, 00000.ids, … meta.json.
    """
    from drtk.data.checks import EmptyTexts
    from drtk.data.embeddings import ShardWriter
    from drtk.data.jsonl import read_passages, read_queries
    from drtk.errors import MismatchError
    from drtk.models.generator_input import format_passage
    from drtk.models.model_folder import locate
    from drtk.retrieval.encode import Embedder, encode_records
    from drtk.runtime.manifest import folder_entry
    from drtk.runtime.sharding import parse_part
    from drtk.runtime.streams import name_of

    part = parse_part(shard)
    entry = folder_entry(locate(model))  # before it is loaded
    embedder = Embedder(model, role=role, settings=settings, device=device, weights=running.runner == "local")
    if settings.dimensions is not None and settings.dimensions > embedder.dimension:
        raise MismatchError(
            f"--dimensions {settings.dimensions}: {model} gives vectors of {embedder.dimension} numbers"
        )
    identity = embedder.identity
    records: Iterable[Passage] | Iterable[Query]
    title = embedder.recipe.title
    if role == "query":
        records, empty_texts = read_queries(source, intake=job.intake), EmptyTexts(lambda query: str(query.text))
    else:
        records = read_passages(source, intake=job.intake, side_files=job.side_files)
        empty_texts = EmptyTexts(lambda passage: format_passage(passage, title))
    writer = ShardWriter(job.begin(), dimension=embedder.dimension, dtype=settings.store, model=model)
    unit = "queries" if role == "query" else "passages"
    encode_records(records, embedder, writer, running=running, part=part, unit=unit, empty_texts=empty_texts)
    job.counts[unit] = writer.rows
    empty_texts.warn(name_of(source), unit)
    job.intake.inputs.append(entry)
    job.finish(
        encoder=identity,
        dimension=embedder.dimension,
        dtype=settings.store,
        role=role,
        encoding=embedder.recipe.to_dict(),
        part={"number": part[0], "of": part[1]},
        shards=writer.entries,
    )
