"""What an index is, how hits are ordered, and the vectors of dense indexes."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from drtk.data.arrays import read_array
from drtk.data.embeddings import Shard, check_finite
from drtk.errors import DrtkError, MismatchError
from drtk.records import Passage
from drtk.runtime.progress import Progress

Ranking = list[tuple[str, float]]  # (passage id, score), best first; ids are unique


class SparseIndex(Protocol):
    """An index over the words of passages. An index type's class; `drtk index` and `drtk search` use nothing else."""

    reads: ClassVar[Literal["passages"]]
    tunable: ClassVar[bool]  # whether k1 and b have a part in its scores

    @classmethod
    def build(
        cls, passages: Iterable[Passage], folder: Path, settings: Any, *, progress: Progress | None = None
    ) -> int:
        """Write the engine's files into `folder` (which exists); the number of passages indexed."""

    @classmethod
    def open(cls, folder: Path, settings: Any) -> SparseIndex:
        """The index in `folder`, ready to be searched with `settings`."""

    def search(self, texts: Sequence[str], k: int) -> list[Ranking]:
        """Up to `k` passages for each text, in the order of this module; an empty text finds nothing."""

    def __len__(self) -> int:
        """How many passages are indexed."""


class DenseIndex(Protocol):
    """An index over vectors; scores are inner products."""

    reads: ClassVar[Literal["vectors"]]
    dimension: int

    @classmethod
    def check(cls, vectors: Vectors, settings: Any, *, kind: str) -> None:
        """Raise UsageError for an index type `kind` that cannot be made of these vectors, before anything is written."""

    @classmethod
    def build(
        cls, vectors: Vectors, folder: Path, settings: Any, *, kind: str, progress: Progress | None = None
    ) -> dict[str, Any]:
        """Write the engine's files into `folder` (which exists) for the index type `kind`; facts for its meta.json.

        Raises DrtkError for a vector that is not finite, MismatchError for duplicate ids.
        """

    @classmethod
    def open(cls, folder: Path, settings: Any) -> DenseIndex:
        """The index in `folder`, ready to be searched with `settings`."""

    def search(self, vectors: np.ndarray, k: int) -> list[Ranking]:
        """Up to `k` passages for each row of (queries, dimension) float32, in the order of this module."""

    def __len__(self) -> int:
        """How many passages are indexed."""


def best_first(ids: Sequence[str], scores: Sequence[float], k: int | None = None) -> Ranking:
    """The `k` best (id, score) pairs, all of them where `k` is None: by score, then by descending id."""
    pairs = sorted(zip(map(float, scores), ids, strict=True), reverse=True)
    return [(id, score) for score, id in pairs[:k]]


