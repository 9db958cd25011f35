"""Exact search with torch: inner products of queries with all vectors, read block by block from disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from drtk.data.arrays import read_array
from drtk.errors import DrtkError
from drtk.indexing.base import RankedIds, Ranking
from drtk.indexing.config import DenseIndexSettings, DenseSearchSettings
from drtk.indexing.vectors import FULL, SCALE, VECTORS, Vectors, rescore
from drtk.models.device import choose_device
from drtk.runtime.progress import Progress, log_detail
from drtk.runtime.runners import read_ahead

QUERIES_AT_A_TIME = 1024
# Matrices are padded with zeros to whole tiles. Libraries sum partial tiles in another order, so scores of equal vectors
# would differ in the last bit instead of being tied.
QUERY_TILE, PASSAGE_TILE = 32, 64
MAX_CANDIDATES = 4  # per result; with more, the block is first reduced to its own top k
EMPTY_KEY = -9187343239835811840  # the key of -inf with rank 0, below that of every finite score


class ExactIndex:
    """Exact dense index with all vectors in one file: float32, float16, or int8 with a scale per dimension."""

    reads: ClassVar[Literal["vectors"]] = "vectors"

    @classmethod
    def check_vectors(cls, vectors: Vectors, settings: DenseIndexSettings, *, kind: str = "exact") -> None:
        """Accept vectors of any dtype and dimension."""

    @classmethod
    def build(
        cls,
        vectors: Vectors,
        folder: Path,
        settings: DenseIndexSettings,
        *,
        kind: str = "exact",
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Copy the vectors into `folder`; return {"dtype": stored dtype, "full": whether exact copies are stored too}."""
        stored = vectors.dtype
        dtype = settings.vector_dtype or str(stored)
        RankedIds.write(vectors.iter_ids(), folder)
        vectors.store(folder / VECTORS, dtype, progress=progress)
        full = settings.full and np.dtype(dtype).itemsize < stored.itemsize
        if full:
            vectors.store(folder / FULL, str(stored))
        return {"dtype": dtype, "full": full}

    @classmethod
    def open(cls, folder: Path, settings: DenseSearchSettings) -> ExactIndex:
        return cls(folder, settings)

    def __init__(self, folder: Path, settings: DenseSearchSettings) -> None:
        self.ids = RankedIds(folder)
        self._vectors = read_array(folder / VECTORS, dimensions=2, mmap="c")
        if len(self._vectors) != len(self.ids):
            raise DrtkError(
                f"{folder}: the index is damaged: {len(self._vectors):,} vectors for {len(self.ids):,} ids; rebuild it"
            )
        self._scale = read_array(folder / SCALE, mmap="c") if self._vectors.dtype == np.int8 else None
        has_full = settings.rescore and (folder / FULL).exists()
        self._full = read_array(folder / FULL, dimensions=2, mmap="c") if has_full else None
        self._settings = settings
        self._device = choose_device(settings.device)
        if settings.device == "auto" and self._device.type == "mps":  # hits are selected by 64-bit integers
            self._device = torch.device("cpu")
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self._on_gpu: Tensor | None = None
        if self._device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = False  # would round scores
            free, _ = torch.cuda.mem_get_info(self._device)
            if self._vectors.nbytes < 0.6 * free:
                self._on_gpu = torch.from_numpy(self._vectors).to(self._device)
            else:
                log_detail(f"{folder}: {self._vectors.nbytes:,} bytes are copied from disk to {self._device} in blocks")

    @property
    def dimension(self) -> int:
        return int(self._vectors.shape[1])

    def __len__(self) -> int:
        return len(self._vectors)

    @torch.inference_mode()
    def search(self, vectors: np.ndarray, k: int) -> list[Ranking]:
        """Return the top `k` passages for each row of `vectors`, (queries, dimension); ties are sorted by descending id."""
        rankings: list[Ranking] = []
        for start in range(0, len(vectors), QUERIES_AT_A_TIME):
            rankings += self._search(vectors[start : start + QUERIES_AT_A_TIME].astype(np.float32), min(k, len(self)))
        return rankings

    def _search(self, vectors: np.ndarray, k: int) -> list[Ranking]:
        depth = k if self._full is None else min(len(self), k * self._settings.rescore)
        scaled = vectors if self._scale is None else vectors * self._scale
        padded = -(-len(scaled) // QUERY_TILE) * QUERY_TILE
        queries = torch.from_numpy(np.pad(scaled, ((0, padded - len(scaled)), (0, 0)))).to(self._device)
        keys = torch.full((len(scaled), depth), EMPTY_KEY, dtype=torch.int64, device=self._device)
        scores: Tensor | None = None
        for block, ranks in read_ahead(self._iter_blocks()):
            if scores is None:  # allocated once: new memory for each block costs up to a quarter of the time
                scores = torch.empty((padded, len(block)), device=self._device)
            torch.mm(queries, block.T, out=scores)
            # A NaN or infinite number in a passage vector makes its score for any query NaN or infinite.
            if not bool((finite := scores[0, : len(ranks)].isfinite()).all()):
                raise self.ids.make_score_error(int(self.ids.find_rows(ranks[~finite].cpu().numpy())[0]))
            keys = merge_top_k(keys, scores[: len(scaled), : len(ranks)], ranks)
        keys = keys.cpu()
        rows = [self.ids.find_rows(ranks) for ranks in unpack_ranks(keys).numpy()]
        if self._full is None:
            return [self.ids.make_ranking(*hits) for hits in zip(rows, unpack_scores(keys).numpy(), strict=True)]
        return rescore(self.ids, self._full, rows, vectors, k, threads=self._settings.threads)

    def _iter_blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield vectors (block, dimension) float32, padded with zero rows, and the ranks of their ids (rows,) int64."""
        rows = -(-min(self._settings.block, len(self)) // PASSAGE_TILE) * PASSAGE_TILE
        source = torch.from_numpy(self._vectors) if self._on_gpu is None else self._on_gpu
        for start in range(0, len(self), rows):
            block = source[start : start + rows].to(self._device).float()
            if len(block) < rows:
                block = torch.nn.functional.pad(block, (0, 0, 0, rows - len(block)))
            ranks = self.ids.ranks[start : start + rows].astype(np.int64)
            yield block, torch.from_numpy(ranks).to(self._device)


def merge_top_k(sort_keys: Tensor, scores: Tensor, ranks: Tensor) -> Tensor:
    """Merge the scores of a block of passages into the top `depth` sort keys of each query; return the new keys, unsorted.

    sort_keys: keys of `pack_sort_keys`, (queries, depth) int64, padded with EMPTY_KEY
    scores: (queries, block) float32
    ranks: rank of each passage id in sorted order, (block,) int64
    A score equal to the lowest score in `sort_keys` is kept too, so that ties at rank `depth` are broken by id.
    """
    depth = sort_keys.shape[1]
    floor = unpack_scores(sort_keys.amin(dim=1))
    can_raise_floor = scores.shape[1] > depth
    if can_raise_floor and bool((floor == -torch.inf).any()):
        floor, can_raise_floor = torch.maximum(floor, _find_kth_scores(scores, depth)), False
    rows, columns = (scores >= floor[:, None]).nonzero(as_tuple=True)
    if can_raise_floor and len(rows) > MAX_CANDIDATES * depth * len(sort_keys):
        floor = torch.maximum(floor, _find_kth_scores(scores, depth))
        rows, columns = (scores >= floor[:, None]).nonzero(as_tuple=True)
    if not len(rows):
        return sort_keys
    counts = rows.bincount(minlength=len(sort_keys))
    places = torch.arange(len(rows), device=sort_keys.device) - (counts.cumsum(0) - counts)[rows]
    candidates = torch.full((len(sort_keys), int(counts.max())), EMPTY_KEY, dtype=torch.int64, device=sort_keys.device)
    candidates[rows, places] = pack_sort_keys(scores[rows, columns], ranks[columns])
    return torch.cat([sort_keys, candidates], dim=1).topk(depth, dim=1, sorted=False).values


def _find_kth_scores(scores: Tensor, depth: int) -> Tensor:
    """Return the `depth`-th largest score of each query, (queries,), from scores (queries, block)."""
    return scores.topk(depth, dim=1, sorted=False).values.amin(dim=1)


def pack_sort_keys(scores: Tensor, ranks: Tensor) -> Tensor:
    """Pack float32 scores and ranks below 2**32 into int64 keys that sort by score, then by rank."""
    bits = (scores + 0.0).view(torch.int32)  # adding zero makes -0.0 equal 0.0
    sortable = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # the bits of negative floats sort in reverse
    return (sortable.long() << 32) | ranks


def unpack_scores(sort_keys: Tensor) -> Tensor:
    """Return the float32 scores in keys of `pack_sort_keys`."""
    sortable = (sort_keys >> 32).int()
    return (sortable ^ ((sortable >> 31) & 0x7FFFFFFF)).view(torch.float32)


def unpack_ranks(sort_keys: Tensor) -> Tensor:
    """Return the ranks in keys of `pack_sort_keys`."""
    return sort_keys & 0xFFFFFFFF
