"""The vectors of an index: checked on the way in, stored in fewer bits on request, scored again exactly."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from drtk.errors import DrtkError, MismatchError
from drtk.io.progress import Progress
from drtk.io.shards import Shard, check_finite
from drtk.retrieval.base import Ranking
from drtk.retrieval.ordering import RankedIds

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
