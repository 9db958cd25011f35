"""drtk convert --as embeddings: vectors of other programs in and out."""

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
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
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
    ids = tmp_path / "queries.gz"
    ids.write_bytes(gzip.compress(b"q1\nq2\n"))
    run_command(capfd, "convert", passages, "--as", "embeddings", "-o", tmp_path / "p")
    run_command(capfd, "convert", queries, "--as", "embeddings", "--ids", ids, "-o", tmp_path / "q")
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


def test_a_model_is_rejected_that_did_not_encode_the_vectors_or_has_no_effect(tmp_path, capfd):
    source, model, folder = _write(tmp_path / "v.npy"), save_tiny_encoder(tmp_path / "model"), tmp_path / "folder"
    arguments = ("convert", source, "--as", "embeddings", "--model", model, "-o", folder)
    with pytest.raises(MismatchError, match=r"v\.npy: has vectors of dimension 4, but those of .*model have 32; give"):
        run_command(capfd, *arguments)
    run_command(capfd, *arguments, "--set", "dimensions=4")
    encoder = read_manifest(folder)["encoder"]
    assert (encoder["dimension"], encoder["similarity"]) == (4, "cosine")
    to_vectors = f"convert {folder} --as embeddings -o"
    for call, problem in (
        (f"convert {source} --as embeddings --set pooling=mean -o out", "--set pooling requires --model"),
        (f"convert x.jsonl --as passages --model {model} -o out", "--model requires --as embeddings"),
        ("convert x.jsonl --as passages --ids ids.txt -o out", "--ids requires --as embeddings"),
        (f"{to_vectors} o.npy --model {model}", "--ids and --model have no effect when exporting vectors"),
        (f"{to_vectors} v.h5", r"contains embeddings; as output, give a file that ends in \.npy"),
        (f"index {folder} --model {model} -o out", "--model requires --ids"),
    ):
        with pytest.raises(UsageError, match=problem):
            run_command(capfd, *call.split())


def test_a_folder_of_parquet_files_is_read_in_the_order_of_their_names(tmp_path, capfd):
    (tmp_path / "shards").mkdir()
    for number in (1, 0):
        rows = slice(3 * number, 3 * number + 3)
        _write(tmp_path / "shards" / f"part-{number}.parquet", VECTORS[rows], IDS[rows])
    arguments = ("convert", tmp_path / "shards", "--as", "embeddings", "-o", tmp_path / "folder")
    run_command(capfd, *arguments)
    shards = read_shards(tmp_path / "folder")
    assert [id for shard in shards for id in shard.ids] == IDS
    np.testing.assert_array_equal(np.concatenate([shard.vectors for shard in shards]), VECTORS)
    for vectors, id, problem in (
        (VECTORS[:1], "d2", r"part-2\.parquet:1: the id 'd2' occurs twice"),
        (VECTORS[:1, :3], "d6", r"part-2\.parquet: row 1: .* its dimension differs"),
        (VECTORS[:1].astype(np.float16), "d6", "some files have vectors in float16, others not"),
    ):
        _write(tmp_path / "shards" / "part-2.parquet", vectors, [id])
        with pytest.raises(MismatchError, match=problem):
            run_command(capfd, *arguments, "--force")
    assert len(read_shards(tmp_path / "folder")) == len(shards)


def test_parquet_is_read_in_a_new_process(tmp_path):
    source = _write(tmp_path / "v.parquet")
    command = [sys.executable, "-m", "drtk", "convert", source, "--as", "embeddings", "-o", tmp_path / "folder"]
    subprocess.run(command, check=True)


def test_several_columns_of_vectors_are_rejected(tmp_path, capfd):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": IDS, "small": list(VECTORS), "large": list(VECTORS)}), tmp_path / "v.parquet")
    with pytest.raises(MismatchError, match=r"has several columns of vectors \(small, large\); write a file with"):
        run_command(capfd, "convert", tmp_path / "v.parquet", "--as", "embeddings", "-o", tmp_path / "folder")


SHORTER = "v.parquet: row 5: the vector is missing, or its dimension differs"


@pytest.mark.parametrize(
    ("name", "vectors", "ids", "message"),
    [
        ("v.npy", VECTORS, IDS[:4], "v.ids: has 4 ids for 5 vectors"),
        ("v.npy", VECTORS, [*IDS[:4], "d1"], "v.ids:5: the id 'd1' occurs twice"),
        ("v.npy", VECTORS, ["[1,2]"], "v.ids: is not a text file with one id per line"),
        ("v.parquet", VECTORS, np.ones(5), "v.parquet: 'docid' must be a string, got a number; write the ids"),
        ("v.npy", VECTORS, [*IDS[:4], "d 5"], "v.ids:5: 'd 5' is not an id"),
        ("v.npy", np.where(VECTORS[1, 2] == VECTORS, np.nan, VECTORS), IDS, "v.npy: the vector of 'd2' contains NaN"),
        ("v.npy", VECTORS.ravel(), IDS, "v.npy: expected floats of shape (vectors, dimension)"),
        ("v.npy", VECTORS.astype(int), IDS, "v.npy: expected floats of shape (vectors, dimension), got int64"),
        ("v.parquet", [*VECTORS[:4], VECTORS[4, :3]], IDS, SHORTER),
        ("v.parquet", [*VECTORS[:4], None], IDS, SHORTER),
    ],
)
def test_invalid_vectors_and_ids_are_rejected(name, vectors, ids, message, tmp_path, capfd):
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
