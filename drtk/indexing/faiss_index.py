"""Search by faiss: flat, HNSW, IVF, quantised, or any factory string; on GPUs where faiss has them.

Within what faiss finds, results are in drtk's order. Where faiss compares every vector (flat, scalar or product
quantised), it is asked for more as long as a tie straddles the cut, so that the tie rule holds there too; a graph or
clusters decide for themselves which of several equal passages they come upon.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from drtk.data.arrays import read_array
from drtk.errors import DrtkError, MissingDependency, UsageError, pip_install
from drtk.indexing import INDEXES
from drtk.indexing.base import FULL, RankedIds, Ranking, Vectors, rank_again
from drtk.indexing.config import DenseIndexSettings, DenseSearchSettings
from drtk.runtime.atomic import write_json
from drtk.runtime.integrity import read_object
from drtk.runtime.progress import Progress, detail, log, warn

try:
    import faiss
except ImportError as error:
    raise MissingDependency(
        "faiss", "this index type", pip_install("faiss-cpu") + " (or faiss-gpu); --type exact needs neither"
    ) from error

ENGINE, FACTS = "index.faiss", "faiss.json"
QUERIES_AT_A_TIME = 1024
TRAINED_PER_CLUSTER = 39  # below this many vectors a cluster, faiss warns that centroids are poor
GPU_DEPTH = 2048  # the deepest search faiss has on GPUs
EXACT_STORE = re.compile(r"(?:(?:IVF\d+(?:_HNSW\d+)?|HNSW\d+),)?Flat|HNSW\d+")
_NAMED = re.compile(r"(flat|hnsw|ivf)(\d*)")
STORES = {"float32": "Flat", "float16": "SQfp16", "int8": "SQ8"}


class FaissIndex:
    """A faiss index in inner product, with the ids of its rows and, where it is lossy, the exact vectors."""

    reads: ClassVar[Literal["vectors"]] = "vectors"

    @classmethod
    def check_kind(cls, kind: str) -> None:
        """Raise UsageError for a type that faiss cannot parse, before any vectors are read."""
        if _NAMED.fullmatch(kind):
            return
        try:
            faiss.index_factory(64, kind)
        except RuntimeError as error:  # others depend on the dimension
            if "could not parse" in str(error):
                raise _unknown(kind) from error

    @classmethod
    def check(cls, vectors: Vectors, settings: DenseIndexSettings, *, kind: str = "flat") -> None:
        """Raise UsageError for a `kind` faiss does not know or cannot make of these vectors, or a device it lacks."""
        factory = factory_of(kind, settings, len(vectors))
        index = _made(factory, vectors.dimension)
        clusters = faiss.try_extract_index_ivf(index)
        drawn = min(len(vectors), settings.train_sample)
        if clusters is not None and clusters.nlist > drawn:
            raise UsageError(f"--type {kind}: {clusters.nlist:,} clusters cannot be trained on {drawn:,} vectors")
        _on_gpu(index, settings.device)

    @classmethod
    def build(
        cls,
        vectors: Vectors,
        folder: Path,
        settings: DenseIndexSettings,
        *,
        kind: str = "flat",
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Train where needed, add all vectors, write; {"factory", "full"}. Faults as in `check` and `DenseIndex.build`.

        The finished index has to fit into memory; vectors pass through it in blocks.
        """
        factory = factory_of(kind, settings, len(vectors))
        index = _made(factory, vectors.dimension)
        RankedIds.write(vectors.ids(), folder)
        if settings.threads:
            faiss.omp_set_num_threads(settings.threads)
        graph = _graph(index)
        if graph is not None:
            graph.hnsw.efConstruction = settings.ef_construction
        placed = _on_gpu(index, settings.device)
        index = index if placed is None else placed
        if not index.is_trained:
            _train(index, vectors, settings, factory)
        for _, block in vectors.blocks():
            index.add(block)
            if progress is not None:
                progress.add(len(block))
        _write(index if placed is None else faiss.index_gpu_to_cpu(index), folder / ENGINE)
        full = settings.full and EXACT_STORE.fullmatch(factory) is None
        if full:
            vectors.store(folder / FULL, str(vectors.dtype))
        facts = {"factory": factory, "full": full}
        write_json(folder / FACTS, facts)
        return facts

    @classmethod
    def open(cls, folder: Path, settings: DenseSearchSettings) -> FaissIndex:
        return cls(folder, settings)

    def __init__(self, folder: Path, settings: DenseSearchSettings) -> None:
        self.ids = RankedIds(folder)
        self._folder, self._settings = folder, settings
        factory = read_object(folder / FACTS, factory=str)["factory"]
        try:
            self._index = faiss.read_index(str(folder / ENGINE), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise DrtkError(f"{folder / ENGINE}: the index is damaged: {_short(error)}") from error
        if self._index.ntotal != len(self.ids):
            raise DrtkError(f"{folder}: the index is damaged: {self._index.ntotal:,} vectors for {len(self.ids):,} ids")
        if settings.threads:
            faiss.omp_set_num_threads(settings.threads)
        lossy = EXACT_STORE.fullmatch(factory) is None
        has_full = lossy and settings.rescore and (folder / FULL).exists()
        self._full = read_array(folder / FULL, dimensions=2, mmap="c") if has_full else None
        self._graph = _graph(self._index)
        self._clusters = faiss.try_extract_index_ivf(self._index)
        self._compares_all = re.fullmatch(r"Flat|SQ\w+|PQ\w+", factory) is not None
        self._returns_all = self._compares_all and not factory.endswith("fs")
        if self._clusters is not None:
            self._clusters.nprobe = settings.nprobe or max(8, self._clusters.nlist // 16)
        self._on_gpu = _on_gpu(self._index, settings.device)

    @property
    def dimension(self) -> int:
        return int(self._index.d)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def search(self, vectors: np.ndarray, k: int) -> list[Ranking]:
        """Up to `k` passages for each of (queries, dimension); fewer where a graph or the clusters give no more."""
        found: list[Ranking] = []
        for start in range(0, len(vectors), QUERIES_AT_A_TIME):
            part = np.ascontiguousarray(vectors[start : start + QUERIES_AT_A_TIME], dtype=np.float32)
            found += self._search(part, min(k, len(self)))
        return found

    def _search(self, vectors: np.ndarray, k: int) -> list[Ranking]:
        if self._full is not None:
            _, rows = self._raw(vectors, min(len(self), k * self._settings.rescore))
            candidates = [row[row >= 0] for row in rows]
            return rank_again(self.ids, self._full, candidates, vectors, k, threads=self._settings.threads)
        found: list[Ranking] = [[] for _ in vectors]
        open_queries, depth = np.arange(len(vectors)), min(len(self), k + 1) if self._compares_all else k
        while len(open_queries):
            scores, rows = self._raw(vectors[open_queries], depth)
            cut_tied = (
                scores[:, -1] == scores[:, k - 1]
                if depth < len(self) and self._compares_all
                else np.zeros(len(rows), bool)
            )
            for query in np.flatnonzero(~cut_tied):
                real = rows[query] >= 0
                found[open_queries[query]] = self.ids.ranking(rows[query][real], scores[query][real], k)
            open_queries, depth = open_queries[cut_tied], min(len(self), depth * 2)
        return found

    def _raw(self, vectors: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """(scores, rows), both (queries, depth), as faiss gives them; row -1 where it found no more.

        faiss leaves out scores that are NaN or -inf. Raises DrtkError where that is why a query gets too few.
        """
        if self._graph is not None:
            self._graph.hnsw.efSearch = max(depth, self._settings.ef_search or max(128, 2 * depth))
        index = self._on_gpu if self._on_gpu is not None and depth <= GPU_DEPTH else self._index
        scores, rows = index.search(vectors, depth)
        counts = (rows >= 0).sum(axis=1)
        if self._returns_all:
            faulty = counts < depth
        else:  # clusters may be empty, and fast scan (PQ...fs) returns nothing for a query of zeros
            with np.errstate(over="ignore"):
                faulty = (counts == 0) & ~np.isfinite(np.square(vectors).sum(axis=1))
        if faulty.any():
            largest = np.abs(vectors[int(np.argmax(faulty))]).max()
            raise DrtkError(
                f"{self._folder}: a query has scores that are NaN or infinite: its vector (largest number {largest:.3g}) "
                "or one of the index is damaged or too large"
            )
        return scores, rows


def factory_of(kind: str, settings: DenseIndexSettings, rows: int) -> str:
    """faiss's factory string for an index type: of `flat`, `hnsw`, `ivf`, `hnsw48`, `ivf1024`; others are one already."""
    named = _NAMED.fullmatch(kind)
    if named is None:
        if settings.dtype is not None:
            raise UsageError(f"--dtype: the factory string '{kind}' says itself how vectors are stored")
        return kind
    name, number = named[1], named[2]
    stored = STORES[settings.dtype or "float32"]
    if name == "flat":
        return stored
    if name == "hnsw":
        return f"HNSW{number or settings.hnsw_m},{stored}"
    clusters = number or settings.nlist or max(1, min(int(4 * rows**0.5), rows // TRAINED_PER_CLUSTER))
    return f"IVF{clusters},{stored}"


def _unknown(kind: str) -> UsageError:
    return UsageError(f"unknown index type '{kind}'; choose from {', '.join(INDEXES)}, or give a faiss factory string")


def _made(factory: str, dimension: int) -> Any:
    try:
        return faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        if "could not parse" in str(error):
            raise _unknown(factory) from error
        raise UsageError(
            f"--type {factory}: faiss cannot make it for vectors of dimension {dimension}: {_short(error)}"
        ) from error


def _train(index: Any, vectors: Vectors, settings: DenseIndexSettings, factory: str) -> None:
    drawn = vectors.sample(settings.train_sample, seed=settings.seed)
    log(f"training {factory} on {len(drawn):,} vectors")
    _told_once(index, len(drawn), factory)
    try:
        index.train(drawn)
    except RuntimeError as error:
        raise DrtkError(f"{factory} cannot be trained on {len(drawn):,} vectors: {_short(error)}") from error


def _told_once(index: Any, drawn: int, factory: str) -> None:
    """Say once that few vectors are trained on, which faiss would say of every part of every vector."""
    clusters = faiss.try_extract_index_ivf(index)
    quantised = faiss.downcast_index(index) if clusters is None else faiss.downcast_index(clusters)
    quantiser = getattr(quantised, "pq", None)
    wanted = max(clusters.nlist if clusters is not None else 0, quantiser.ksub if quantiser is not None else 0)
    for trained in filter(None, (clusters, quantiser)):
        trained.cp.min_points_per_centroid = 1
    if drawn < TRAINED_PER_CLUSTER * wanted:
        warn(
            f"{factory}: {drawn:,} vectors to train {wanted:,} centroids; {TRAINED_PER_CLUSTER} for each would be better"
        )


def _graph(index: Any) -> Any:
    """The HNSW index that `index` is, if it is one."""
    plain = faiss.downcast_index(index)
    return plain if isinstance(plain, faiss.IndexHNSW) else None


def _on_gpu(index: Any, device: str) -> Any:
    """A copy of `index` on one GPU, or cut over all of them; None where it stays on the CPU.

    Raises UsageError where a GPU is asked for and faiss has none.
    """
    count = faiss.get_num_gpus()
    if device == "cpu" or (device == "auto" and (not count or _graph(index) is not None)):
        return None
    if _graph(index) is not None:
        raise UsageError(f"--device {device}: hnsw runs on the CPU")
    asked = re.fullmatch(r"auto|cuda(?::(\d+))?", device)
    if asked is None or not count or int(asked[1] or 0) >= count:
        raise UsageError(f"--device {device}: this faiss has {count} GPUs")
    try:
        if asked[1] is not None or count == 1:
            return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), int(asked[1] or 0), index)
        options = faiss.GpuMultipleClonerOptions()
        options.shard = True  # each GPU holds a part, so that the index may be larger than one
        return faiss.index_cpu_to_all_gpus(index, co=options)
    except RuntimeError as error:
        if device != "auto":
            raise UsageError(f"--device {device}: faiss has no such index on GPUs: {_short(error)}") from error
        detail(f"faiss stays on the CPU: {_short(error)}")
        return None


def _write(index: Any, path: Path) -> None:
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:
        raise DrtkError(f"{path}: cannot be written: {_short(error)}") from error


def _short(error: Exception) -> str:
    """faiss's complaint without the place in its source."""
    return re.sub(r"^.*?(?:\.(?:cpp|h|cu):\d+: )(?:Error: '.*?' failed: )?", "", str(error), flags=re.DOTALL).strip()
