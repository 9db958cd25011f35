"""Exact search with torch: inner products of queries with all vectors, in blocks from disk or GPU memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drtk.data.arrays import read_array
from drtk.errors import DrtkError
from drtk.indexing.base import HITS_AT_A_TIME, RankedIds, Ranking
from drtk.indexing.config import DenseIndexSettings, DenseSearchSettings
from drtk.indexing.vectors import FULL, SCALE, VECTORS, Vectors, rescore
from drtk.models.device import choose_device, is_out_of_memory, report_out_of_memory
from drtk.runtime.progress import Progress, log_detail
from drtk.runtime.runners import read_ahead

_GROUP_SIZE, _GPU_GROUP_SIZE = 1024, 4096  # queries per matrix product
_GPU_BLOCK = 262_144  # passages per matrix product
_MIN_BLOCK = 8192  # blocks up to this size are not halved if memory runs out
_PAIRS = 1 << 18  # pairs of a query and a passage that are scored at once
_BUFFER = 256  # candidates per query before a merge, besides as many as results
_KEYS_PER_PASS = 1 << 26  # 512 MB of sort keys, over all shards; limits the queries of one pass over the passages
# Matrices are padded with zeros to whole tiles. Libraries sum partial tiles in another order, so scores of equal vectors
# would differ in the last bit instead of being tied.
QUERY_TILE, PASSAGE_TILE = 32, 64
MAX_CANDIDATES = 4  # per result; with more, the block is first reduced to its own top k
# Bound on the error of a float16 inner product of unit vectors with float32 sums: the inputs are off by 2**-11 of
# themselves each, the output by 2**-11; the rest is for float32 sums and the smallest float16 numbers.
HALF_ERROR = 2**-9
EMPTY_KEY = -0x7F800001 << 32  # the key of -inf with rank 0, below that of every finite score
_TINY = torch.finfo(torch.float32).tiny


class _DeviceShard(NamedTuple):
    """Consecutive vectors that one device searches.

    vectors: (rows, dimension), in GPU memory if they fit, else memory-mapped
    ranks: rank of each vector's id among the sorted ids, (rows,), to break ties
    """

    device: torch.device
    vectors: Tensor
    ranks: np.ndarray


def list_devices(name: str) -> list[torch.device]:
    """Return the devices that search an index, for a device name.

    "cuda" means all CUDA GPUs; "auto" means the same, or the CPU without one. Instead of an Apple GPU, the CPU is used.
    Raises DrtkError if the device is not available.
    """
    device = choose_device(name)
    if device.type == "mps":  # hits are selected by 64-bit integers
        return [torch.device("cpu")]
    if device.type == "cuda" and ":" not in name:
        return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    return [device]


class ExactIndex:
    """Exact dense index with all vectors in one file: float32, float16, or int8 with a scale per dimension."""

    reads: ClassVar[Literal["vectors"]] = "vectors"

    @classmethod
    def check_vectors(cls, vectors: Vectors, settings: DenseIndexSettings, *, kind: str = "exact") -> None:
        """Accept vectors of any dtype and dimension."""

    @classmethod
    def build(
        cls, vectors: Vectors, folder: Path, settings: DenseIndexSettings, *, kind: str = "exact"
    ) -> dict[str, Any]:
        """Copy the vectors into `folder`; return {"dtype": stored dtype, "full": whether exact copies are stored too}."""
        stored = vectors.dtype
        dtype = settings.vector_dtype or str(stored)
        full = settings.full and np.dtype(dtype).itemsize < stored.itemsize
        with Progress("index", total=len(vectors), unit="vectors") as progress:
            RankedIds.write(vectors.iter_ids(), folder)
            vectors.store(folder / VECTORS, dtype, progress=progress)
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
        if settings.threads:
            torch.set_num_threads(settings.threads)
        devices = list_devices(settings.device)
        self._group_size, self._block, self._product_dtype = _GROUP_SIZE, settings.block, torch.float32
        if devices[0].type == "cuda":
            self._group_size, self._product_dtype = _GPU_GROUP_SIZE, torch.float16
            self._block = max(settings.block, _GPU_BLOCK)
            torch.backends.cuda.matmul.allow_tf32 = False  # would round scores
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False  # HALF_ERROR is for float32 sums
        self._shards: list[_DeviceShard] = []
        rows = max(-(-len(self) // len(devices)), self._block)  # a small index does not start all GPUs
        for device, start in zip(devices, range(0, len(self), rows), strict=False):
            vectors = torch.from_numpy(self._vectors[start : start + rows])
            if device.type == "cuda":
                free, _ = torch.cuda.mem_get_info(device)
                if vectors.nbytes < 0.6 * free:
                    vectors = vectors.to(device)
                else:
                    log_detail(f"{folder}: {vectors.nbytes:,} bytes are copied from disk to {device} in blocks")
            self._shards.append(_DeviceShard(device, vectors, self.ids.ranks[start : start + rows]))

    def __len__(self) -> int:
        return len(self._vectors)

    def search(self, vectors: np.ndarray, k: int) -> list[Ranking]:
        """Return the top `k` passages for each row of `vectors`, (queries, dimension); ties are sorted by descending id."""
        return list(self.iter_rankings(vectors, k))

    def iter_rankings(self, vectors: np.ndarray, k: int) -> Iterator[Ranking]:
        """Yield the rankings that `search` returns. They are made in groups, since all may not fit into memory."""
        vectors, k = vectors.astype(np.float32, copy=False), min(k, len(self))
        depth = self._get_depth(k)
        group_size = max(1, HITS_AT_A_TIME // depth) if self._full is None else _GROUP_SIZE
        for queries in _split_rows(vectors, self._get_pass_size(depth)):
            all_keys = self._find_top_keys(queries, depth)
            all_keys.numpy().sort(axis=1)
            for keys, part in zip(all_keys.split(group_size), _split_rows(queries, group_size), strict=True):
                keys = keys.flip(1)
                rows = self.ids.get_rows_of_ranks(unpack_ranks(keys).numpy())
                if self._full is None:
                    yield from self.ids.make_rankings(rows, unpack_scores(keys).numpy())
                else:
                    yield from rescore(self.ids, self._full, rows, part, k, threads=self._settings.threads)

    def get_batch_size(self, k: int) -> int:
        """Return the number of queries of one pass over the vectors, for the top `k` of each.

        On a CPU that holds all vectors in memory, more queries per pass save no time (docs/benchmarks.md).
        """
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if self._shards[0].device.type == "cpu" and self._vectors.nbytes < 0.6 * memory:
            return self._group_size
        return self._get_pass_size(self._get_depth(min(k, len(self))))

    def _get_depth(self, k: int) -> int:
        """Return the number of candidates per query."""
        return k if self._full is None else min(len(self), k * self._settings.rescore)

    def _get_pass_size(self, depth: int) -> int:
        return max(self._group_size, _KEYS_PER_PASS // ((2 * depth + _BUFFER) * len(self._shards)))

    def _find_top_keys(self, vectors: np.ndarray, depth: int) -> Tensor:
        """Return the sort keys of the top `depth` passages of each query, unsorted, (queries, depth)."""
        if len(self._shards) == 1:  # without a thread, Ctrl-C ends the search at once
            return self._search_shard(self._shards[0], vectors, depth)
        with ThreadPoolExecutor(len(self._shards)) as pool:
            keys = pool.map(lambda shard: self._search_shard(shard, vectors, depth), self._shards)
            return _take_largest(torch.cat([*keys], dim=1), depth)

    def _search_shard(self, shard: _DeviceShard, vectors: np.ndarray, depth: int) -> Tensor:
        """Return what `_search_blocks` returns; use smaller blocks if GPU memory runs out.

        Raises DrtkError if it runs out with small blocks too.
        """
        while (size := self._block) > _MIN_BLOCK:
            try:
                return self._search_blocks(shard, vectors, depth)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            self._block = min(self._block, size // 2)  # another shard may have reduced it
            log_detail(f"{shard.device}: out of memory; trying blocks of {self._block:,} passages")
        advice = "lower `block`" if shard.device.type == "cpu" else "free GPU memory, or use `device` cpu"
        with report_out_of_memory(shard.device, advice):
            return self._search_blocks(shard, vectors, depth)

    @torch.inference_mode()
    def _search_blocks(self, shard: _DeviceShard, vectors: np.ndarray, depth: int) -> Tensor:
        """Return the sort keys of the top `depth` passages of a shard, unsorted, (queries, depth), on the CPU.

        The vectors of the shard are read once, for all queries. EMPTY_KEY pads the keys of a shard with fewer passages.
        """
        groups, tops = [], []
        for part in _split_rows(vectors if self._scale is None else vectors * self._scale, self._group_size):
            padded = -(-len(part) // QUERY_TILE) * QUERY_TILE
            groups.append(torch.from_numpy(np.pad(part, ((0, padded - len(part)), (0, 0)))).to(shard.device))
            tops.append(TopKeys(len(part), depth, shard.device))
        buffer: Tensor | None = None
        for block, ranks in read_ahead(_iter_blocks(shard, self._block)):
            if buffer is None:  # allocated once: new memory for each block costs up to a quarter of the time
                buffer = torch.empty((len(groups[0]), len(block)), dtype=self._product_dtype, device=shard.device)
            coarse = _Float16Block(block, len(ranks)) if self._product_dtype == torch.float16 else None
            for queries, top in zip(groups, tops, strict=True):
                scores = buffer[: len(queries)]
                if coarse is not None and coarse.add_to(top, queries, ranks, scores):
                    continue
                scores = torch.mm(queries, block.T, out=scores if coarse is None else None)
                # A NaN or infinite number in a passage vector makes its score for any query NaN or infinite.
                if not bool((finite := scores[0, : len(ranks)].isfinite()).all()):
                    raise self.ids.make_score_error(int(self.ids.get_rows_of_ranks(ranks[~finite].cpu().numpy())[0]))
                top.add_scores(scores[: len(top), : len(ranks)], ranks)
        return torch.cat([top.get_keys().clone() for top in tops]).cpu()  # without the rest of the arrays


def _iter_blocks(shard: _DeviceShard, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield blocks of up to `size` vectors (rounded up to whole tiles), and the ranks of their ids.

    Vectors are (block, dimension) float32, padded with zero rows; ranks are (rows,) int64. Both are on the shard's device.
    """
    rows = -(-min(size, len(shard.vectors)) // PASSAGE_TILE) * PASSAGE_TILE
    for start in range(0, len(shard.vectors), rows):
        block = shard.vectors[start : start + rows].to(shard.device).float()
        if len(block) < rows:
            block = torch.nn.functional.pad(block, (0, 0, 0, rows - len(block)))
        ranks = shard.ranks[start : start + rows].astype(np.int64)
        yield block, torch.from_numpy(ranks).to(shard.device)


def _split_rows(vectors: np.ndarray, size: int) -> list[np.ndarray]:
    return [vectors[start : start + size] for start in range(0, len(vectors), size)]


class TopKeys:
    """The largest sort keys of each query, with a buffer of candidates that is merged when it is full.

    floor: lowest score in the top `depth` at the last merge, -inf if there are fewer, (queries,); scores below are skipped
    has_floor: whether the floors of all queries are finite
    """

    def __init__(self, num_queries: int, depth: int, device: torch.device) -> None:
        self.depth, self._buffer = depth, depth + _BUFFER
        self._keys = torch.full((num_queries, depth + self._buffer), EMPTY_KEY, device=device)
        self._used = torch.full((num_queries,), depth, device=device)  # columns in use, of each query
        self.floor, self.has_floor = torch.full((num_queries,), -torch.inf, device=device), False

    def __len__(self) -> int:
        return len(self._keys)

    def add_scores(self, scores: Tensor, ranks: Tensor) -> None:
        """Add the scores (queries, block) float32 of a block, given the rank of each passage id, (block,) int64.

        A score equal to the floor is a candidate too, so that ties at rank `depth` are broken by id.
        """
        floor, can_raise_floor = self.floor, scores.shape[1] > self.depth
        if can_raise_floor and not self.has_floor:
            floor, can_raise_floor = torch.maximum(floor, _find_kth_scores(scores, self.depth)), False
        rows, columns, values = _find_at_least(scores, floor)
        if can_raise_floor and len(rows) > MAX_CANDIDATES * self.depth * len(self):
            floor = torch.maximum(floor, _find_kth_scores(scores, self.depth))
            rows, columns, values = _find_at_least(scores, floor)
        self.add(rows, pack_sort_keys(values, ranks.gather(0, columns)))

    def add(self, rows: Tensor, keys: Tensor) -> None:
        """Add candidates, given the query (candidates,), ascending, and sort key (candidates,) of each."""
        if not len(rows):
            return
        counts = rows.bincount(minlength=len(self))
        most, used = torch.stack([counts, self._used + counts]).amax(dim=1).tolist()
        if used > self._keys.shape[1]:
            self._merge()
        places = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts).gather(0, rows)
        if most > self._buffer:
            for start in range(0, most, self._buffer):
                part = (places >= start) & (places < start + self._buffer)
                self.add(rows[part], keys[part])
            return
        places += rows * self._keys.shape[1] + self._used.gather(0, rows)
        self._keys.view(-1).scatter_(0, places, keys)
        self._used += counts
        # On a GPU, merging a large block costs less than exact scores for the candidates above an old floor.
        if not self.has_floor or self._keys.device.type != "cpu":
            self._merge()

    def _merge(self) -> None:
        self._keys[:, : self.depth], self._keys[:, self.depth :] = self.get_keys(), EMPTY_KEY
        self._used.fill_(self.depth)
        self.floor = unpack_scores(self._keys[:, : self.depth].amin(dim=1))
        self.has_floor = self.has_floor or bool(self.floor.isfinite().all())

    def get_keys(self) -> Tensor:
        """Return the top `depth` sort keys, unsorted, padded with EMPTY_KEY, (queries, depth)."""
        return _take_largest(self._keys, self.depth)


