"""drtk convert --as embeddings: vectors of other programs in and out."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from drtk.data.embeddings import read_shards
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.runtime.manifest import read_manifest
from drtk.serving.systems import SearchSystem
from tests.run_commands import run_command
from tests.tiny_models import save_tiny_encoder, write_collection

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
    assert out.stat().st_mode == (tmp_path / "folder" / "meta.json").stat().st_mode  # safetensors ignores the umask
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


@pytest.mark.parametrize("normalize", [False, True])
def test_vectors_of_a_given_model_are_searched_as_those_of_encode(normalize, tmp_path, capfd):
    corpus, queries, _ = write_collection(tmp_path, 30)
    model = save_tiny_encoder(tmp_path / "model", similarity="cosine", normalize=normalize)
    for name, file, role in (("p", corpus, "passage"), ("q", queries, "query")):
        run_command(capfd, "encode", file, "--model", model, "--role", role, "-o", tmp_path / name)
        (shard,) = read_shards(tmp_path / name)
        lengths = np.random.default_rng(0).uniform(0.1, 10, (30, 1)).astype(np.float32)
        file = _write(tmp_path / f"{name}.npy", shard.vectors * lengths, shard.ids)
        imported = tmp_path / f"imported-{name}"
        run_command(capfd, "convert", file, "--as", "embeddings", "--model", model, "-o", imported)
        assert read_manifest(imported)["encoder"] == read_manifest(tmp_path / name)["encoder"]
    runs = {}
    for folder in ("p", "imported-p"):
        run_command(capfd, "index", tmp_path / folder, "-o", tmp_path / f"{folder}-index")
        for source in (queries, tmp_path / "q", tmp_path / "imported-q"):
            lines = run_command(capfd, "search", tmp_path / f"{folder}-index", source, "-k", "5").splitlines()
            runs[folder, source] = [line.split() for line in lines]
    expected = runs["p", queries]
    for run in runs.values():
        assert [hit[:4] for hit in run] == [hit[:4] for hit in expected]
        np.testing.assert_allclose([float(hit[4]) for hit in run], [float(hit[4]) for hit in expected], atol=1e-5)
    assert SearchSystem("imported", str(tmp_path / "imported-p-index")).group.encoder is not None  # as drtk serve

    other = save_tiny_encoder(tmp_path / "other", similarity="cosine", normalize=normalize, seed=2)
    with pytest.raises(MismatchError, match="differs from the encoder of"):
        run_command(capfd, "search", tmp_path / "imported-p-index", queries, "--model", other)


def test_a_model_is_rejected_that_did_not_encode_the_vectors_or_has_no_effect(tmp_path, capfd):
    source, model = _write(tmp_path / "v.npy"), save_tiny_encoder(tmp_path / "model")
    arguments = ("convert", source, "--as", "embeddings", "--model", model, "-o", tmp_path / "folder")
    with pytest.raises(MismatchError, match=r"v\.npy: has vectors of dimension 4, but those of .*model have 32; give"):
        run_command(capfd, *arguments)
    run_command(capfd, *arguments, "--set", "dimensions=4")
    encoder = read_manifest(tmp_path / "folder")["encoder"]
    assert (encoder["dimension"], encoder["similarity"]) == (4, "cosine")
    with pytest.raises(UsageError, match="--set pooling requires --model"):
        run_command(capfd, "convert", source, "--as", "embeddings", "--set", "pooling=mean", "-o", tmp_path / "out")
    with pytest.raises(UsageError, match="--model requires --as embeddings"):
        run_command(capfd, "convert", "x.jsonl", "--as", "passages", "--model", model, "-o", tmp_path / "out")
    with pytest.raises(UsageError, match="--ids and --model have no effect when exporting vectors"):
        run_command(
            capfd, "convert", tmp_path / "folder", "--as", "embeddings", "--model", model, "-o", tmp_path / "out.npy"
        )
    with pytest.raises(UsageError, match="--model requires --ids"):
        run_command(capfd, "index", tmp_path / "folder", "--model", model, "-o", tmp_path / "out")


def test_a_folder_of_parquet_files_is_read_in_the_order_of_their_names(tmp_path, capfd):
    pytest.importorskip("pyarrow")
    (tmp_path / "shards").mkdir()
    for number in (1, 0):
        rows = slice(3 * number, 3 * number + 3)
        _write(tmp_path / "shards" / f"part-{number}.parquet", VECTORS[rows], IDS[rows])
    arguments = ("convert", tmp_path / "shards", "--as", "embeddings", "-o", tmp_path / "folder")
    run_command(capfd, *arguments)
    shards = read_shards(tmp_path / "folder")
    assert [id for shard in shards for id in shard.ids] == IDS
    np.testing.assert_array_equal(np.concatenate([shard.vectors for shard in shards]), VECTORS)
    _write(tmp_path / "shards" / "part-2.parquet", VECTORS[:1], ["d2"])
    with pytest.raises(MismatchError, match=r"part-2\.parquet:1: the id 'd2' occurs twice"):
        run_command(capfd, *arguments, "--force")
    _write(tmp_path / "shards" / "part-2.parquet", VECTORS[:1, :3], ["d6"])
    with pytest.raises(MismatchError, match=r"part-2\.parquet: row 1: .* its dimension differs"):
        run_command(capfd, *arguments, "--force")
    _write(tmp_path / "shards" / "part-2.parquet", VECTORS[:1].astype(np.float16), ["d6"])
    with pytest.raises(MismatchError, match="some files have vectors in float16, others not"):
        run_command(capfd, *arguments, "--force")
    assert len(read_shards(tmp_path / "folder")) == len(shards)


def test_parquet_is_read_in_a_new_process(tmp_path):
    pytest.importorskip("pyarrow")
    source = _write(tmp_path / "v.parquet")
    command = [sys.executable, "-m", "drtk", "convert", source, "--as", "embeddings", "-o", tmp_path / "folder"]
    subprocess.run(command, check=True)


def test_several_columns_of_vectors_are_rejected(tmp_path, capfd):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": IDS, "small": list(VECTORS), "large": list(VECTORS)}), tmp_path / "v.parquet")
    with pytest.raises(MismatchError, match=r"has several columns of vectors \(small, large\); write a file with"):
        run_command(capfd, "convert", tmp_path / "v.parquet", "--as", "embeddings", "-o", tmp_path / "folder")


@pytest.mark.parametrize(
    ("name", "vectors", "ids", "message"),
    [
        ("v.npy", VECTORS, IDS[:4], "v.ids: has 4 ids for 5 vectors"),
        ("v.npy", VECTORS, [*IDS[:4], "d1"], "v.ids:5: the id 'd1' occurs twice"),
        ("v.npy", VECTORS, ["[1,2]"], "v.ids: is not a text file with one id per line"),
        (
            "v.parquet",
            VECTORS,
            [0.5, 1.5, 2.5, 3.5, 4.5],
            "v.parquet: 'docid' must be a string, got a number; write the ids",
        ),
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
    (tmp_path / "out.npy").rename(tmp_path / "out.safetensors")
    (tmp_path / "out.ids").write_text("theirs\n")
    with pytest.raises(DrtkError, match=r"out\.ids: has the ids of .*out\.safetensors; choose another name"):
        run_command(capfd, *call, "--force")


def test_embeddings_are_converted_to_known_files_only(tmp_path, capfd):
    run_command(capfd, "convert", _write(tmp_path / "v.npy"), "--as", "embeddings", "-o", tmp_path / "v")
    with pytest.raises(UsageError, match=r"v: contains embeddings; as output, give a file that ends in \.npy"):
        run_command(capfd, "convert", tmp_path / "v", "--as", "embeddings", "-o", tmp_path / "v.h5")


def test_compressed_ids_are_read(tmp_path, capfd):
    source = _write(tmp_path / "v.npy", VECTORS)
    (tmp_path / "ids.gz").write_bytes(gzip.compress(source.with_suffix(".ids").read_bytes()))
    run_command(capfd, "convert", source, "--as", "embeddings", "--ids", tmp_path / "ids.gz", "-o", tmp_path / "folder")
    assert read_shards(tmp_path / "folder")[0].ids == IDS


def test_ids_without_vectors_are_rejected(tmp_path, capfd):
    with pytest.raises(UsageError, match="requires --as embeddings"):
        run_command(capfd, "convert", "x.jsonl", "--as", "passages", "--ids", "ids.txt", "-o", tmp_path / "out")
