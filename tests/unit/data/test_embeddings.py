"""Embedding shards, and vectors of (query, document) pairs."""

from pathlib import Path

import numpy as np
import pytest

from drtk.data.embeddings import PairVectors, ShardWriter, make_pair_id, read_shards, write_pairs
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.runtime.atomic import write_json


def finish(folder: Path, writer: ShardWriter) -> None:
    manifest = {"kind": "embeddings", "dimension": writer.dimension, "shards": writer.entries}
    write_json(folder / "meta.json", manifest)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_written_shards_are_read_back(tmp_path: Path, dtype: str):
    writer = ShardWriter(tmp_path, dimension=3, dtype=dtype)
    blocks = [np.arange(3 * count, dtype=np.float32).reshape(count, 3) / 8 for count in (4, 0, 1, 7)]
    ids = [[f"s{number}r{row}" for row in range(len(block))] for number, block in enumerate(blocks)]
    for number, block in enumerate(blocks):
        writer.write(ids[number], block, digest=str(number))
    finish(tmp_path, writer)
    shards = read_shards(tmp_path)
    assert [shard.ids for shard in shards] == ids
    for shard, block in zip(shards, blocks, strict=True):
        assert shard.vectors.dtype == dtype
        np.testing.assert_array_equal(shard.vectors, block)  # eighths below 16 are exact in float16


def test_a_second_writer_continues_after_finished_shards(tmp_path: Path):
    first = ShardWriter(tmp_path, dimension=2, dtype="float32")
    first.write(["a", "b"], np.ones((2, 2), dtype=np.float32), digest="x")
    second = ShardWriter(tmp_path, dimension=2, dtype="float32")
    assert second.num_rows == 2
    assert second.is_finished(0, "x")
    assert not second.is_finished(1, "y")
    with pytest.raises(MismatchError, match="shard 00000 was made from other records"):
        second.is_finished(0, "z")
    (tmp_path / "00001.npy").write_bytes(b"torn")  # without an entry in the journal
    second.write(["c"], np.zeros((1, 2), dtype=np.float32), digest="y")
    finish(tmp_path, second)
    assert read_shards(tmp_path)[1].vectors.tolist() == [[0.0, 0.0]]


def test_nan_and_overflow_are_rejected(tmp_path: Path):
    writer = ShardWriter(tmp_path, dimension=2, dtype="float16", model="encoder")
    problem = r"^encoder: the vector of 'b' contains .* too large for float16; check the model, or store float32$"
    with pytest.raises(DrtkError, match=problem):
        writer.write(["a", "b"], np.array([[1, 2], [3, 1e6]], dtype=np.float32), digest="x")  # float16 ends at 65504
    assert not list(tmp_path.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    writer = ShardWriter(tmp_path, dimension=2, dtype="float32")
    writer.write(["a", "b"], np.ones((2, 2), dtype=np.float32), digest="x")
    finish(tmp_path, writer)
    return tmp_path


def test_damaged_shards_are_rejected(folder: Path):
    (folder / "00000.ids").write_text("a\n")
    with pytest.raises(MismatchError, match="has 1 ids for 2 vectors"):
        _ = read_shards(folder)[0].ids
    for line, problem in (("", "the id is blank"), ("  ", "the id is blank"), ("b\tc", r"id 'b\\tc' contains")):
        (folder / "00000.ids").write_text(f"a\n{line}\n")
        with pytest.raises(RecordError, match=rf"00000\.ids:2: {problem}"):
            _ = read_shards(folder)[0].ids
    whole = (folder / "00000.npy").read_bytes()
    (folder / "00000.npy").write_bytes(whole[:-4])
    with pytest.raises(DrtkError, match=r"00000\.npy: is damaged; rebuild the folder"):
        _ = read_shards(folder)[0].vectors
    np.save(folder / "00000.npy", np.ones((3, 2), dtype=np.float32))
    with pytest.raises(MismatchError, match=r"shape \(3, 2\); expected \(2, 2\)"):
        _ = read_shards(folder)[0].vectors


# Vectors of pairs.


def pair_folder(folder: Path, pairs: dict[str, list[str]], *, shard: int = 2, role: str = "pair") -> Path:
    """Write a folder of pair vectors, in which all values of row i are i."""
    folder.mkdir()
    writer = ShardWriter(folder, dimension=3, dtype="float16")
    row, queries = 0, list(pairs)
    for start in range(0, len(queries), shard):
        ids = [make_pair_id(query, id) for query in queries[start : start + shard] for id in pairs[query]]
        vectors = np.arange(row, row + len(ids), dtype=np.float32)[:, None].repeat(3, axis=1)
        writer.write(ids, vectors, digest="")
        row += len(ids)
    facts = {"kind": "embeddings", "role": role, "dimension": 3, "shards": writer.entries, "scorer": {"model": "m"}}
    write_json(folder / "meta.json", facts)
    return folder


def test_rows_are_found_by_query_and_document(tmp_path: Path) -> None:
    pairs = {"q1": ["a", "b"], "q2": ["b"], "q3": ["a", "c"], "q4": ["a"]}
    actual = PairVectors(str(pair_folder(tmp_path / "v", pairs, shard=1)))
    assert actual.find_rows("q1", ["b", "a"]).tolist() == [1, 0]
    assert actual.find_rows("q2", ["b"]).tolist() == [2]
    assert actual.find_rows("q3", ["c", "x", "a"]).tolist() == [4, -1, 3]
    assert actual.find_rows("q9", ["a", "b"]).tolist() == [-1, -1]
    vectors = actual.load_vectors([5, 0, 2, 3])
    assert vectors.dtype == np.float32
    assert vectors[:, 0].tolist() == [5.0, 0.0, 2.0, 3.0]
    assert actual.scorer == {"model": "m"}


def test_non_finite_pair_vectors_are_reported(tmp_path: Path) -> None:
    folder = pair_folder(tmp_path / "v", {"q1": ["a", "b"], "q2": ["b"]})
    rows = np.load(folder / "00000.npy")
    rows[1] = np.inf
    np.save(folder / "00000.npy", rows)
    with pytest.raises(DrtkError, match=r"v/00000\.npy: row 1: the vector of 'q1\tb' contains NaN or infinity"):
        PairVectors(str(folder)).load_vectors([0, 1])


def test_vectors_of_texts_and_scattered_queries_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="texts: contains vectors of texts; expected vectors of pairs"):
        PairVectors(str(pair_folder(tmp_path / "texts", {"q1": ["a"]}, role="passage")))
    folder = pair_folder(tmp_path / "v", {"q1": ["a"], "q2": ["a"], "q3": ["a"]})
    (folder / "00001.ids").write_text("q1\ta\n")
    with pytest.raises(MismatchError, match="v: the pairs of query 'q1' are not consecutive"):
        PairVectors(str(folder))


def test_a_batch_repeated_after_a_crash_is_written_once_and_a_gap_is_an_error(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, dimension=2, dtype="float32")
    for _ in range(2):  # killed before the output had its lines
        write_pairs(writer, ["q\ta", "q\tb"], np.ones((2, 2), np.float32), before=0)
    write_pairs(writer, [], np.empty((0, 2), np.float32), before=2)
    assert writer.num_rows == 2
    for ids, before in ((["r\ta"], 3), (["q\ta", "q\tb"], 1), (["q\tx", "q\ty"], 0)):
        with pytest.raises(MismatchError, match=f"has 2 vectors, but the run has {before} pairs; use `force` without"):
            write_pairs(writer, ids, np.ones((len(ids), 2), np.float32), before=before)
