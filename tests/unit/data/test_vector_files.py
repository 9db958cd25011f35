"""drtk convert --as embeddings: vectors of other programs in and out."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from drtk.data.embeddings import read_shards
from drtk.errors import DrtkError, UsageError
from tests.run_commands import run_command

VECTORS = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
IDS = ["d1", "d2", "d3", "d4", "d5"]


def _write(path: Path, vectors: np.ndarray = VECTORS, ids: list[str] | None = None) -> Path:
    """Write vectors and ids with the library of the format, as other programs do."""
    ids = IDS if ids is None else ids
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"docid": ids, "embedding": list(vectors)}), path)
        return path
    if path.suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file({"embeddings": vectors}, path)
    else:
        np.save(path, vectors)
    path.with_suffix(".ids").write_text("".join(f"{id}\n" for id in ids))
    return path


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".parquet"])
def test_vectors_of_each_format_are_equal_after_conversion_and_back(suffix, dtype, tmp_path, capfd):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    source = _write(tmp_path / f"in{suffix}", VECTORS.astype(dtype))
    run_command(capfd, "convert", source, "--as", "embeddings", "-o", tmp_path / "folder")
    (shard,) = read_shards(tmp_path / "folder")
    assert shard.ids == IDS
    assert shard.vectors.dtype == dtype
    np.testing.assert_array_equal(shard.vectors, VECTORS.astype(dtype))

    out = tmp_path / f"out{suffix}"
    run_command(capfd, "convert", tmp_path / "folder", "--as", "embeddings", "-o", out)
    if suffix == ".npy":
        np.testing.assert_array_equal(np.load(out), VECTORS.astype(dtype))
    run_command(capfd, "convert", out, "--as", "embeddings", "-o", tmp_path / "again")
    (again,) = read_shards(tmp_path / "again")
    assert again.ids == IDS
    np.testing.assert_array_equal(again.vectors, VECTORS.astype(dtype))


def test_converted_vectors_are_indexed_and_searched(tmp_path, capfd):
    passages, queries = _write(tmp_path / "passages.npy"), tmp_path / "queries.npy"
    np.save(queries, VECTORS[:2])
    (tmp_path / "queries.txt").write_text("q1\nq2\n")
    run_command(capfd, "convert", passages, "--as", "embeddings", "-o", tmp_path / "p")
    run_command(
        capfd, "convert", queries, "--as", "embeddings", "--ids", tmp_path / "queries.txt", "-o", tmp_path / "q"
    )
    run_command(capfd, "index", tmp_path / "p", "-o", tmp_path / "index")
    run_command(capfd, "search", tmp_path / "index", tmp_path / "q", "-k", "1", "-o", tmp_path / "run")
    hits = [line.split() for line in (tmp_path / "run").read_text().splitlines()]
    best = (VECTORS[:2] @ VECTORS.T).argmax(axis=1)
    assert [(hit[0], hit[2]) for hit in hits] == [("q1", IDS[best[0]]), ("q2", IDS[best[1]])]


@pytest.mark.parametrize(
    ("name", "vectors", "ids", "message"),
    [
        ("v.npy", VECTORS, IDS[:4], "v.ids: has 4 ids for 5 vectors"),
        ("v.npy", VECTORS, [*IDS[:4], "d1"], "v.ids:5: the id 'd1' is also in line 1"),
        ("v.npy", VECTORS, [*IDS[:4], "d 5"], "v.ids:5: 'd 5' is not an id"),
        ("v.npy", np.where(VECTORS[1, 2] == VECTORS, np.nan, VECTORS), IDS, "v.npy: the vector of 'd2' contains NaN"),
        ("v.npy", VECTORS.ravel(), IDS, "v.npy: expected floats of shape (vectors, dimension)"),
        ("v.npy", VECTORS.astype(int), IDS, "v.npy: expected floats of shape (vectors, dimension), got int64"),
        (
            "v.parquet",
            [*VECTORS[:4], VECTORS[4, :3]],
            IDS,
            "v.parquet: row 5: the vector is missing, or its dimension differs",
        ),
        ("v.parquet", [*VECTORS[:4], None], IDS, "v.parquet: row 5: the vector is missing, or its dimension differs"),
    ],
)
def test_invalid_vectors_and_ids_are_rejected(name, vectors, ids, message, tmp_path, capfd):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    source = _write(tmp_path / name, vectors, ids)
    with pytest.raises(DrtkError, match=re.escape(message)):
        run_command(capfd, "convert", source, "--as", "embeddings", "-o", tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_existing_ids_beside_the_output_are_kept(tmp_path, capfd):
    source = _write(tmp_path / "in.npy")
    run_command(capfd, "convert", source, "--as", "embeddings", "-o", tmp_path / "folder")
    (tmp_path / "out.ids").write_text("mine\n")
    call = ("convert", tmp_path / "folder", "--as", "embeddings", "-o", tmp_path / "out.npy")
    with pytest.raises(DrtkError, match=r"out\.ids: exists already; `force` replaces it"):
        run_command(capfd, *call)
    assert (tmp_path / "out.ids").read_text() == "mine\n"
    run_command(capfd, *call, "--force")
    assert (tmp_path / "out.ids").read_text().split() == IDS


def test_ids_without_vectors_are_rejected(tmp_path, capfd):
    with pytest.raises(UsageError, match="requires --as embeddings"):
        run_command(capfd, "convert", "x.jsonl", "--as", "passages", "--ids", "ids.txt", "-o", tmp_path / "out")
