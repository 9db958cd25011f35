"""Vectors of pairs by query and document, and writing them beside an output that is resumed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from drtk.data.embeddings import PairVectors, PairWriter, ShardWriter, pair_id
from drtk.errors import DrtkError, MismatchError
from drtk.runtime.atomic import write_json


def pair_folder(folder: Path, pairs: dict[str, list[str]], *, shard: int = 2, role: str = "pair") -> Path:
    """A finished folder; all numbers of the vector in row i are i. So many queries stand in a shard."""
    folder.mkdir()
    writer = ShardWriter(folder, dimension=3, dtype="float16")
    row, queries = 0, list(pairs)
    for start in range(0, len(queries), shard):
        ids = [pair_id(query, id) for query in queries[start : start + shard] for id in pairs[query]]
        vectors = np.arange(row, row + len(ids), dtype=np.float32)[:, None].repeat(3, axis=1)
        writer.write(ids, vectors, digest="")
        row += len(ids)
    writer.close()
    facts = {"kind": "embeddings", "role": role, "dimension": 3, "shards": writer.entries, "scorer": {"model": "m"}}
    write_json(folder / "meta.json", facts)
    return folder


def test_rows_are_found_by_query_and_document(tmp_path: Path) -> None:
    found = PairVectors(
        str(pair_folder(tmp_path / "v", {"q1": ["a", "b"], "q2": ["b"], "q3": ["a", "c"], "q4": ["a"]}))
    )
    assert found.rows("q1", ["b", "a"]).tolist() == [1, 0]
    assert found.rows("q3", ["c", "x", "a"]).tolist() == [4, -1, 3]
    assert found.rows("q9", ["a", "b"]).tolist() == [-1, -1]
    vectors = found.vectors([5, 0, 2, 3])
    assert vectors.dtype == np.float32
    assert vectors[:, 0].tolist() == [5.0, 0.0, 2.0, 3.0]
    assert found.scorer == {"model": "m"}


def test_non_finite_pair_vectors_are_reported(tmp_path: Path) -> None:
    folder = pair_folder(tmp_path / "v", {"q1": ["a", "b"], "q2": ["b"]})
    rows = np.load(folder / "00000.npy")
    rows[1] = np.inf
    np.save(folder / "00000.npy", rows)
    with pytest.raises(DrtkError, match=r"v/00000\.npy: row 1: the vector of 'q1\tb' has NaN or infinite numbers"):
        PairVectors(str(folder)).vectors([0, 1])


def test_many_shards_are_looked_up_in_any_order(tmp_path: Path) -> None:
    pairs = {f"q{number}": [f"d{number}", f"e{number}"] for number in range(20)}
    found = PairVectors(str(pair_folder(tmp_path / "v", pairs, shard=1)))
    for number in (19, 0, 7, 12, 3, 19, 1):
        assert found.rows(f"q{number}", [f"e{number}"]).tolist() == [2 * number + 1]


def test_vectors_of_texts_and_scattered_queries_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="texts: holds vectors of texts; those of pairs are needed: drtk rerank"):
        PairVectors(str(pair_folder(tmp_path / "texts", {"q1": ["a"]}, role="passage")))
    folder = pair_folder(tmp_path / "v", {"q1": ["a"], "q2": ["a"], "q3": ["a"]})
    (folder / "00001.ids").write_text("q1\ta\n")
    with pytest.raises(MismatchError, match="v: holds query 'q1' at two places"):
        PairVectors(str(folder))


def test_a_window_that_a_crash_repeats_is_written_once_and_a_hole_is_noticed(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, dimension=2, dtype="float32")
    pairs = PairWriter(writer)
    pairs.write(["q\ta", "q\tb"], np.ones((2, 2), np.float32), before=0)
    pairs.write(["q\ta", "q\tb"], np.ones((2, 2), np.float32), before=0)  # killed before the output had its lines
    pairs.write([], np.empty((0, 2), np.float32), before=2)
    assert writer.rows == 2
    with pytest.raises(MismatchError, match="holds 2 vectors, but the output has 3 pairs; `force` without `resume`"):
        pairs.write(["r\ta"], np.ones((1, 2), np.float32), before=3)
    with pytest.raises(MismatchError, match="holds 2 vectors, but the output has 0 pairs"):
        pairs.write(["q\tx", "q\ty"], np.ones((2, 2), np.float32), before=0)
