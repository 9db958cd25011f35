"""The check that compares vectors: is a passage nearly the same as a positive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drtk.errors import MismatchError
from drtk.io.cache import hash_of
from drtk.io.manifest import read_manifest
from drtk.io.shards import KIND, Shard, check_finite, read_shards
from drtk.retrieval.mining.pool import Pool
from drtk.retrieval.vectors import unit_length


class VectorsById:
    """The vectors of an embeddings folder of passages, by id; vectors stay on disk, 16 bytes an id in memory.

    Ids are told apart by 64 bits of hash. Raises MismatchError for a folder of queries.
    """

    def __init__(self, folder: str) -> None:
        if read_manifest(folder, kind=KIND).get("role", "passage") != "passage":
            raise MismatchError(f"{folder}: holds vectors of queries; those of passages are compared")
        self.folder = folder
        self._shards = [shard for shard in read_shards(folder) if shard.rows]
        self._starts = np.cumsum([0, *(shard.rows for shard in self._shards)])
        keys = np.empty(int(self._starts[-1]), dtype=np.uint64)
        for start, shard in zip(self._starts.tolist(), self._shards, strict=False):
            once = Shard(shard.folder, shard.number, shard.rows, shard.dimension)  # its list of ids goes again
            keys[start : start + shard.rows] = np.fromiter(map(hash_of, once.ids), dtype=np.uint64, count=shard.rows)
        self._rows: np.ndarray = np.argsort(keys, kind="stable")  # (passages,)
        self._keys: np.ndarray = keys[self._rows]  # (passages,), ascending

    def take(self, ids: Sequence[str]) -> np.ndarray:
        """(ids, dimension) float32, each of length 1. Raises MismatchError for ids without a vector."""
        wanted = np.fromiter(map(hash_of, ids), dtype=np.uint64, count=len(ids))
        places = np.minimum(self._keys.searchsorted(wanted), max(len(self._keys) - 1, 0))
        known = self._keys[places] == wanted if len(self._keys) else np.zeros(len(ids), dtype=bool)
        if not known.all():
            lacking = [id for id, is_known in zip(ids, known.tolist(), strict=True) if not is_known]
            more = f" and {len(lacking) - 1:,} more" if len(lacking) > 1 else ""
            raise MismatchError(f"{self.folder}: has no vector of '{lacking[0]}'{more}")
        rows = self._rows[places]
        found = np.empty((len(ids), self._shards[0].dimension if self._shards else 0), dtype=np.float32)
        for number in np.unique(np.searchsorted(self._starts, rows, side="right") - 1).tolist():
            mine = np.flatnonzero((rows >= self._starts[number]) & (rows < self._starts[number + 1]))
            mine = mine[np.argsort(rows[mine], kind="stable")]  # in the order in which they lie on disk
            shard, rows_in = self._shards[number], rows[mine] - self._starts[number]
            found[mine] = shard.vectors[rows_in]
            check_finite(shard, found[mine], rows_in)
        return unit_length(found)


class CosineCheck:
    """The largest cosine of a passage's vector with that of a positive of its query."""

    name = "cosine"

    def __init__(self, vectors: VectorsById, limit: float | None = None) -> None:
        self._vectors, self._limit = vectors, limit

    def measure(self, pools: Sequence[Pool], wanted: Sequence[Sequence[str]]) -> None:
        """Mark the wanted passages of each query."""
        ids = list(
            dict.fromkeys(id for pool, some in zip(pools, wanted, strict=True) for id in (*some, *pool.positives))
        )
        vectors = self._vectors.take(ids)
        row = {id: at for at, id in enumerate(ids)}
        for pool, some in zip(pools, wanted, strict=True):
            if some and pool.positives:
                mine = vectors[[row[id] for id in some]]  # (wanted, dimension)
                theirs = vectors[[row[id] for id in pool.positives]]  # (positives, dimension)
                for id, value in zip(some, (mine @ theirs.T).max(axis=1).tolist(), strict=True):
                    pool.mark(id, self.name, value)

    def limit(self, _: Pool) -> float | None:
        """What is this near goes."""
        return self._limit

    def is_beyond(self, value: float, limit: float) -> bool:
        """Whether a passage is to go."""
        return value >= limit