class _Float16Block:
    """A block of passages in float16, whose inner products select candidates for exact scores.

    The mean vector of the block is subtracted before rounding to float16, so passages keep distinct scores if their
    vectors have a large common part. The query's product with the mean is the same for all passages of the block.

    block: passage vectors (block, dimension) float32
    num_rows: number of passages; further rows are padding
    """

    def __init__(self, block: Tensor, num_rows: int) -> None:
        self._exact = block
        self._center = block[:num_rows].mean(dim=0)
        centered = block - self._center
        # At least 1/32 of the longest vector: then float32 errors of products with the mean are far below HALF_ERROR.
        length = block[:num_rows].norm(dim=1).amax() / 32
        self._length = torch.maximum(length, centered[:num_rows].norm(dim=1).amax()).clamp_min(_TINY)
        self._half = centered.div_(self._length).half()

    def add_to(self, top: TopKeys, queries: Tensor, ranks: Tensor, products: Tensor) -> bool:
        """Add the block like `TopKeys.add_scores`.

        Return False if the block has NaN or infinite numbers, or if float16 products leave too many candidates.
        queries: (queries, dimension) float32
        products: buffer for the inner products, (queries, block) float16
        Float16 inner products of unit vectors are off by at most HALF_ERROR. So a passage cannot be in the top `depth`
        if its product is more than HALF_ERROR below the lowest exact score, or more than 2 * HALF_ERROR below the
        `depth`-th product.
        """
        if not bool(self._length.isfinite()):
            return False
        lengths = queries.norm(dim=1, keepdim=True).clamp_min(_TINY)
        torch.mm((queries / lengths).half(), self._half.T, out=products)
        scores = products[: len(top), : len(ranks)]
        lowest = top.floor - (queries @ self._center)[: len(top)]
        floor = lowest / (lengths[: len(top), 0] * self._length).clamp_min(_TINY) - HALF_ERROR
        if scores.shape[1] > top.depth and not top.has_floor:
            floor = torch.maximum(floor, _find_kth_scores(scores, top.depth).float() - 2 * HALF_ERROR)
        rows, columns, _ = _find_at_least(scores, floor)
        if len(rows) > 2 * MAX_CANDIDATES * top.depth * len(top):
            return False
        # Whole tiles, because a GPU sums few rows in another order, and scores of equal vectors would differ.
        padded = torch.nn.functional.pad(torch.stack([rows, columns]), (0, -len(rows) % PASSAGE_TILE))
        exact = [(queries[row] * self._exact[column]).sum(dim=1) for row, column in padded.split(_PAIRS, dim=1)]
        top.add(rows, pack_sort_keys(torch.cat(exact)[: len(rows)], ranks[columns]))
        return True


