"""What index types share: the interface of indexes of words, the order of hits, and the table of passage ids."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from drtk.data.arrays import read_array
from drtk.errors import DrtkError, MismatchError
from drtk.indexing import FACTORY, INDEXES
from drtk.records import Passage
from drtk.runtime.progress import Progress

Ranking = list[tuple[str, float]]  # (passage id, score), best first; ids are unique


class SparseIndex(Protocol):
    """An index over the words of passages."""

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
        """Return up to `k` passages for each text, by score, then by descending id; none for an empty text."""

    def __len__(self) -> int:
        """Return the number of passages indexed."""


def get_index_class(kind: str) -> Any:
    """Return the class of an index type: a type of drtk or a faiss factory string.

    Raises UsageError for a type that is neither.
    """
    if kind in INDEXES:
        return INDEXES.load(kind)
    module, _, attribute = FACTORY.partition(":")
    engine = getattr(import_module(module), attribute)
    engine.check_kind(kind)
    return engine


def sort_hits(ids: Sequence[str], scores: Sequence[float], k: int | None = None) -> Ranking:
    """Return the `k` best (id, score) pairs, by score, then by descending id; all if `k` is None."""
    pairs = sorted(zip(map(float, scores), ids, strict=True), reverse=True)
    return [(id, score) for score, id in pairs[:k]]


class IdTable:
    """Ids by number, memory-mapped from a file with one id per line.

    Raises MismatchError if the file is missing or truncated.
    """

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise MismatchError(f"{path}: missing or empty; rebuild the index") from error
        if self._text[-1:] != b"\n":
            raise MismatchError(f"{path}: truncated; rebuild the index")
        self._ends = np.flatnonzero(np.frombuffer(self._text, dtype=np.uint8) == ord("\n")).astype(np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def take(self, numbers: Iterable[int]) -> list[str]:
        """Return the ids of these numbers."""
        rows = np.fromiter(numbers, dtype=np.int64)
        starts = np.where(rows > 0, self._ends[rows - 1] + 1, 0)
        text = self._text
        return [text[start:end].decode() for start, end in zip(starts.tolist(), self._ends[rows].tolist(), strict=True)]


def write_ids(path: Path, ids: Iterable[str]) -> None:
    """Write one id per line."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{id}\n" for id in ids)


IDS, RANKS = "ids.txt", "ranks.npy"


class RankedIds:
    """Ids by row, and their ranks: `ranks` (rows,) holds each id's place in ascending order, to break ties by id."""

    @staticmethod
    def write(ids: Iterable[str], folder: Path) -> None:
        """Write ids and ranks into `folder`; all ids are held in memory. Raises MismatchError for a duplicate id."""
        listed = list(ids)
        order = sorted(range(len(listed)), key=listed.__getitem__)
        for before, after in pairwise(order):
            if listed[before] == listed[after]:
                raise MismatchError(f"id '{listed[before]}' is given to two passages")
        ranks = np.empty(len(listed), dtype=np.uint32)
        ranks[order] = np.arange(len(listed), dtype=np.uint32)
        write_ids(folder / IDS, listed)
        np.save(folder / RANKS, ranks)

    def __init__(self, folder: Path) -> None:
        self._folder, self._ids = folder, IdTable(folder / IDS)
        self.ranks = read_array(folder / RANKS)
        if len(self.ranks) != len(self):
            raise DrtkError(f"{folder}: the index is damaged: {len(self.ranks):,} ranks for {len(self):,} ids")
        self._rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._ids)

    def rows(self, ranks: np.ndarray) -> np.ndarray:
        """Return the rows of the ids with these ranks."""
        if self._rows is None:
            self._rows = np.empty(len(self), dtype=np.uint32)
            self._rows[self.ranks] = np.arange(len(self), dtype=np.uint32)
        rows: np.ndarray = self._rows[ranks].astype(np.int64)
        return rows

    def ranking(self, rows: np.ndarray, scores: np.ndarray, k: int | None = None) -> Ranking:
        """Return the `k` best of `rows` (hits,) by float32 `scores` (hits,), best first; all if `k` is None.

        Raises DrtkError for a score that is NaN or infinite.
        """
        if not (finite := np.isfinite(scores)).all():
            raise self.score_error(int(rows[int(np.argmin(finite))]))
        scores = scores.astype(np.float32) + np.float32(0)  # -0.0 becomes 0.0
        best = np.lexsort((self.ranks[rows], scores))[::-1][:k]
        return list(zip(self._ids.take(rows[best].tolist()), scores[best].tolist(), strict=True))

    def score_error(self, row: int) -> DrtkError:
        """Return the error for a row whose score is NaN or infinite."""
        (id,) = self._ids.take([row])
        return DrtkError(
            f"{self._folder}: the score of '{id}' is NaN or infinite: a vector is damaged or too large; encode and index again"
        )
