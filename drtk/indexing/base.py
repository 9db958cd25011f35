"""Index types and manifests, order of hits, and tables of passage ids."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from drtk.data.arrays import read_array
from drtk.errors import DrtkError, MismatchError
from drtk.indexing import INDEXES
from drtk.indexing.config import INDEX_KIND
from drtk.runtime.manifest import FOLDER_MANIFEST, UNFINISHED_MANIFEST, Manifest, read_manifest

Ranking = list[tuple[str, float]]  # (passage id, score), best first; ids are unique


def is_external_index(folder: Path) -> bool:
    """Return whether a folder is a Lucene index of another program, such as Anserini or Pyserini."""
    return any(folder.glob("segments_*"))


def read_index_manifest(folder: str | Path, **keys: Any) -> Manifest:
    """Read the manifest of an index, or make one of type bm25 for a Lucene index of another program.

    keys: types of required entries
    Raises the errors of `read_manifest`, MismatchError for a folder that contains no index.
    """
    path = Path(folder)
    if is_external_index(path):
        return {"kind": INDEX_KIND, "type": "bm25"}
    if path.exists() and not any((path / name).exists() for name in (FOLDER_MANIFEST, UNFINISHED_MANIFEST)):
        raise MismatchError(
            f"{folder}: not an index of drtk or Lucene; make one with drtk index (from a faiss file: with --ids)"
        )
    return read_manifest(folder, kind=INDEX_KIND, **keys)


def get_index_class(kind: str) -> Any:
    """Return the class of an index type.

    kind: an entry of `INDEXES`, hnsw or ivf with a number (hnsw48), or a faiss factory string
    Raises UsageError for any other type, MissingDependency if faiss is required but not installed.
    """
    if kind in INDEXES:
        return INDEXES.load(kind)
    engine = INDEXES.load("flat")  # the class of all faiss indexes
    engine.check_kind(kind)
    return engine


def sort_hits(ids: Sequence[str], scores: Sequence[float], k: int | None = None) -> Ranking:
    """Return the top `k` (id, score) pairs, by score, then by descending id; all if `k` is None."""
    pairs = sorted(zip(map(float, scores), ids, strict=True), reverse=True)
    return [(id, score) for score, id in pairs[:k]]


HITS_AT_A_TIME = 1 << 16  # limits the memory for decoding ids


class IdTable:
    """Passage ids by row, memory-mapped from a file with one id per line.

    Raises MismatchError if the file is missing, is empty, or does not end with a newline.
    """

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise MismatchError(f"{path}: is missing or empty; rebuild the index") from error
        if self._text[-1:] != b"\n":
            raise MismatchError(f"{path}: is truncated; rebuild the index")
        self._bytes = np.frombuffer(self._text, dtype=np.uint8)
        # Row n is between bounds n and n + 1, with its newline.
        self._bounds = np.append(0, np.flatnonzero(self._bytes == ord("\n")) + 1)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def get_values(self, rows: Iterable[int]) -> list[str]:
        """Return the id in each of `rows`, in the same order."""
        indices = rows if isinstance(rows, np.ndarray) else np.fromiter(rows, dtype=np.int64)
        ids: list[str] = []
        for first in range(0, len(indices), HITS_AT_A_TIME):
            part = indices[first : first + HITS_AT_A_TIME]
            starts, lengths = self._bounds[part], self._bounds[part + 1] - self._bounds[part]
            # Decoding all lines at once takes a third of the time of decoding each.
            positions = np.repeat(starts - lengths.cumsum() + lengths, lengths) + np.arange(lengths.sum())
            ids += self._bytes[positions].tobytes().decode().split("\n")[:-1]
        return ids


def write_ids(path: Path, ids: Iterable[str]) -> None:
    """Write ids to the file of an `IdTable`, one per line."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{id}\n" for id in ids)


IDS, RANKS = "ids.txt", "ranks.npy"


class RankedIds:
    """Passage ids by row, and the rank of each id in sorted order, to break ties by id.

    ranks: (rows,), uint32
    """

    @staticmethod
    def write(ids: Iterable[str], folder: Path) -> None:
        """Write the ids, and the rank of each in sorted order, into `folder`; all ids must fit into memory.

        Raises MismatchError for a duplicate id.
        """
        all_ids = list(ids)
        order = sorted(range(len(all_ids)), key=all_ids.__getitem__)
        for row, next_row in pairwise(order):
            if all_ids[row] == all_ids[next_row]:
                raise MismatchError(f"two passages have the id '{all_ids[row]}'; make the ids unique")
        ranks = np.empty(len(all_ids), dtype=np.uint32)
        ranks[order] = np.arange(len(all_ids), dtype=np.uint32)
        write_ids(folder / IDS, all_ids)
        np.save(folder / RANKS, ranks)

    def __init__(self, folder: Path) -> None:
        self._folder, self._ids = folder, IdTable(folder / IDS)
        self.ranks = read_array(folder / RANKS)
        if len(self.ranks) != len(self):
            raise DrtkError(
                f"{folder}: the index is damaged: {len(self.ranks):,} ranks for {len(self):,} ids; rebuild it"
            )
        self._row_of_rank: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._ids)

    def get_rows_of_ranks(self, ranks: np.ndarray) -> np.ndarray:
        """Return the row of the id at each rank in sorted order, int64, in the shape of `ranks`."""
        if self._row_of_rank is None:
            self._row_of_rank = np.empty(len(self), dtype=np.uint32)
            self._row_of_rank[self.ranks] = np.arange(len(self), dtype=np.uint32)
        return self._row_of_rank[ranks].astype(np.int64)

    def make_ranking(self, rows: np.ndarray, scores: np.ndarray, k: int) -> Ranking:
        """Return the top `k` of `rows` (hits,) by float32 `scores` (hits,), then by descending id.

        Raises DrtkError for a score that is NaN or infinite.
        """
        if not (finite := np.isfinite(scores)).all():
            raise self.make_score_error(int(rows[int(np.argmin(finite))]))
        scores = scores.astype(np.float32) + np.float32(0)  # -0.0 becomes 0.0
        top = np.lexsort((self.ranks[rows], scores))[::-1][:k]
        return list(zip(self._ids.get_values(rows[top]), scores[top].tolist(), strict=True))

    def make_rankings(self, rows: np.ndarray, scores: np.ndarray) -> list[Ranking]:
        """Return the ranking of each query from `rows` and float32 `scores`, both (queries, hits), best hit first.

        Raises DrtkError for a score that is NaN or infinite.
        """
        if not (finite := np.isfinite(scores)).all():
            raise self.make_score_error(int(rows[~finite][0]))
        ids, k = self._ids.get_values(rows.ravel()), rows.shape[1]
        starts = range(0, len(ids), k)
        return [list(zip(ids[at : at + k], row, strict=True)) for at, row in zip(starts, scores.tolist(), strict=True)]

    def make_score_error(self, row: int) -> DrtkError:
        """Return the error for a row whose score is NaN or infinite."""
        (id,) = self._ids.get_values([row])
        return DrtkError(f"{self._folder}: the score of '{id}' is NaN or infinite; encode and index the passages again")
