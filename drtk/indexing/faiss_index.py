"""faiss indexes: flat, HNSW, IVF, quantized, or any factory string; on a GPU if faiss supports the index type.

Hits are ordered by score, then by descending id. If passages at ranks k and k + 1 have equal scores, exhaustive indexes
(flat; scalar or product quantized without rescoring) are searched deeper. Their top k therefore do not depend on
faiss's order. Other indexes, such as HNSW and IVF, return any of the tied passages.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from drtk.data.arrays import read_array
from drtk.data.rows import is_faiss_index
from drtk.data.vector_files import check_encoder, log_unknown_encoder, read_ids
from drtk.errors import DrtkError, MismatchError, MissingDependency, UsageError, format_pip_command
from drtk.indexing import INDEXES
from drtk.indexing.base import RankedIds, Ranking
from drtk.indexing.config import DenseIndexSettings, DenseSearchSettings
from drtk.indexing.vectors import FULL, Vectors, rescore
from drtk.runtime.atomic import write_json
from drtk.runtime.integrity import read_object
from drtk.runtime.progress import Progress, log, warn

try:
    import faiss
except ImportError as error:
    raise MissingDependency(
        "faiss", "this index type", format_pip_command("faiss-cpu") + " (or faiss-gpu), or use `type=exact`"
    ) from error

INDEX_FILE, FACTS_FILE = "index.faiss", "faiss.json"
QUERIES_AT_A_TIME = 1024
MIN_VECTORS_PER_CENTROID = 39  # below, faiss warns of poor centroids
GPU_DEPTH = 2048  # maximum depth, and maximum number of clusters per query, that faiss supports on GPUs
EXACT_STORE = re.compile(r"(?:(?:IVF\d+(?:_HNSW\d+)?|HNSW\d+),)?Flat|HNSW\d+")
_NAMED = re.compile(r"(flat(?!\d)|hnsw|ivf)(?!0)(\d*)")
STORES = {"float32": "Flat", "float16": "SQfp16", "int8": "SQ8"}


class FaissIndex:
    """A faiss index of inner products (or L2, if imported), passage ids by row, and optional vectors for rescoring."""

    reads: ClassVar[Literal["vectors"]] = "vectors"

    @classmethod
    def check_kind(cls, kind: str) -> None:
        """Raise UsageError for a type that faiss cannot parse."""
        if _NAMED.fullmatch(kind):
            return
        try:
            faiss.index_factory(64, kind)
        except RuntimeError as error:  # others depend on the dimension
            if "could not parse" in str(error):
                raise _make_type_error(kind) from error

    @classmethod
    def check_vectors(cls, vectors: Vectors, settings: DenseIndexSettings, *, kind: str = "flat") -> None:
        """Raise UsageError for a type that faiss cannot build from these vectors, DrtkError for a missing device."""
        index = _make_index(make_factory_string(kind, settings, len(vectors)), vectors.dimension)
        clusters = faiss.try_extract_index_ivf(index)
        count = min(len(vectors), settings.train_sample)
        if clusters is not None and clusters.nlist > count:
            raise UsageError(
                f"index type {kind}: {count:,} vectors are too few to train {clusters.nlist:,} clusters; use fewer clusters"
            )
        if settings.device != "auto":
            _copy_to_gpu(index, settings.device)

    @classmethod
    def build(
        cls, vectors: Vectors, folder: Path, settings: DenseIndexSettings, *, kind: str = "flat"
    ) -> dict[str, Any]:
        """Train the index if required, add all vectors, and write the index to `folder`.

        The index must fit into memory; vectors are read in blocks.
        Returns {"factory": faiss factory string, "full": whether exact copies of the vectors are stored too}.
        """
        factory = make_factory_string(kind, settings, len(vectors))
        index = _make_index(factory, vectors.dimension)
        if settings.threads:
            faiss.omp_set_num_threads(settings.threads)
        graph = _cast_to_hnsw(index)
        if graph is not None:
            graph.hnsw.efConstruction = settings.ef_construction
        full = settings.full and EXACT_STORE.fullmatch(factory) is None
        with Progress("index", total=len(vectors), unit="vectors") as progress:
            RankedIds.write(vectors.iter_ids(), folder)
            if not index.is_trained:
                index = _build_on_gpu(index, vectors, settings, factory, progress)
            if not index.is_trained:
                _train_index(index, vectors, settings, factory)
            if not index.ntotal:
                _add_vectors(index, vectors, progress)
            try:
                faiss.write_index(index, str(folder / INDEX_FILE))
            except RuntimeError as error:
                raise DrtkError(f"{folder / INDEX_FILE}: cannot be written: {_shorten_message(error)}") from error
            if full:
                vectors.store(folder / FULL, str(vectors.dtype))
        entries = {"factory": factory, "full": full}
        write_json(folder / FACTS_FILE, entries)
        return entries

    @classmethod
    def import_file(
        cls, file: str, ids_file: str, begin: Callable[[], Path], encoder: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Copy the faiss index of another program, and write its ids; return entries for the manifest, and the number of `passages`.

        ids_file: file with one id per line, in the order in which the vectors were added
        begin: function that creates the folder of the index and returns its path
        encoder: identity of the encoder of the vectors, if known
        Raises DrtkError for a file of another kind, MismatchError for ids that do not fit, an unsupported index, or vectors of
        another dimension or length than those of `encoder`.
        """
        from faiss.contrib.factory_tools import reverse_index_factory

        try:
            index = faiss.read_index(file)
        except RuntimeError as error:
            reason = _shorten_message(error)
            problem = f"is not a faiss index ({reason}); for a file of vectors, use drtk convert --as embeddings"
            with open(file, "rb") as content:
                if is_faiss_index(content.read(64)):
                    problem = f"the faiss index cannot be read ({reason}); the file may be truncated, copy it again"
            raise DrtkError(f"{file}: {problem}") from error
        if index.metric_type not in (faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2):
            raise MismatchError(f"{file}: has metric {index.metric_type}; use inner product or L2")
        try:
            factory = str(reverse_index_factory(index))
            faiss.index_factory(int(index.d), factory)
        except (NotImplementedError, AttributeError, RuntimeError, AssertionError) as error:
            name = type(faiss.downcast_index(index)).__name__
            raise MismatchError(
                f"{file}: {name} is not supported; save the vectors as .npy, and convert them with drtk convert --as embeddings"
            ) from error
        if not _has_row_numbers(index):
            raise MismatchError(
                f"{file}: the vectors have explicit ids (add_with_ids); add them without ids, in the order of the ids file"
            )
        check_encoder(file, int(index.d), encoder)
        ids = read_ids(ids_file, int(index.ntotal))
        if ids and encoder is not None and (encoder["normalized"] or encoder["similarity"] == "cosine"):
            norms = np.linalg.norm(index.reconstruct_n(0, min(1000, len(ids))), axis=1)
            tolerance = 0.05 if EXACT_STORE.fullmatch(factory) else 0.5  # lossy codes have other lengths
            if not abs(np.median(norms) - 1) <= tolerance:  # also if it is NaN
                raise MismatchError(
                    f"{file}: the vectors do not have unit length, but {encoder['model']} normalizes them or uses cosine similarity; save "
                    "the vectors as .npy, and convert them with drtk convert --as embeddings"
                )
        log_unknown_encoder(file, encoder)
        folder = begin()
        RankedIds.write(ids, folder)
        faiss.write_index(index, str(folder / INDEX_FILE))
        write_json(folder / FACTS_FILE, {"factory": factory, "full": False})
        metric = "inner product" if index.metric_type == faiss.METRIC_INNER_PRODUCT else "L2"
        facts = {"type": factory, "dimension": int(index.d), "metric": metric, "factory": factory, "full": False}
        return {"passages": len(ids), **facts}

    @classmethod
    def open(cls, folder: Path, settings: DenseSearchSettings) -> FaissIndex:
        return cls(folder, settings)

    def __init__(self, folder: Path, settings: DenseSearchSettings) -> None:
        self.ids = RankedIds(folder)
        self._folder, self._settings = folder, settings
        factory = read_object(folder / FACTS_FILE, factory=str)["factory"]
        try:
            self._index = faiss.read_index(str(folder / INDEX_FILE), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise DrtkError(
                f"{folder / INDEX_FILE}: the index is damaged: {_shorten_message(error)}; rebuild it"
            ) from error
        if self._index.ntotal != len(self.ids):
            raise DrtkError(
                f"{folder}: the index is damaged: {self._index.ntotal:,} vectors for {len(self.ids):,} ids; rebuild it"
            )
        if settings.threads:
            faiss.omp_set_num_threads(settings.threads)
        has_full = settings.rescore and (folder / FULL).exists()
        self._full = read_array(folder / FULL, dimensions=2, mmap="c") if has_full else None
        self._graph = _cast_to_hnsw(self._index)
        self._clusters = faiss.try_extract_index_ivf(self._index)
        self._compares_all = re.fullmatch(r"Flat|SQ\w+|PQ\w+", factory) is not None
        self._returns_all = self._compares_all and not factory.endswith("fs")
        if self._clusters is not None:
            self._clusters.nprobe = settings.nprobe or max(8, self._clusters.nlist // 16)
        self._on_gpu = _copy_to_gpu(self._index, settings.device)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def search(self, vectors: np.ndarray, k: int) -> list[Ranking]:
        """Return the top `k` passages for each row of `vectors`, (queries, dimension); HNSW and IVF may return fewer."""
        k = min(k, len(self))
        depth = min(len(self), k + self._compares_all if self._full is None else k * self._settings.rescore)
        if self._on_gpu is not None and depth > GPU_DEPTH:
            warn(
                f"{self._folder}: faiss finds at most {GPU_DEPTH:,} hits on a GPU; depth {depth:,} is searched on the CPU"
            )
            self._on_gpu = None
        rankings: list[Ranking] = []
        for start in range(0, len(vectors), QUERIES_AT_A_TIME):
            part = np.ascontiguousarray(vectors[start : start + QUERIES_AT_A_TIME], dtype=np.float32)
            rankings += self._search(part, k, depth)
        return rankings

    def _search(self, vectors: np.ndarray, k: int, depth: int) -> list[Ranking]:
        if self._full is not None:
            _, rows = self._search_faiss(vectors, depth)
            candidates = [row[row >= 0] for row in rows]
            return rescore(self.ids, self._full, candidates, vectors, k, threads=self._settings.threads)
        rankings: list[Ranking] = [[] for _ in vectors]
        pending = np.arange(len(vectors))
        while len(pending):
            scores, rows = self._search_faiss(vectors[pending], depth)
            is_tied = np.zeros(len(rows), bool)  # at the cut
            if depth < len(self) and self._compares_all:
                is_tied = scores[:, -1] == scores[:, k - 1]
            for query in np.flatnonzero(~is_tied):
                is_hit = rows[query] >= 0
                rankings[pending[query]] = self.ids.make_ranking(rows[query][is_hit], scores[query][is_hit], k)
            pending, depth = pending[is_tied], min(len(self), depth * 2)
        return rankings

    def _search_faiss(self, vectors: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and rows, both (queries, depth); missing hits have row -1.

        faiss omits hits with a score of NaN or -inf. Raises DrtkError if an exhaustive index (except fast scan) returns
        fewer than `depth` hits, or another index returns none for a vector with NaN, infinite or too large numbers.
        """
        if self._graph is not None:
            self._graph.hnsw.efSearch = max(depth, self._settings.ef_search or max(128, 2 * depth))
        index = self._on_gpu if self._on_gpu is not None and depth <= GPU_DEPTH else self._index
        scores, rows = index.search(vectors, depth)
        if self._index.metric_type == faiss.METRIC_L2:  # squared distances; an index of another program
            scores = -scores
        counts = (rows >= 0).sum(axis=1)
        if self._returns_all:
            is_faulty = counts < depth
        else:  # clusters may be empty, and fast scan (PQ...fs) returns nothing for a query of zeros
            with np.errstate(over="ignore"):
                is_faulty = (counts == 0) & ~np.isfinite(np.square(vectors).sum(axis=1))
        if is_faulty.any():
            largest = np.abs(vectors[int(np.argmax(is_faulty))]).max()
            raise DrtkError(
                f"{self._folder}: a query has NaN or infinite scores; its vector (largest number {largest:.3g}) or a vector of "
                "the index is damaged or too large; encode queries and passages again"
            )
        return scores, rows


def make_factory_string(kind: str, settings: DenseIndexSettings, num_vectors: int) -> str:
    """Return the faiss factory string of an index type such as flat, hnsw48 or ivf; return factory strings unchanged.

    num_vectors: number of vectors, which determines the default number of clusters
    """
    named = _NAMED.fullmatch(kind)
    if named is None:
        if settings.vector_dtype is not None:
            raise UsageError(
                f"`vector_dtype` cannot be combined with factory string '{kind}', which sets the data type; omit it"
            )
        return kind
    name, number = named[1], named[2]
    store = STORES[settings.vector_dtype or "float32"]
    if name == "flat":
        return store
    if name == "hnsw":
        return f"HNSW{number or settings.hnsw_m},{store}"
    default = max(1, min(int(4 * num_vectors**0.5), num_vectors // MIN_VECTORS_PER_CENTROID))
    clusters = number or settings.nlist or default
    return f"IVF{clusters},{store}"


def _make_type_error(kind: str) -> UsageError:
    return UsageError(f"{INDEXES.describe_unknown(kind)}, or give a faiss factory string")


def _make_index(factory: str, dimension: int) -> Any:
    try:
        return faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        if "could not parse" in str(error):
            raise _make_type_error(factory) from error
        raise UsageError(
            f"index type {factory}: not supported by faiss for dimension {dimension} ({_shorten_message(error)}); "
            "choose another type"
        ) from error


def _train_index(index: Any, vectors: Vectors, settings: DenseIndexSettings, factory: str) -> None:
    sample = vectors.sample(settings.train_sample, seed=settings.seed)
    log(f"training {factory} on {len(sample):,} vectors")
    clusters = faiss.try_extract_index_ivf(index)
    quantizer = getattr(faiss.downcast_index(index if clusters is None else clusters), "pq", None)
    centroids = max(clusters.nlist if clusters is not None else 0, quantizer.ksub if quantizer is not None else 0)
    for part in filter(None, (clusters, quantizer)):
        part.cp.min_points_per_centroid = 1  # the warning below replaces faiss's, one per subquantizer
    if len(sample) < MIN_VECTORS_PER_CENTROID * centroids:
        warn(
            f"{factory}: {len(sample):,} vectors are few to train {centroids:,} centroids; faiss recommends at least "
            f"{MIN_VECTORS_PER_CENTROID} vectors per centroid"
        )
    try:
        index.train(sample)
    except RuntimeError as error:
        raise DrtkError(
            f"index type {factory}: cannot be trained on {len(sample):,} vectors ({_shorten_message(error)}); "
            "encode more passages or choose another type"
        ) from error


def _add_vectors(index: Any, vectors: Vectors, progress: Progress) -> None:
    for _, block in vectors.iter_blocks():
        index.add(block)
        progress.add(len(block))


def _build_on_gpu(index: Any, vectors: Vectors, settings: DenseIndexSettings, factory: str, progress: Progress) -> Any:
    """Train and fill a copy of `index` on the GPU, and return it as a CPU index.

    If the index stays on the CPU, return `index`. If GPU memory is too small, warn and return an index without vectors,
    trained if possible. Raises DrtkError if GPU memory is too small and `device` is not auto.
    """
    on_gpu = _copy_to_gpu(index, settings.device)
    if on_gpu is None:
        return index
    try:
        _train_index(on_gpu, vectors, settings, factory)
        index = faiss.index_gpu_to_cpu(on_gpu)
        on_gpu = _copy_to_gpu(index, settings.device)  # several GPUs may have trained different clusters
        if on_gpu is None:
            return index
        _add_vectors(on_gpu, vectors, progress)
        return faiss.index_gpu_to_cpu(on_gpu)
    except (RuntimeError, DrtkError) as error:
        if "out of memory" not in str(error):
            raise
        if settings.device != "auto":
            raise DrtkError(
                f"index type {factory}: out of memory on `device={settings.device}`; use `device=cpu`"
            ) from error
        warn(f"index type {factory}: out of GPU memory; building the index on the CPU")
        progress.add(-on_gpu.ntotal)
        return index


def _has_row_numbers(index: Any) -> bool:
    """Return whether the vectors of an index are numbered 0, 1, …; IndexIDMap and add_with_ids set other numbers."""
    if isinstance(faiss.downcast_index(index), faiss.IndexIDMap):
        return False
    clusters = faiss.try_extract_index_ivf(index)
    if clusters is None:
        return True
    lists: Any = clusters.invlists
    sizes = [lists.list_size(number) for number in range(lists.nlist)]
    numbers = [faiss.rev_swig_ptr(lists.get_ids(number), size) for number, size in enumerate(sizes) if size]
    return np.array_equal(np.sort(np.concatenate(numbers)), np.arange(index.ntotal)) if numbers else True


def _cast_to_hnsw(index: Any) -> Any:
    """Return the index as a faiss.IndexHNSW; None for other index types."""
    concrete = faiss.downcast_index(index)
    return concrete if isinstance(concrete, faiss.IndexHNSW) else None


def _copy_to_gpu(index: Any, device: str) -> Any:
    """Copy an index to one GPU, or shard it over all GPUs; return None if the index stays on the CPU.

    Unless `device` is auto, raises DrtkError for a device that faiss does not find, and UsageError for an index or
    `nprobe` that faiss does not support on GPUs.
    """
    count, clusters = faiss.get_num_gpus(), faiss.try_extract_index_ivf(index)
    if device == "cpu" or (device == "auto" and (not count or _cast_to_hnsw(index) is not None)):
        return None
    if _cast_to_hnsw(index) is not None:
        raise UsageError(f"`device={device}`: HNSW is only supported on the CPU; use `device=cpu`")
    if clusters is not None and clusters.nprobe > GPU_DEPTH:
        problem = f"`nprobe` {clusters.nprobe:,}: faiss searches at most {GPU_DEPTH:,} clusters on a GPU"
        if device != "auto":
            raise UsageError(f"{problem}; use `device=cpu` or a lower `nprobe`")
        warn(f"{problem}; using the CPU")
        return None
    match = re.fullmatch(r"auto|cuda(?::(\d+))?", device)
    if match is None or not count or int(match[1] or 0) >= count:
        raise DrtkError(f"`device={device}`: not among the {count} GPUs that faiss finds; use auto or cpu")
    try:
        if match[1] is not None or count == 1:
            return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), int(match[1] or 0), index)
        options = faiss.GpuMultipleClonerOptions()
        options.shard = True  # the index may be larger than one GPU
        return faiss.index_cpu_to_all_gpus(index, co=options)
    except RuntimeError as error:
        if device != "auto":
            raise UsageError(
                f"`device={device}`: not supported by faiss for this index; use `device=cpu` ({_shorten_message(error)})"
            ) from error
        warn(f"faiss cannot use the GPU for this index and uses the CPU ({_shorten_message(error)})")
        return None


def _shorten_message(error: Exception) -> str:
    """Return the message of a faiss exception without the location in its source code."""
    return re.sub(r"^.*?(?:\.(?:cpp|h|cu):\d+: )(?:Error: '.*?' failed: )?", "", str(error), flags=re.DOTALL).strip()
