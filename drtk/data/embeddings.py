"""Read and write embeddings folders: dense or sparse embeddings of texts, or vectors of (query, document) pairs."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson

from drtk.data.arrays import read_array
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.runtime.atomic import write_file, write_json
from drtk.runtime.integrity import check_object, read_json
from drtk.runtime.manifest import FOLDER_MANIFEST, read_manifest
from drtk.runtime.progress import warn
from drtk.runtime.streams import get_source_name

KIND, SPARSE_KIND = "embeddings", "sparse embeddings"  # of manifests
SHARD_JOURNAL = "shards.json.part"
PAIR_ROLE = "pair"  # the role of a folder that holds vectors of pairs of a query and a document


@dataclass(frozen=True)
class Shard:
    """A shard of an embeddings folder. Ids are read at each access, so that they are not kept in memory.

    has_pairs: whether each id consists of a query id and a document id, separated by a tab
    """

    folder: Path
    number: int
    num_rows: int
    dimension: int
    has_pairs: bool = False

    @property
    def name(self) -> str:
        return f"{self.number:05d}"

    @property
    def ids(self) -> list[str]:
        """The ids of the vectors. Raises DrtkError if their number is wrong or an id contains white space."""
        path = self.folder / f"{self.name}.ids"
        try:
            ids = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DrtkError(f"{path}: cannot be read: {error}; encode the texts again") from error
        if len(ids) != self.num_rows:
            raise MismatchError(f"{path}: has {len(ids):,} ids for {self.num_rows:,} vectors; encode the texts again")
        for row, id in enumerate(ids, start=1):
            if id.split() != (id.split("\t", 1) if self.has_pairs else [id]):
                problem = f"id {id!r} contains white space" if id.strip() else "the id is blank"
                raise RecordError(f"{path}:{row}", f"{problem}; an id must be one word")
        return ids

    @cached_property
    def vectors(self) -> np.ndarray:
        """The memory-mapped vectors, (num_rows, dimension), float32 or float16. Raises DrtkError for a damaged file."""
        path = self.folder / f"{self.name}.npy"
        vectors = read_array(path, dimensions=2, mmap="r")
        if vectors.shape != (self.num_rows, self.dimension):
            raise MismatchError(f"{path}: has the shape {vectors.shape}; expected {(self.num_rows, self.dimension)}")
        return vectors


def check_finite(shard: Shard, vectors: np.ndarray, rows: np.ndarray | Sequence[int]) -> None:
    """Raise DrtkError if any of `vectors`, (n, dimension), contains NaN or infinity; the message names the first one.

    rows: row of each vector in the shard, (n,)
    """
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        row = int(rows[int(np.argmin(finite))])
        raise DrtkError(
            f"{shard.folder}/{shard.name}.npy: row {row}: the vector of '{shard.ids[row]}' contains NaN or infinity; "
            "encode it again"
        )


def read_shards(folder: str | Path) -> list[Shard]:
    """Return the shards of a finished embeddings folder. Raises MismatchError for any other folder."""
    manifest = read_manifest(folder, kind=KIND, dimension=int, shards=list)
    entries = [check_object(entry, f"{folder}/{FOLDER_MANIFEST}", rows=int) for entry in manifest["shards"]]
    dimension, has_pairs = manifest["dimension"], manifest.get("role") == PAIR_ROLE
    return [Shard(Path(folder), number, entry["rows"], dimension, has_pairs) for number, entry in enumerate(entries)]


def gather_vectors(shards: Sequence[Shard], starts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the vectors at `rows` of concatenated shards, (rows, dimension) float32. Raises DrtkError for NaN or infinity.

    starts: first row of each shard, and the number of all rows, (shards + 1,)
    """
    vectors = np.empty((len(rows), shards[0].dimension if shards else 0), dtype=np.float32)
    numbers = np.searchsorted(starts, rows, side="right") - 1
    for number in np.unique(numbers).tolist():
        places = np.flatnonzero(numbers == number)
        places = places[np.argsort(rows[places], kind="stable")]  # in the order on disk
        shard, shard_rows = shards[number], rows[places] - starts[number]
        vectors[places] = shard.vectors[shard_rows]
        check_finite(shard, vectors[places], shard_rows)
    return vectors


