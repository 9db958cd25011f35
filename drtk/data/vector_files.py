"""Convert vectors of other programs (.npy, safetensors, Parquet) to embeddings folders, and back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from drtk.data.config import VECTOR_FILE_SUFFIXES
from drtk.data.embeddings import KIND, PAIR_ROLE, Shard, ShardWriter, check_finite, digest_records, read_shards
from drtk.data.tables import require_library
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.runtime.atomic import commit, sync
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.manifest import Clock, complete_manifest, create_manifest, describe_folder, find_inputs, read_manifest
from drtk.runtime.progress import log
from drtk.runtime.streams import read_lines

_ID_COLUMNS = ("_id", "id", "docid", "doc_id", "qid", "query_id", "passage_id")
_SHARD_ROWS = 100_000


def import_vectors(source: str, ids_file: str | None, job: FolderJob) -> None:
    """Write the vectors of a file to the embeddings folder of `job`; float16 stays float16, other types become float32.

    ids_file: file with one id per line; by default NAME.ids beside the file, or the id column of a Parquet file
    Raises DrtkError for NaN or infinity, MismatchError for vectors that are not floats, a wrong number of ids or
    duplicate ids, UsageError for a suffix that is not in VECTOR_FILE_SUFFIXES.
    """
    suffix = Path(source).suffix
    if suffix not in VECTOR_FILE_SUFFIXES:
        raise UsageError(f"{source}: expected a file that ends in {', '.join(VECTOR_FILE_SUFFIXES)}")
    if suffix == ".parquet" and ids_file is not None:
        raise UsageError(f"`ids` has no effect on {source}, which has a column of ids; omit it")
    try:
        ids, vectors = _read_parquet(source) if suffix == ".parquet" else (None, _read_tensor(source))
    except DrtkError:
        raise
    except OSError as error:
        raise DrtkError(f"{source}: {error.strerror or error}") from error
    except Exception as error:  # numpy, safetensors and Arrow raise many types
        raise DrtkError(f"{source}: cannot be read ({error}); check the file") from error
    if vectors.ndim != 2 or not vectors.size or vectors.dtype.kind != "f":
        raise MismatchError(
            f"{source}: expected floats of shape (vectors, dimension), got {vectors.dtype} of shape {vectors.shape}"
        )
    ids_name = source if ids is not None else ids_file or str(Path(source).with_suffix(".ids"))
    if ids is None:
        ids = read_ids(ids_name, len(vectors))
    else:
        _check_ids(ids, ids_name)
    dtype = "float16" if vectors.dtype == np.float16 else "float32"
    writer = ShardWriter(job.begin(), dimension=vectors.shape[1], dtype=dtype, model=source)
    for start in range(0, len(ids), _SHARD_ROWS):
        part = ids[start : start + _SHARD_ROWS]
        writer.write(part, vectors[start : start + _SHARD_ROWS], digest=digest_records(part))
    job.counts["vectors"] = len(ids)
    job.tracker.inputs += find_inputs({"source": source, "ids": ids_name})
    job.finish(encoder=None, dimension=vectors.shape[1], dtype=dtype, shards=writer.entries)


def _read_tensor(source: str) -> np.ndarray:
    """Return the array of a .npy file, memory-mapped, or the only tensor of a safetensors file."""
    if source.endswith(".npy"):
        array: np.ndarray = np.lib.format.open_memmap(source, mode="r")
        return array
    from safetensors import safe_open

    with safe_open(source, "pt") as file:  # numpy has no bfloat16
        names = list(file.keys())
        if len(names) != 1:
            raise MismatchError(f"{source}: has {len(names):,} tensors; expected one with the vectors")
        tensor = file.get_tensor(names[0])
    is_half = str(tensor.dtype) == "torch.float16"
    vectors: np.ndarray = (tensor if is_half or not tensor.is_floating_point() else tensor.float()).numpy()
    return vectors


def _read_parquet(source: str) -> tuple[list[str], np.ndarray]:
    """Return the ids and the vectors of a Parquet file with an id column and a column of lists of floats."""
    pa = require_library("pyarrow", "reading Parquet")
    types = pa.types
    schema = pa.parquet.read_schema(source)
    id_columns = [name for name in _ID_COLUMNS if name in schema.names]
    is_list = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    columns = [
        field.name
        for field in schema
        if any(check(field.type) for check in is_list) and types.is_floating(field.type.value_type)
    ]
    if not id_columns or len(columns) != 1:
        raise MismatchError(
            f"{source}: expected an id column ({', '.join(_ID_COLUMNS)}) and one column of lists of floats, "
            f"got the columns {', '.join(schema.names)}"
        )
    table = pa.parquet.read_table(source, columns=[id_columns[0], columns[0]])
    ids = ["" if id is None else str(id) for id in table[id_columns[0]].to_pylist()]
    column = table[columns[0]].combine_chunks()
    lengths = pa.compute.list_value_length(column).to_numpy(zero_copy_only=False)
    different: Any = np.flatnonzero(lengths != lengths[0]) if len(lengths) else []  # NaN for a null
    if len(different):
        row = int(different[0])
        raise MismatchError(
            f"{source}: row {row + 1:,}: the vector is missing, or its dimension differs from the first; correct the file"
        )
    values = column.flatten()
    if values.null_count:
        raise MismatchError(f"{source}: column '{columns[0]}' has vectors with nulls; replace or remove them")
    return ids, values.to_numpy(zero_copy_only=False).reshape(len(ids), -1)


def read_ids(path: str, count: int) -> list[str]:
    """Return the `count` ids in a file with one id per line.

    Raises DrtkError for a missing file, a wrong number of ids, or an invalid or duplicate id.
    """
    if not Path(path).exists():
        raise DrtkError(f"{path}: No such file; give the file with the ids of the vectors as `ids`")
    with open(path, "rb") as stream:
        ids = [line.decode("utf-8", "surrogateescape") for _, line in read_lines(stream, path)]
    if len(ids) != count:
        raise MismatchError(f"{path}: has {len(ids):,} ids for {count:,} vectors; give one id per line for each vector")
    _check_ids(ids, path)
    return ids


def _check_ids(ids: list[str], name: str) -> None:
    seen: dict[str, int] = {}
    for row, id in enumerate(ids, start=1):
        if id.split() != [id] or not id.isprintable():
            raise RecordError(f"{name}:{row}", f"{id!r} is not an id; an id must be one printable word")
        if (first := seen.setdefault(id, row)) != row:
            raise MismatchError(f"{name}:{row}: the id '{id}' is also in line {first:,}; make the ids unique")


def export_vectors(folder: str, job: FilterJob) -> None:
    """Write the vectors of an embeddings folder to a file, and the ids to NAME.ids beside it or to a column of Parquet.

    Raises UsageError for `resume`, DrtkError if NAME.ids exists and `force` is not set.
    """
    if job.resume:
        raise UsageError("writing vectors cannot be resumed; remove `resume`")
    if not Path(folder).is_dir():
        raise UsageError(f"{folder}: is not an embeddings folder; give a folder from `drtk encode`")
    output, clock = Path(job.output), Clock()
    manifest = read_manifest(folder, kind=KIND)
    if manifest.get("role") == PAIR_ROLE:
        raise MismatchError(f"{folder}: contains vectors of pairs; give vectors of texts")
    shards = read_shards(folder)
    count, ids_file = sum(shard.num_rows for shard in shards), output.with_suffix(".ids")
    if output.suffix != ".parquet" and ids_file.exists() and not job.force:
        raise DrtkError(f"{ids_file}: exists already; `force` replaces it")
    part, ids_part = Path(f"{output}.part"), Path(f"{ids_file}.part")
    try:
        _WRITERS[output.suffix](part, shards)
        sync(part)
        if output.suffix != ".parquet":
            ids_part.write_text("".join(f"{id}\n" for shard in shards for id in shard.ids), encoding="utf-8")
            sync(ids_part)
            os.replace(ids_part, ids_file)
        new_manifest = create_manifest(KIND, job.settings, program=job.command)
        counts = {"in": count, "out": count}
        commit(
            part,
            output,
            complete_manifest(new_manifest, inputs=[describe_folder(folder)], counts=counts, seconds=clock.seconds),
        )
    except OSError as error:
        raise DrtkError(f"{output}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
        ids_part.unlink(missing_ok=True)
    log(f"{job.command}: {count:,} vectors, {clock.seconds:,.1f} s -> {job.output}")


def _iter_vectors(shards: list[Shard]) -> Iterator[np.ndarray]:
    for shard in shards:
        check_finite(shard, shard.vectors, range(shard.num_rows))
        yield shard.vectors


def _write_npy(part: Path, shards: list[Shard]) -> None:
    shape = (sum(shard.num_rows for shard in shards), shards[0].dimension)
    with part.open("wb") as file:
        header = {"descr": shards[0].vectors.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for vectors in _iter_vectors(shards):
            file.write(np.ascontiguousarray(vectors).data)


def _write_safetensors(part: Path, shards: list[Shard]) -> None:
    from safetensors.numpy import save_file

    save_file({"vectors": np.concatenate(list(_iter_vectors(shards)))}, part)


def _write_parquet(part: Path, shards: list[Shard]) -> None:
    pa: Any = require_library("pyarrow", "writing Parquet")
    number = pa.from_numpy_dtype(shards[0].vectors.dtype)
    schema = pa.schema([("id", pa.string()), ("vector", pa.list_(number, shards[0].dimension))])
    with pa.parquet.ParquetWriter(part, schema) as writer:
        for shard, vectors in zip(shards, _iter_vectors(shards), strict=True):
            flat = pa.array(np.ascontiguousarray(vectors).reshape(-1), number)
            column = pa.FixedSizeListArray.from_arrays(flat, shard.dimension)
            writer.write_table(pa.table([pa.array(shard.ids, pa.string()), column], schema=schema))


_WRITERS = {".npy": _write_npy, ".safetensors": _write_safetensors, ".parquet": _write_parquet}
