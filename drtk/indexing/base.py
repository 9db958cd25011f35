"""Interface of sparse indexes, order of hits, and tables of passage ids."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from drtk.data.arrays import read_array
from drtk.errors import DrtkError, MismatchError
from drtk.indexing import FAISS_CLASS, INDEXES
from drtk.indexing.config import INDEX_KIND
from drtk.records import Passage
from drtk.runtime.manifest import FOLDER_MANIFEST, UNFINISHED_MANIFEST, Manifest, read_manifest
from drtk.runtime.progress import Progress

_BYTES, _ROWS = 1 << 24, 1 << 16  # bytes and rows of a table of ids to process at once
Ranking = list[tuple[str, float]]  # (passage id, score), best first; ids are unique


class SparseIndex(Protocol):
    """Interface of sparse indexes, which are built from passages (their texts or impacts)."""

    reads: ClassVar[Literal["passages"]]
    tunable: ClassVar[bool]  # whether k1 and b affect its scores

    @classmethod
    def build(
        cls, passages: Iterable[Passage], folder: Path, settings: Any, *, progress: Progress | None = None
    ) -> int:
        """Write the index into an existing folder; return the number of passages indexed."""

    @classmethod
    def open(cls, folder: Path, settings: Any) -> SparseIndex:
        """Open the index in `folder`."""

    def search(self, texts: Sequence[str], k: int) -> list[Ranking]:
        """Return the top `k` passages for each text, by score, then by descending id; [] for a text without terms."""

    def __len__(self) -> int:
        """Return the number of passages indexed."""


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
    if path.is_dir() and not any((path / name).exists() for name in (FOLDER_MANIFEST, UNFINISHED_MANIFEST)):
        raise MismatchError(f"{folder}: not an index (of drtk or Lucene); make one with drtk index")
    return read_manifest(folder, kind=INDEX_KIND, **keys)


def get_index_class(kind: str) -> Any:
    """Return the class of an index type.

    kind: an entry of `INDEXES`, hnsw or ivf with a number (hnsw48), or a faiss factory string
    Raises UsageError for any other type, MissingDependency if faiss is required but not installed.
    """
    if kind in INDEXES:
        return INDEXES.load(kind)
    module, _, attribute = FAISS_CLASS.partition(":")
    engine = getattr(import_module(module), attribute)
    engine.check_kind(kind)
    return engine


def sort_hits(ids: Sequence[str], scores: Sequence[float], k: int | None = None) -> Ranking:
    """Return the top `k` (id, score) pairs, by score, then by descending id; all if `k` is None."""
    pairs = sorted(zip(map(float, scores), ids, strict=True), reverse=True)
    return [(id, score) for score, id in pairs[:k]]


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
        parts = range(0, len(self._bytes), _BYTES)
        self._ends = np.concatenate(
            [at + np.flatnonzero(self._bytes[at : at + _BYTES] == ord("\n")).astype(np.int64) for at in parts]
        )

    def __len__(self) -> int:
        return len(self._ends)

    def get_values(self, rows: Iterable[int]) -> list[str]:
        """Return the id in each of `rows`, in the same order."""
        starts, ends = self._get_spans(np.fromiter(rows, dtype=np.int64))
        return [self._text[start:end].decode() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def _get_spans(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions in the file where the ids of `rows` (n,) begin and end, (n,) each."""
        return np.where(rows > 0, self._ends[rows - 1] + 1, 0), self._ends[rows]

    def sort_rows(self) -> np.ndarray:
        """Return the rows in the order of their ids, (rows,) int64; about 60 bytes of memory per row.

        Sort by eight bytes at a time, the last ones first. UTF-8 bytes have the order of Python's strings.
        Raises MismatchError for a duplicate id.
        """
        order = np.arange(len(self))
        offsets = range(0, int(np.diff(self._ends, prepend=-1).max()) - 1, 8)
        for offset in reversed(offsets):
            order = order[np.argsort(self._read_keys(order, offset), kind="stable")]
        same = np.arange(1, len(self))  # positions in `order` of ids that equal the ones before, up to `offset`
        for offset in offsets:
            same = same[self._read_keys(order[same], offset) == self._read_keys(order[same - 1], offset)]
        if len(same):
            raise MismatchError(
                f"two passages have the id '{self.get_values(order[same[:1]])[0]}'; make the ids unique"
            )
        return order

    def _read_keys(self, rows: np.ndarray, offset: int) -> np.ndarray:
        """Return eight bytes of each id from `offset` as a number, with a smaller number for an id that ends, (rows,) uint64."""
        keys = np.empty(len(rows), np.uint64)
        for at in range(0, len(rows), _ROWS):
            starts, ends = self._get_spans(rows[at : at + _ROWS])
            places = starts[:, None] + np.arange(offset, offset + 8)  # (rows, 8)
            inside = places < ends[:, None]
            chars = (self._bytes[np.where(inside, places, 0)] + np.uint8(1)) * inside  # UTF-8 has no byte 255
            keys[at : at + _ROWS] = chars.view(">u8")[:, 0]
        return keys


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
        """Write the ids, and the rank of each in sorted order, into `folder`. Memory: see `IdTable.sort_rows`.

        Raises MismatchError if there are no ids, or for a duplicate id.
        """
        write_ids(folder / IDS, ids)
        order = IdTable(folder / IDS).sort_rows()
        ranks = np.empty(len(order), dtype=np.uint32)
        ranks[order] = np.arange(len(order), dtype=np.uint32)
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
        rows: np.ndarray = self._row_of_rank[ranks].astype(np.int64)
        return rows

    def make_ranking(self, rows: np.ndarray, scores: np.ndarray, k: int | None = None) -> Ranking:
        """Return the top `k` of `rows` (hits,) by float32 `scores` (hits,), then by descending id; all if `k` is None.

        Raises DrtkError for a score that is NaN or infinite.
        """
        if not (finite := np.isfinite(scores)).all():
            raise self.make_score_error(int(rows[int(np.argmin(finite))]))
        scores = scores.astype(np.float32) + np.float32(0)  # -0.0 becomes 0.0
        top = np.lexsort((self.ranks[rows], scores))[::-1][:k]
        return list(zip(self._ids.get_values(rows[top].tolist()), scores[top].tolist(), strict=True))

    def make_score_error(self, row: int) -> DrtkError:
        """Return the error for a row whose score is NaN or infinite."""
        (id,) = self._ids.get_values([row])
        return DrtkError(f"{self._folder}: the score of '{id}' is NaN or infinite; encode and index the passages again")
