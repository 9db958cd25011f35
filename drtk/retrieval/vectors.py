"""The vectors of an index on disk: checked on the way in, stored in fewer bits on request, scored again exactly."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from drtk.errors import DrtkError, MismatchError
from drtk.io.progress import Progress
from drtk.io.shards import Shard
from drtk.retrieval.base import Ranking
from drtk.retrieval.ordering import IdTable

VECTORS, SCALE, FULL = "vectors.npy", "scale.npy", "full.npy"
ROWS_AT_A_TIME = 16_384


def shape_of(shards: Sequence[Shard]) -> tuple[int, int]:
    """(rows, dimension) of all shards. Raises MismatchError where dimensions differ, DrtkError where there are none."""
    if not sum(shard.rows for shard in shards):
        raise DrtkError("there are no vectors to index")
    dimension = next(shard.dimension for shard in shards if shard.rows)
    for shard in shards:
        if shard.rows and shard.dimension != dimension:
            raise MismatchError(f"{shard.folder}: has vectors of dimension {shard.dimension}; others have {dimension}")
    return sum(shard.rows for shard in shards), dimension


def dtype_of(shards: Sequence[Shard]) -> np.dtype:
    """The widest type the shards are stored in."""
    return np.result_type(*(shard.vectors.dtype for shard in shards if shard.rows))


def blocks(shards: Sequence[Shard], *, size: int = ROWS_AT_A_TIME) -> Iterator[tuple[int, np.ndarray]]:
    """(first row, vectors (rows, dimension)) over all shards, `size` rows or fewer at a time, as they are stored.

    Raises DrtkError for a vector that is not finite.
    """
    first = 0
    for shard in shards:
        for start in range(0, shard.rows, size):
            block = np.asarray(shard.vectors[start : start + size])
            finite = np.isfinite(block).all(axis=1)
            if not finite.all():
                row = start + int(np.argmin(finite))
                raise DrtkError(f"{shard.folder}/{shard.name}.npy: row {row} ('{shard.ids[row]}') is not finite")
            yield first + start, block
        first += shard.rows


def all_ids(shards: Sequence[Shard]) -> Iterator[str]:
    """Ids of all shards, row by row; a shard's list is not kept."""
    for shard in shards:
        yield from Shard(shard.folder, shard.number, shard.rows, shard.dimension).ids


def store(shards: Sequence[Shard], path: Path, dtype: str, *, progress: Progress | None = None) -> None:
    """Write all vectors to one .npy file of `dtype`, a block at a time.

    int8: each dimension has a scale of its own, its largest magnitude / 127, written beside as scale.npy, because
    encoders have a few dimensions many times larger than the rest; vector = int8 * scale.
    Raises DrtkError where a number is too large for float16.
    """
    rows, dimension = shape_of(shards)
    scale = None
    if dtype == "int8":
        scale = _scale(shards, dimension)
        np.save(path.with_name(SCALE), scale)
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=(rows, dimension))
    for first, block in blocks(shards):
        out[first : first + len(block)] = _reduced(block, dtype, scale)
        if progress is not None:
            progress.add(len(block))
    out.flush()


def _scale(shards: Sequence[Shard], dimension: int) -> np.ndarray:
    """(dimension,) float32, the step of each dimension's int8; 1 where a dimension is always zero."""
    largest = np.zeros(dimension, dtype=np.float32)
    for _, block in blocks(shards):
        np.maximum(largest, np.abs(block).max(axis=0), out=largest)
    return np.where(largest > 0, largest / 127, 1).astype(np.float32)


def _reduced(block: np.ndarray, dtype: str, scale: np.ndarray | None) -> np.ndarray:
    if scale is not None:
        return np.rint(block.astype(np.float32) / scale).astype(np.int8)
    with np.errstate(over="ignore"):
        found = block.astype(dtype)
    if not np.isfinite(found).all():
        raise DrtkError(f"a vector holds numbers too large for {dtype}; index with --dtype float32")
    return found


def sample(shards: Sequence[Shard], count: int, *, seed: int) -> np.ndarray:
    """(min(count, rows), dimension) float32: vectors drawn without replacement, in the order of their rows."""
    rows, dimension = shape_of(shards)
    wanted = np.sort(np.random.default_rng(seed).choice(rows, size=min(count, rows), replace=False))
    found = np.empty((len(wanted), dimension), dtype=np.float32)
    for first, block in blocks(shards):
        low, high = np.searchsorted(wanted, [first, first + len(block)])
        found[low:high] = block[wanted[low:high] - first]
    return found


def open_vectors(path: Path) -> np.ndarray:
    """A .npy file, memory-mapped, copied on write. Raises DrtkError where it is damaged."""
    try:
        found: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DrtkError(f"{path}: the index is damaged: {error}") from error
    return found


def rank_again(
    ids: IdTable, full: np.ndarray, rows: Sequence[np.ndarray], vectors: np.ndarray, k: int, *, threads: int = 0
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
