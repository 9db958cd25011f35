"""drtk encode: passages or queries to vectors."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from drtk.cli.decorators import folder_maker
from drtk.cli.options import Device, Folder, Source, with_settings
from drtk.models.config import EncodeSettings
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
        str, typer.Option("--shard", metavar="N/OF", help="Encode one of several shards, on several machines or GPUs.")
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
    from drtk.retrieval.encode import encode_corpus
    from drtk.runtime.sharding import parse_shard

    part = parse_shard(shard)
    encode_corpus(source, model, settings, job, role=role, part=part, device=device, running=running)