class ShardFiles:
    """Files of shards. After a crash, each file is complete or absent; a journal file lists the finished shards.

    entries: one {"rows", "digest"} per finished shard, as in meta.json, with "truncated" if texts were truncated
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._journal = folder / SHARD_JOURNAL
        self.entries: list[dict[str, Any]] = read_json(self._journal) if self._journal.exists() else []

    @property
    def num_rows(self) -> int:
        """Number of rows in the finished shards."""
        return sum(entry["rows"] for entry in self.entries)

    @property
    def num_truncated(self) -> int:
        """Number of truncated texts in the finished shards."""
        return sum(entry.get("truncated", 0) for entry in self.entries)

    def is_finished(self, number: int, digest: str) -> bool:
        """Return whether an interrupted run has written shard `number`.

        digest: digest of the records of the shard (see `digest_records`)
        Raises MismatchError if the shard was made from other records.
        """
        if number >= len(self.entries):
            return False
        if self.entries[number]["digest"] != digest:
            raise MismatchError(
                f"{self.folder}: shard {number:05d} was made from other records; use `force` to start over"
            )
        return True

    def add_shard(
        self, files: Mapping[str, Callable[[IO[bytes]], object]], *, rows: int, digest: str, num_truncated: int = 0
    ) -> None:
        """Write the files of the next shard and add it to the journal.

        files: suffix of each file -> function that writes its content
        digest: digest of the records of the shard (see `digest_records`)
        """
        for suffix, write in files.items():
            write_file(self.folder / f"{len(self.entries):05d}{suffix}", write)
        self.entries.append({"rows": rows, "digest": digest} | ({"truncated": num_truncated} if num_truncated else {}))
        write_json(self._journal, self.entries)


class ShardWriter(ShardFiles):
    """Writer of vector shards.

    model: name of the model, for errors
    """

    def __init__(self, folder: Path, *, dimension: int, dtype: str, model: str = "the model") -> None:
        super().__init__(folder)
        self.model, self.dimension, self.dtype = model, dimension, np.dtype(dtype)

    def write(self, ids: Sequence[str], vectors: np.ndarray, *, digest: str, num_truncated: int = 0) -> None:
        """Write the next shard; the vectors are stored in the writer's dtype.

        vectors: (len(ids), dimension)
        digest: digest of the records of the shard (see `digest_records`)
        num_truncated: number of truncated texts
        Raises DrtkError for a full disk, NaN, infinity, and values too large for the dtype.
        """
        if vectors.shape != (len(ids), self.dimension):
            raise ValueError(f"vectors: expected shape ({len(ids)}, {self.dimension}), got {vectors.shape}")
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(vectors, dtype=self.dtype)
        if not np.isfinite(stored).all():
            row = int(np.flatnonzero(~np.isfinite(stored).all(axis=1))[0])
            raise DrtkError(
                f"{self.model}: the vector of '{ids[row]}' contains NaN, infinity or a value too large for {self.dtype}; "
                "check the model, or store float32"
            )
        self.add_shard(
            {
                ".ids": lambda file: file.writelines(f"{id}\n".encode() for id in ids),
                ".npy": lambda file: np.lib.format.write_array(file, stored, allow_pickle=False),
            },
            rows=len(ids),
            digest=digest,
            num_truncated=num_truncated,
        )


class ImpactShardWriter(ShardFiles):
    """Writer of shards of sparse embeddings: JSON lines {"_id", "impacts"}."""

    def write(
        self, ids: Sequence[str], impacts: Sequence[dict[str, int]], *, digest: str, num_truncated: int = 0
    ) -> None:
        """Write the next shard. impacts: the impact of each term of a text, for each text"""
        rows = zip(ids, impacts, strict=True)
        lines = (orjson.dumps({"_id": id, "impacts": terms}, option=orjson.OPT_APPEND_NEWLINE) for id, terms in rows)
        files = {".jsonl": lambda file: file.writelines(lines)}
        self.add_shard(files, rows=len(ids), digest=digest, num_truncated=num_truncated)


def digest_records(records: Iterable[Any]) -> str:
    """Return a digest of records (blake2b, 16 bytes, hexadecimal), to detect a changed input."""
    digest = hashlib.blake2b(digest_size=16)
    for record in records:
        digest.update(orjson.dumps(record))
    return digest.hexdigest()


_CACHED_SHARDS = 4  # shards whose ids are kept in memory; few are enough, since the queries of a run are in order


def make_pair_id(query_id: str, doc_id: str) -> str:
    """Return the id of a (query, document) pair: both ids, separated by a tab."""
    return f"{query_id}\t{doc_id}"


class PairVectors:
    """The vectors of (query, document) pairs in a finished folder. Memory grows with the number of queries, not of pairs.

    scorer: the entry in meta.json of the cross-encoder that computed the vectors
    Raises MismatchError for a folder of another kind, or if the pairs of a query are not consecutive.
    """

    def __init__(self, folder: str) -> None:
        manifest = read_manifest(folder, kind=KIND, dimension=int)
        if manifest.get("role") != PAIR_ROLE:
            raise MismatchError(
                f"{folder}: contains vectors of texts; expected vectors of pairs; run `drtk rerank` with `save_vectors`"
            )
        self.folder = folder
        self.scorer: dict[str, Any] = manifest.get("scorer") or {}
        self._manifest = manifest
        self._num_queries = self._num_reordered = 0
        self.dimension = int(manifest["dimension"])
        self._shards = read_shards(folder)
        self._places: dict[str, tuple[int, int, int]] = {}  # shard, first row in it, rows
        self._starts = np.cumsum([0, *(shard.num_rows for shard in self._shards)])
        for number, shard in enumerate(self._shards):
            start = 0
            for query, rows in groupby(shard.ids, key=lambda pair: pair.partition("\t")[0]):
                count = sum(1 for _ in rows)
                if query in self._places:
                    raise MismatchError(
                        f"{folder}: the pairs of query '{query}' are not consecutive; run `drtk rerank` with `save_vectors` again"
                    )
                self._places[query] = (number, start, count)
                start += count
        self._cached_ids: dict[int, list[str]] = {}

    @property
    def run_path(self) -> str:
        """Path of the run from which the pairs were made, for messages; "a run" if unknown."""
        named = {value for value in self._manifest.get("settings", {}).values() if isinstance(value, str)}
        return next(
            (
                get_source_name(entry["path"])
                for entry in self._manifest.get("inputs", [])
                if entry["path"] not in named
            ),
            "a run",
        )

    def warn_if_order_differs(self, run: str) -> None:
        """Log a warning if documents were passed to `find_rows` in another order than in the run at `run_path`.

        A list reranker uses the retrieval rank of each candidate, which a reranked run does not have.
        run: name of the run whose documents were passed since the last call, for the message
        """
        if self._num_reordered:
            warn(
                f"{run}: {self._num_reordered:,} of {self._num_queries:,} queries rank their documents differently from "
                f"{self.run_path}, from which {self.folder} was made; a list reranker requires the retrieval ranks"
            )
        self._num_queries = self._num_reordered = 0

    def find_rows(self, query_id: str, doc_ids: Iterable[str]) -> np.ndarray:
        """Return the row of the vector of the query and each document, (documents,) int64; -1 if there is none."""
        number, first, count = self._places.get(query_id, (-1, 0, 0))
        if number < 0:
            return np.array([-1 for _ in doc_ids], dtype=np.int64)
        if number not in self._cached_ids:
            while len(self._cached_ids) >= _CACHED_SHARDS:
                self._cached_ids.pop(next(iter(self._cached_ids)))
            self._cached_ids[number] = self._shards[number].ids
        pair_ids = self._cached_ids[number][first : first + count]
        start = int(self._starts[number]) + first
        places = {id.partition("\t")[2]: start + row for row, id in enumerate(pair_ids)}
        rows = np.array([places.get(id, -1) for id in doc_ids], dtype=np.int64)
        self._num_queries += 1
        self._num_reordered += bool((np.diff(rows[rows >= 0]) < 0).any())
        return rows

    def load_vectors(self, rows: Sequence[int] | array[int] | np.ndarray) -> np.ndarray:
        """Return the vectors at these rows, (len(rows), dimension), float32. Raises DrtkError for NaN or infinity."""
        return gather_vectors(self._shards, self._starts, np.asarray(rows, dtype=np.int64))


def write_pairs(writer: ShardWriter, ids: Sequence[str], vectors: np.ndarray, *, before: int) -> None:
    """Write the vectors of the pairs in a batch of records as a shard, unless they were written before a crash.

    before: number of pairs in the earlier batches
    Raises MismatchError if the folder contains other pairs at this position.
    """
    if not len(ids):
        return
    digest, rows = digest_records(ids), 0
    if writer.num_rows == before:
        writer.write(ids, vectors, digest=digest)
        return
    for entry in writer.entries:
        if rows == before and entry == {"rows": len(ids), "digest": digest}:
            return
        rows += entry["rows"]
    raise MismatchError(
        f"{writer.folder}: has {writer.num_rows:,} vectors, but the run has {before:,} pairs; "
        "use `force` without `resume` to start over"
    )