def _find_at_least(scores: Tensor, floor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return row and column indices and values of the scores (queries, block) that reach the floor (queries,) of their row."""
    if scores.device.type != "cpu":
        rows, columns = (scores >= floor[:, None]).nonzero().T
        return rows, columns, scores[rows, columns]
    # On a CPU, comparing, finding and partitioning take numpy a quarter of torch's time (docs/benchmarks.md).
    flat = np.flatnonzero(scores.numpy() >= floor[:, None].numpy())
    rows, columns = map(torch.from_numpy, np.divmod(flat, scores.shape[1]))
    return rows, columns, torch.from_numpy(scores.numpy().take(flat))


def _take_largest(values: Tensor, count: int) -> Tensor:
    """Return the `count` largest values of each row, unsorted."""
    if values.device.type != "cpu":
        return values.topk(count, dim=1, sorted=False).values
    first = values.shape[1] - count
    return torch.from_numpy(np.partition(values.numpy(), first, axis=1)[:, first:])


def _find_kth_scores(scores: Tensor, depth: int) -> Tensor:
    """Return the `depth`-th largest score of each query, (queries,), from scores (queries, block)."""
    return _take_largest(scores, depth).amin(dim=1)


def pack_sort_keys(scores: Tensor, ranks: Tensor) -> Tensor:
    """Pack float32 scores and int64 ranks below 2**32, of one shape, into int64 sort keys.

    Keys increase with the score, and for equal scores with the rank.
    """
    bits = (scores + 0.0).view(torch.int32)  # adding zero makes -0.0 equal 0.0
    sortable = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # the bits of negative floats sort in reverse
    return (sortable.long() << 32) | ranks


def unpack_scores(sort_keys: Tensor) -> Tensor:
    """Return the scores packed in keys of `pack_sort_keys`, as float32 of their shape."""
    sortable = (sort_keys >> 32).int()
    return (sortable ^ ((sortable >> 31) & 0x7FFFFFFF)).view(torch.float32)


def unpack_ranks(sort_keys: Tensor) -> Tensor:
    """Return the ranks that `pack_sort_keys` packed, int64, in the shape of `sort_keys`."""
    return sort_keys & 0xFFFFFFFF
