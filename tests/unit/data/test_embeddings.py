"""Embedding shards: whole or absent, checked when read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drtk.data.embeddings import ShardWriter, read_shards
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.runtime.atomic import write_json


def finish(folder: Path, writer: ShardWriter) -> None:
    manifest = {"kind": "embeddings", "dimension": writer.dimension, "shards": writer.entries}
    write_json(folder / "meta.json", manifest)
    writer.close()


@given(rows=st.lists(st.integers(0, 7), max_size=4), dtype=st.sampled_from(["float32", "float16"]))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[int], dtype: str):
    folder = tmp_path_factory.mktemp("vectors")
    writer = ShardWriter(folder, dimension=3, dtype=dtype)
    given = [np.arange(3 * count, dtype=np.float32).reshape(count, 3) / 8 for count in rows]
    for number, vectors in enumerate(given):
        writer.write([f"s{number}r{row}" for row in range(len(vectors))], vectors, digest=str(number))
    finish(folder, writer)
    shards = read_shards(folder)
    assert [shard.ids for shard in shards] == [[f"s{n}r{row}" for row in range(count)] for n, count in enumerate(rows)]
    for shard, vectors in zip(shards, given, strict=True):
        assert shard.vectors.dtype == dtype
        np.testing.assert_array_equal(shard.vectors, vectors)  # eighths below 16 are exact in float16
    assert not list(folder.glob("*.part"))


def test_a_second_writer_knows_what_the_first_finished(tmp_path: Path):
    first = ShardWriter(tmp_path, dimension=2, dtype="float32")
    first.write(["a", "b"], np.ones((2, 2), dtype=np.float32), digest="x")
    second = ShardWriter(tmp_path, dimension=2, dtype="float32")
    assert second.rows == 2
    assert second.finished(0, "x")
    assert not second.finished(1, "y")
    with pytest.raises(MismatchError, match="shard 00000 was made from other records"):
        second.finished(0, "z")


def test_a_shard_without_its_journal_entry_is_written_again(tmp_path: Path):
    (tmp_path / "00000.npy").write_bytes(b"torn")
    writer = ShardWriter(tmp_path, dimension=1, dtype="float32")
    assert not writer.finished(0, "x")
    writer.write(["a"], np.ones((1, 1), dtype=np.float32), digest="x")
    finish(tmp_path, writer)
    assert read_shards(tmp_path)[0].vectors.tolist() == [[1.0]]


def test_numbers_that_the_store_cannot_hold_are_refused(tmp_path: Path):
    writer = ShardWriter(tmp_path, dimension=2, dtype="float16", model="encoder")
    with pytest.raises(DrtkError, match=r"^encoder: computes a vector of 'b' with .* too large for float16$"):
        writer.write(["a", "b"], np.array([[1, 2], [3, 1e6]], dtype=np.float32), digest="x")  # float16 ends at 65504
    assert not list(tmp_path.iterdir())


def test_damage_is_told(tmp_path: Path):
    writer = ShardWriter(tmp_path, dimension=2, dtype="float32")
    writer.write(["a", "b"], np.ones((2, 2), dtype=np.float32), digest="x")
    finish(tmp_path, writer)
    (tmp_path / "00000.ids").write_text("a\n")
    with pytest.raises(MismatchError, match="holds 1 ids; expected 2"):
        _ = read_shards(tmp_path)[0].ids
    whole = (tmp_path / "00000.npy").read_bytes()
    (tmp_path / "00000.npy").write_bytes(whole[:-4])
    with pytest.raises(DrtkError, match=r"00000\.npy: is damaged; rebuild the folder"):
        _ = read_shards(tmp_path)[0].vectors
    np.save(tmp_path / "00000.npy", np.ones((3, 2), dtype=np.float32))
    with pytest.raises(MismatchError, match=r"shape \(3, 2\); expected \(2, 2\)"):
        _ = read_shards(tmp_path)[0].vectors


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "the id is blank"),
        ("  ", "the id is blank"),
        ("b c", "id 'b c' contains"),
        ("b\tc", r"id 'b\\tc' contains"),
    ],
)
def test_an_id_that_is_not_one_word_is_rejected_with_shard_and_row(tmp_path: Path, line: str, problem: str):
    writer = ShardWriter(tmp_path, dimension=2, dtype="float32")
    writer.write(["x"], np.ones((1, 2), dtype=np.float32), digest="x")
    writer.write(["a", "b"], np.ones((2, 2), dtype=np.float32), digest="y")
    finish(tmp_path, writer)
    (tmp_path / "00001.ids").write_text(f"a\n{line}\n")
    with pytest.raises(RecordError, match=rf"00001\.ids:2: {problem}"):
        _ = read_shards(tmp_path)[1].ids


def test_unfinished_and_foreign_folders_are_refused(tmp_path: Path):
    with pytest.raises(MismatchError, match=r"has no meta\.json"):
        read_shards(tmp_path)
    write_json(tmp_path / "meta.json", {"kind": "index"})
    with pytest.raises(MismatchError, match="is of kind 'index'; expected 'embeddings'"):
        read_shards(tmp_path)


@pytest.mark.parametrize("journal", ["{}", "3", '[{"rows": "2", "digest": "x"}]', '[{"rows": 2}]', "[null]"])
def test_a_malformed_journal_of_shards_is_rejected(tmp_path: Path, journal: str):
    (tmp_path / "shards.json.part").write_text(journal)
    with pytest.raises(DrtkError, match=r"shards\.json\.part: is not a list of finished shards"):
        ShardWriter(tmp_path, dimension=2, dtype="float32")
