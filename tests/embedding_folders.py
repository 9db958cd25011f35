"""Write embeddings folders with given vectors."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from drtk.data.embeddings import ShardWriter
from drtk.runtime.folder_job import FolderJob

ENCODER = {"model": "a-model", "digest": "1" * 32, "similarity": "dot", "normalized": False, "pooling": ["cls"]}


def write_embeddings(
    folder: Path,
    vectors: Any,
    ids: Sequence[str] | None = None,
    *,
    role: str = "passage",
    encoder: dict[str, Any] | None = ENCODER,
    dtype: str = "float32",
    shard_size: int = 1000,
    part: tuple[int, int] = (1, 1),
    source: str = "-",
) -> str:
    """Write vectors, (rows, dimension), as drtk encode does; return the folder. Ids default to v0, v1, …"""
    rows = np.asarray(vectors, dtype=np.float32)
    names = [f"v{number}" for number in range(len(rows))] if ids is None else list(ids)
    job = FolderJob("encode", "embeddings", str(folder), {"source": source})
    writer = ShardWriter(job.begin(), dimension=rows.shape[1], dtype=dtype)
    for start in range(0, len(rows), shard_size):
        writer.write(names[start : start + shard_size], rows[start : start + shard_size], digest=str(start))
    job.finish(
        encoder=encoder,
        dimension=rows.shape[1],
        dtype=dtype,
        role=role,
        part={"number": part[0], "of": part[1]},
        shards=writer.entries,
    )
    return str(folder)