class IdTable:
    """The ids of an index in the engine's own numbering, 0 to len - 1.

    Raises MismatchError where the file is missing or its last line is torn.
    """

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise MismatchError(f"{path}: missing or empty; the index is not whole") from error
        if self._text[-1:] != b"\n":
            raise MismatchError(f"{path}: its last line is torn; the index is not whole")
        text = np.frombuffer(self._text, dtype=np.uint8)
        self._ends = np.flatnonzero(text == ord("\n")).astype(np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def take(self, numbers: Iterable[int]) -> list[str]:
        """The ids of these numbers."""
        wanted = np.fromiter(numbers, dtype=np.int64)
        ends = self._ends[wanted]
        starts = np.where(wanted > 0, self._ends[wanted - 1] + 1, 0)
        text = self._text
        return [text[start:end].decode() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def write_ids(path: Path, ids: Iterable[str]) -> None:
    """Write one id a line."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{id}\n" for id in ids)


def first_duplicate(ids: Iterable[str]) -> str | None:
    """An id that occurs twice, or None. Eight bytes an id, since what is kept are hashes."""
    hashes = np.fromiter((hash(id) for id in ids), dtype=np.int64)
    hashes.sort()
    doubled = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    if not doubled:
        return None
    seen: set[str] = set()
    for id in ids:
        if hash(id) in doubled:
            if id in seen:
                return id
            seen.add(id)
    return None


IDS, RANKS = "ids.txt", "ranks.npy"


class RankedIds:
    """Ids by row, read from disk as they are asked for; `ranks` (rows,) is each id's place in ascending order."""

    @staticmethod
    def write(ids: Iterable[str], folder: Path) -> None:
        """Write the table of ids, row by row, and their ranks. Raises MismatchError for an id given twice.

        Holds all ids in memory while it works.
        """
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
        """The rows whose ids have these `ranks`."""
        if self._rows is None:
            self._rows = np.empty(len(self), dtype=np.uint32)
            self._rows[self.ranks] = np.arange(len(self), dtype=np.uint32)
        found: np.ndarray = self._rows[ranks].astype(np.int64)
        return found

    def ranking(self, rows: np.ndarray, scores: np.ndarray, k: int | None = None) -> Ranking:
        """Return the `k` best of `rows` (hits,) by float32 `scores` (hits,), best first; all if `k` is None.

        Raises DrtkError for a score that is NaN or infinite.
        """
        if not (finite := np.isfinite(scores)).all():
            raise self.score_fault(int(rows[int(np.argmin(finite))]))
        keys = keys_of(scores, self.ranks[rows])
        best = np.argsort(-keys)[:k]
        return list(zip(self._ids.take(rows[best].tolist()), scores_of(keys[best]).tolist(), strict=True))

    def score_fault(self, row: int) -> DrtkError:
        """Return the error for a row whose score is NaN or infinite."""
        (id,) = self._ids.take([row])
        return DrtkError(
            f"{self._folder}: the score of '{id}' is NaN or infinite: a vector is damaged or too large; encode and index again"
        )


def keys_of(scores: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """int64 keys of float32 `scores` and `ranks` below 2**32, of one shape: larger is better."""
    bits = (scores.astype(np.float32) + np.float32(0)).view(np.int32)  # adding zero makes -0.0 equal 0.0
    sortable = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))  # negative floats run backwards in two's complement
    keys: np.ndarray = (sortable.astype(np.int64) << 32) | ranks.astype(np.int64)
    return keys


def scores_of(keys: np.ndarray) -> np.ndarray:
    """The float32 scores within keys."""
    sortable = (keys >> 32).astype(np.int32)
    scores: np.ndarray = (sortable ^ ((sortable >> 31) & np.int32(0x7FFFFFFF))).view(np.float32)
    return scores


def ranks_of(keys: np.ndarray) -> np.ndarray:
    """The ranks within keys."""
    ranks: np.ndarray = keys & np.int64(0xFFFFFFFF)
    return ranks


VECTORS, SCALE, FULL = "vectors.npy", "scale.npy", "full.npy"
ROWS_AT_A_TIME = 16_384


@dataclass(frozen=True)
class Vectors:
    """The rows of shards, one after the other, read from disk block by block.

    unit: bring each vector to length 1, as cosine asks where the encoder has not done so.
    Raises MismatchError where dimensions differ, DrtkError where there are no rows.
    """

    shards: Sequence[Shard]
    unit: bool = False

    def __post_init__(self) -> None:
        if not len(self):
            raise DrtkError("there are no vectors to index")
        for shard in self.shards:
            if shard.dimension != self.dimension:
                raise MismatchError(
                    f"{shard.folder}: has vectors of dimension {shard.dimension}; {self.shards[0].folder} of {self.dimension}"
                )

    def __len__(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @property
    def dimension(self) -> int:
        return self.shards[0].dimension

    @property
    def dtype(self) -> np.dtype:
        """The widest type that shards are stored in."""
        return np.result_type(*(shard.vectors.dtype for shard in self.shards))

    def ids(self) -> Iterator[str]:
        """Ids row by row; no shard's list is kept."""
        for shard in self.shards:
            yield from Shard(shard.folder, shard.number, shard.rows, shard.dimension).ids

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """(first row, vectors (rows, dimension) float32), a few thousand rows at a time.

        Raises DrtkError for a vector that is not finite.
        """
        first = 0
        for shard in self.shards:
            for start in range(0, shard.rows, ROWS_AT_A_TIME):
                block = shard.vectors[start : start + ROWS_AT_A_TIME].astype(np.float32)
                check_finite(shard, block, range(start, start + len(block)))
                yield first + start, unit_length(block) if self.unit else block
            first += shard.rows

    def sample(self, count: int, *, seed: int) -> np.ndarray:
        """(min(count, rows), dimension) float32: rows drawn without replacement, in their order."""
        wanted = np.sort(np.random.default_rng(seed).choice(len(self), size=min(count, len(self)), replace=False))
        found = np.empty((len(wanted), self.dimension), dtype=np.float32)
        for first, block in self.blocks():
            low, high = np.searchsorted(wanted, [first, first + len(block)])
            found[low:high] = block[wanted[low:high] - first]
        return found

    def store(self, path: Path, dtype: str, *, progress: Progress | None = None) -> None:
        """Write all rows to one .npy file of `dtype`.

        int8: each dimension has a scale of its own, its largest magnitude / 127, written beside as scale.npy, because
        encoders have a few dimensions many times larger than the rest; vector = int8 * scale.
        Raises DrtkError where a number is too large for float16.
        """
        scale = None
        if dtype == "int8":
            scale = self._scale()
            np.save(path.with_name(SCALE), scale)
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (len(self), self.dimension)}
        try:
            # Written, not mapped: a full disk is then a fault that can be told, not a signal that kills.
            with open(path, "wb") as file:
                np.lib.format.write_array_header_1_0(file, header)
                for _, block in self.blocks():
                    file.write(np.ascontiguousarray(_reduced(block, dtype, scale)).data)
                    if progress is not None:
                        progress.add(len(block))
        except OSError as error:
            raise DrtkError(f"{path}: {error.strerror}") from error

    def _scale(self) -> np.ndarray:
        """(dimension,) float32, the step of each dimension's int8; 1 where a dimension is always zero."""
        largest = np.zeros(self.dimension, dtype=np.float32)
        for _, block in self.blocks():
            np.maximum(largest, np.abs(block).max(axis=0), out=largest)
        return np.where(largest > 0, largest / 127, 1).astype(np.float32)


def unit_length(vectors: np.ndarray) -> np.ndarray:
    """(rows, dimension) float32, each row divided by its length; a row of zeros stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    found: np.ndarray = vectors / np.where(lengths > 0, lengths, 1)
    return found


def _reduced(block: np.ndarray, dtype: str, scale: np.ndarray | None) -> np.ndarray:
    if scale is not None:
        return np.rint(block / scale).astype(np.int8)
    with np.errstate(over="ignore"):
        found = block.astype(dtype)
    if not np.isfinite(found).all():
        raise DrtkError(f"a vector holds numbers too large for {dtype}; index with --dtype float32")
    return found


def rank_again(
    ids: RankedIds, full: np.ndarray, rows: Sequence[np.ndarray], vectors: np.ndarray, k: int, *, threads: int = 0
) -> list[Ranking]:
    """Up to `k` passages for each query, from its candidates' inner products with the exact vectors, in float32.

    full: (passages, dimension), on disk · rows: for each query (candidates,) · vectors: (queries, dimension)
    Each product is summed by itself, so that equal vectors get equal scores wherever they stand.
    """

    def rank(item: tuple[np.ndarray, np.ndarray]) -> Ranking:
        wanted, vector = item
        wanted = np.sort(wanted)  # the order in which they lie on disk
        scores = (full[wanted].astype(np.float32) * vector).sum(axis=1, dtype=np.float32)
        return ids.ranking(wanted, scores, k)

    with ThreadPoolExecutor(max_workers=threads or os.cpu_count()) as pool:
        return list(pool.map(rank, zip(rows, vectors, strict=True)))
