"""Convert vectors of other programs (.npy, safetensors, Parquet) to embeddings folders, and back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from drtk.data.arrays import scale_to_unit_length
from drtk.data.config import VECTOR_FILE_SUFFIXES
from drtk.data.embeddings import KIND, PAIR_ROLE, Shard, ShardWriter, check_finite, digest_records, read_shards
from drtk.data.rows import parse_id
from drtk.data.tables import list_parquet_files, require_library
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.runtime.atomic import commit, set_default_permissions, sync
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.manifest import describe_folder, find_inputs, read_manifest, read_manifest_if_any
from drtk.runtime.progress import log
from drtk.runtime.streams import open_input, read_lines

_ID_COLUMNS = ("_id", "id", "docid", "doc_id", "qid", "query_id", "passage_id")
_SHARD_ROWS = 100_000
Block = tuple[list[str], np.ndarray]  # ids and their vectors, (ids, dimension)


def import_vectors(source: str, ids_file: str | None, job: FolderJob, *, encoder: dict[str, Any] | None = None) -> None:
    """Write the vectors of a file to the embeddings folder of `job`; float16 stays float16, other types become float32.

    source: file that ends in one of VECTOR_FILE_SUFFIXES, or folder of Parquet files
    ids_file: file with one id per line; by default NAME.ids beside the file, or the id column of a Parquet file
    encoder: identity of the encoder; vectors are scaled to unit length if it normalizes its vectors
    Raises DrtkError for NaN or infinity, MismatchError for vectors that are not floats or of another dimension than
    `encoder`, a wrong number of ids or duplicate ids, UsageError for a suffix that is not in VECTOR_FILE_SUFFIXES.
    """
    if read_manifest_if_any(Path(source)).get("kind") == KIND:
        raise UsageError(
            f"{source}: contains embeddings; as output, give a file that ends in {', '.join(VECTOR_FILE_SUFFIXES)}"
        )
    files = list_parquet_files(Path(source)) if Path(source).is_dir() else [Path(source)]
    suffix = files[0].suffix if files else ""
    if suffix not in VECTOR_FILE_SUFFIXES:
        raise UsageError(
            f"{source}: expected a file that ends in {', '.join(VECTOR_FILE_SUFFIXES)}, or a folder of Parquet files"
        )
    if suffix == ".parquet" and ids_file is not None:
        raise UsageError(f"`ids` has no effect on {source}, which has a column of ids; omit it")
    ids_name = source if suffix == ".parquet" else ids_file or str(Path(source).with_suffix(".ids"))
    writer: ShardWriter | None = None
    blocks = _iter_parquet(files, source) if suffix == ".parquet" else _iter_tensor(source, ids_name)
    for ids, vectors in _convert_errors(source, blocks):
        if writer is None:
            check_encoder(source, vectors.shape[1], encoder)
            dtype = "float16" if vectors.dtype == np.float16 else "float32"
            writer = ShardWriter(job.begin(), dimension=vectors.shape[1], dtype=dtype, model=source)
        if (vectors.dtype == np.float16) != (dtype == "float16"):
            raise MismatchError(f"{source}: some files have vectors in float16, others not; write all in one type")
        if encoder is not None and encoder["normalized"]:
            vectors = scale_to_unit_length(vectors.astype(np.float32))
        writer.write(ids, vectors, digest=digest_records(ids))
    if writer is None:
        raise DrtkError(f"{source}: contains no vectors; check the file")
    job.counts["vectors"] = writer.num_rows
    job.tracker.inputs += find_inputs({name: name for name in (source, ids_name)})
    job.finish(encoder=encoder, dimension=writer.dimension, dtype=str(writer.dtype), shards=writer.entries)
    log_unknown_encoder(source, encoder)


def log_unknown_encoder(source: str, encoder: dict[str, Any] | None) -> None:
    """Log that queries cannot be encoded if imported vectors have no encoder."""
    if encoder is None:
        log(f"{source}: the encoder is not recorded, so queries must be vectors; to record it, give `model`")


def check_encoder(source: str, dimension: int, encoder: dict[str, Any] | None) -> None:
    """Raise MismatchError if imported vectors have another dimension than those of `encoder`."""
    if encoder is not None and dimension != encoder["dimension"]:
        raise MismatchError(
            f"{source}: has vectors of dimension {dimension}, but those of {encoder['model']} have {encoder['dimension']}; "
            "give the model that encoded them, or `dimensions` if they are truncated"
        )


def _convert_errors(source: str, blocks: Iterator[Block]) -> Iterator[Block]:
    """Yield the blocks of a file; raise DrtkError if it cannot be read."""
    try:
        yield from blocks
    except DrtkError:
        raise
    except OSError as error:
        raise DrtkError(f"{source}: {error.strerror or error}") from error
    except Exception as error:  # numpy, safetensors and Arrow raise many types
        raise DrtkError(f"{source}: cannot be read ({error}); check the file") from error


def _iter_tensor(source: str, ids_name: str) -> Iterator[Block]:
    vectors = _read_tensor(source)
    if vectors.ndim != 2 or not vectors.size or vectors.dtype.kind != "f":
        raise MismatchError(
            f"{source}: expected floats of shape (vectors, dimension), got {vectors.dtype} of shape {vectors.shape}"
        )
    ids = read_ids(ids_name, len(vectors))
    for start in range(0, len(ids), _SHARD_ROWS):
        yield ids[start : start + _SHARD_ROWS], vectors[start : start + _SHARD_ROWS]


def _read_tensor(source: str) -> np.ndarray:
    """Return the array of a .npy file, memory-mapped, or the only tensor of a safetensors file."""
    if source.endswith(".npy"):
        return np.lib.format.open_memmap(source, mode="r")
    from safetensors import safe_open

    with safe_open(source, "pt") as file:  # numpy has no bfloat16
        names = list(file.keys())
        if len(names) != 1:
            raise MismatchError(f"{source}: has {len(names):,} tensors; expected one with the vectors")
        tensor = file.get_tensor(names[0])
    is_half = str(tensor.dtype) == "torch.float16"
    return (tensor if is_half or not tensor.is_floating_point() else tensor.float()).numpy()


def _iter_parquet(files: list[Path], source: str) -> Iterator[Block]:
    """Yield the ids and vectors of Parquet files with an id column and a column of lists of floats."""
    pa = require_library("pyarrow", "reading Parquet")
    compute = import_module("pyarrow.compute")
    seen: set[str] = set()
    dimension: float | None = None
    for path in files:
        with pa.parquet.ParquetFile(path) as file:
            names = _choose_columns(pa, path, file.schema_arrow)
            first = 1
            for batch in file.iter_batches(_SHARD_ROWS, columns=names):
                ids = [_parse_id(id, names[0], path) for id in batch.column(names[0]).to_pylist()]
                column = batch.column(names[1])
                lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)  # NaN for a null
                dimension = lengths[0] if dimension is None else dimension
                different = np.flatnonzero(lengths != dimension)
                if len(different):
                    raise MismatchError(
                        f"{path}: row {first + int(different[0]):,}: the vector is missing, or its dimension differs from "
                        "the first; correct the file"
                    )
                values = column.flatten()
                if values.null_count:
                    raise MismatchError(f"{path}: column '{names[1]}' has vectors with nulls; replace or remove them")
                _check_ids(ids, str(path), seen, first)
                yield ids, values.to_numpy(zero_copy_only=False).reshape(len(ids), -1)
                first += len(ids)


def _parse_id(id: Any, column: str, path: Path) -> str:
    try:
        return parse_id(id, column)
    except ValueError as error:
        raise MismatchError(f"{path}: {error}; write the ids as strings") from error


def _choose_columns(pa: Any, path: Path, schema: Any) -> list[str]:
    """Return the id column and the column of vectors. Raises MismatchError if one is missing or if several have vectors."""
    ids = [name for name in _ID_COLUMNS if name in schema.names]
    is_list = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    vectors = [
        field.name
        for field in schema
        if any(check(field.type) for check in is_list) and pa.types.is_floating(field.type.value_type)
    ]
    if len(vectors) > 1:
        raise MismatchError(
            f"{path}: has several columns of vectors ({', '.join(vectors)}); write a file with the ids and one of them"
        )
    if not ids or not vectors:
        raise MismatchError(
            f"{path}: expected an id column ({', '.join(_ID_COLUMNS)}) and one column of lists of floats, "
            f"got the columns {', '.join(schema.names)}"
        )
    return [ids[0], vectors[0]]


def read_ids(path: str, count: int) -> list[str]:
    """Return the `count` ids in a file with one id per line.

    Raises DrtkError for a missing file, a wrong number of ids, or an invalid or duplicate id.
    """
    if not Path(path).exists():
        raise DrtkError(f"{path}: No such file; give the file with the ids of the vectors as `ids`")
    with open_input(path)[0] as stream:
        ids = [line.decode("utf-8", "surrogateescape") for _, line in read_lines(stream, path)]
    if len(ids) != count and ids and (ids[0].startswith("[") or "\0" in ids[0]):
        raise MismatchError(f"{path}: is not a text file with one id per line; create such a file")
    if len(ids) != count:
        raise MismatchError(f"{path}: has {len(ids):,} ids for {count:,} vectors; give one id per line for each vector")
    _check_ids(ids, path, set(), 1)
    return ids


def _check_ids(ids: list[str], name: str, seen: set[str], first: int) -> None:
    """Check the ids of a file from row `first`, from 1, and add them to `seen`. Raises RecordError and MismatchError."""
    for row, id in enumerate(ids, start=first):
        if id.split() != [id] or not id.isprintable():
            raise RecordError(f"{name}:{row}", f"{id!r} is not an id; an id must be one printable word")
        if id in seen:
            raise MismatchError(f"{name}:{row}: the id '{id}' occurs twice; make the ids unique")
        seen.add(id)


def export_vectors(folder: str, job: FilterJob) -> None:
    """Write the vectors of an embeddings folder to a file, and the ids to NAME.ids beside it or to a column of Parquet.

    Raises UsageError for `resume`, DrtkError if NAME.ids exists with other ids and `force` is not set.
    """
    if job.resume:
        raise UsageError("writing vectors cannot be resumed; remove `resume`")
    if not Path(folder).is_dir():
        raise UsageError(f"{folder}: is not an embeddings folder; give a folder from `drtk encode`")
    output = Path(job.output)
    manifest = read_manifest(folder, kind=KIND)
    if manifest.get("role") == PAIR_ROLE:
        raise MismatchError(f"{folder}: contains vectors of pairs; give vectors of texts")
    shards = read_shards(folder)
    count, ids_file = sum(shard.num_rows for shard in shards), output.with_suffix(".ids")
    ids_text = "".join(f"{id}\n" for shard in shards for id in shard.ids)
    is_other = ids_file.exists() and ids_file.read_text(encoding="utf-8", errors="replace") != ids_text
    if output.suffix != ".parquet" and is_other:
        others = [path for suffix in (".npy", ".safetensors") if (path := output.with_suffix(suffix)) != output]
        if owner := next(filter(Path.exists, others), None):
            raise DrtkError(f"{ids_file}: has the ids of {owner}; choose another name")
        if not job.force:
            raise DrtkError(f"{ids_file}: exists already; `force` replaces it")
    part, ids_part = Path(f"{output}.part"), Path(f"{ids_file}.part")
    try:
        _WRITERS[output.suffix](part, shards)
        sync(part)
        if output.suffix != ".parquet":
            ids_part.write_text(ids_text, encoding="utf-8")
            sync(ids_part)
            os.replace(ids_part, ids_file)
        job.kind, job.tracker.inputs = KIND, [describe_folder(folder)]
        commit(part, output, job.build_manifest(count))
    except OSError as error:
        raise DrtkError(f"{output}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
        ids_part.unlink(missing_ok=True)
    job.log_count(count, "vectors")


def _iter_finite_vectors(shards: list[Shard]) -> Iterator[np.ndarray]:
    for shard in shards:
        check_finite(shard, shard.vectors, range(shard.num_rows))
        yield shard.vectors


def _write_npy(part: Path, shards: list[Shard]) -> None:
    shape = (sum(shard.num_rows for shard in shards), shards[0].dimension)
    with part.open("wb") as file:
        header = {"descr": shards[0].vectors.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for vectors in _iter_finite_vectors(shards):
            file.write(np.ascontiguousarray(vectors).data)


def _write_safetensors(part: Path, shards: list[Shard]) -> None:
    from safetensors.numpy import save_file

    save_file({"vectors": np.concatenate(list(_iter_finite_vectors(shards)))}, part)
    set_default_permissions(part)


def _write_parquet(part: Path, shards: list[Shard]) -> None:
    pa: Any = require_library("pyarrow", "writing Parquet")
    number = pa.from_numpy_dtype(shards[0].vectors.dtype)
    schema = pa.schema([("id", pa.string()), ("vector", pa.list_(number, shards[0].dimension))])
    with pa.parquet.ParquetWriter(part, schema) as writer:
        for shard, vectors in zip(shards, _iter_finite_vectors(shards), strict=True):
            flat = pa.array(np.ascontiguousarray(vectors).reshape(-1), number)
            column = pa.FixedSizeListArray.from_arrays(flat, shard.dimension)
            writer.write_table(pa.table([pa.array(shard.ids, pa.string()), column], schema=schema))


_WRITERS = {".npy": _write_npy, ".safetensors": _write_safetensors, ".parquet": _write_parquet}
