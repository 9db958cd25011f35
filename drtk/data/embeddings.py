"""Read and write embedding shards, and vectors of (query, document) pairs."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson

from drtk.data.arrays import read_array
from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.runtime.atomic import commit, write_json
from drtk.runtime.integrity import check_object, read_json
from drtk.runtime.manifest import FOLDER_MANIFEST, read_manifest
from drtk.runtime.progress import warn
from drtk.runtime.streams import name_of

KIND = "embeddings"
JOURNAL = "shards.json.part"
PAIR = "pair"  # the role of a folder that holds vectors of pairs of a query and a document


@dataclass(frozen=True)
class Shard:
    """A file of vectors in an embeddings folder; ids and vectors are loaded on first use.

    pairs: each id is a query id and a document id, separated by a tab
    """

    folder: Path
    number: int
    rows: int
    dimension: int
    pairs: bool = False

    @property
    def name(self) -> str:
        return f"{self.number:05d}"

    @cached_property
    def ids(self) -> list[str]:
        """The ids of the rows. Raises DrtkError if their number is not that of the vectors, or if an id is not one word."""
        path = self.folder / f"{self.name}.ids"
        try:
            found = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DrtkError(f"{path}: cannot be read: {error}") from error
        if len(found) != self.rows:
            raise MismatchError(f"{path}: holds {len(found):,} ids; expected {self.rows:,}")
        for row, id in enumerate(found, start=1):
            if id.split() != (id.split("\t", 1) if self.pairs else [id]):
                problem = f"id {id!r} contains white space" if id.strip() else "the id is blank"
                raise RecordError(f"{path}:{row}", f"{problem}; an id must be one word")
        return found

    @cached_property
    def vectors(self) -> np.ndarray:
        """Memory-mapped vectors, (rows, dimension), float32 or float16. Raises DrtkError for a damaged file."""
        path = self.folder / f"{self.name}.npy"
        found = read_array(path, dimensions=2, mmap="r")
        if found.shape != (self.rows, self.dimension):
            raise MismatchError(f"{path}: has the shape {found.shape}; expected {(self.rows, self.dimension)}")
        return found


def check_finite(shard: Shard, vectors: np.ndarray, rows: np.ndarray | Sequence[int]) -> None:
    """Raise DrtkError for the first of `vectors`, (rows, dimension), that has NaN or infinite numbers.

    rows: the row of each vector in the shard
    """
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        row = int(rows[int(np.argmin(finite))])
        raise DrtkError(
            f"{shard.folder}/{shard.name}.npy: row {row}: the vector of '{shard.ids[row]}' has NaN or infinite numbers; "
            "encode it again"
        )


def read_shards(folder: str | Path) -> list[Shard]:
    """Return the shards of a finished embeddings folder. Raises MismatchError for any other folder."""
    manifest = read_manifest(folder, kind=KIND, dimension=int, shards=list)
    place = f"{folder}/{FOLDER_MANIFEST}"
    return [
        Shard(
            Path(folder),
            number,
            check_object(entry, place, rows=int)["rows"],
            manifest["dimension"],
            manifest.get("role") == PAIR,
        )
        for number, entry in enumerate(manifest["shards"])
    ]


class ShardWriter:
    """Write shards in order. Each is complete or absent; a journal records the digest of the records of each.

    model: named in errors
    """

    def __init__(self, folder: Path, *, dimension: int, dtype: str, model: str = "the model") -> None:
        self.model = model
        self.folder, self.dimension, self.dtype = folder, dimension, np.dtype(dtype)
        self._journal = folder / JOURNAL
        self._entries: list[dict[str, Any]] = read_json(self._journal) if self._journal.exists() else []
        if not isinstance(self._entries, list) or not all(map(_is_entry, self._entries)):
            raise DrtkError(f"{self._journal}: is not a list of finished shards; `force` without `resume` begins again")

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The {"rows", "digest"} of each finished shard, as in meta.json."""
        return list(self._entries)

    @property
    def rows(self) -> int:
        return sum(entry["rows"] for entry in self._entries)

    def is_finished(self, number: int, digest: str) -> bool:
        """Return whether an interrupted run has written shard `number`. Raises MismatchError if its records differ."""
        if number >= len(self._entries):
            return False
        if self._entries[number]["digest"] != digest:
            raise MismatchError(f"{self.folder}: shard {number:05d} was made from other records; `force` begins again")
        return True

    def write(self, ids: Sequence[str], vectors: np.ndarray, *, digest: str) -> None:
        """Write the next shard: vectors (len(ids), dimension), stored in the writer's dtype.

        Raises DrtkError for a full disk, NaN, and numbers too large for the dtype.
        """
        if vectors.shape != (len(ids), self.dimension):
            raise ValueError(f"vectors of shape {vectors.shape} for {len(ids)} ids of dimension {self.dimension}")
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(vectors, dtype=self.dtype)
        if not np.isfinite(stored).all():
            row = int(np.flatnonzero(~np.isfinite(stored).all(axis=1))[0])
            raise DrtkError(
                f"{self.model}: computes a vector of '{ids[row]}' with numbers that are NaN, infinite or too large for {self.dtype}"
            )
        name = f"{len(self._entries):05d}"
        self._write_file(f"{name}.ids", lambda file: file.writelines(f"{id}\n".encode() for id in ids))
        self._write_file(f"{name}.npy", lambda file: np.lib.format.write_array(file, stored, allow_pickle=False))
        self._entries.append({"rows": len(ids), "digest": digest})
        write_json(self._journal, self._entries)

    def _write_file(self, name: str, fill: Callable[[IO[bytes]], object]) -> None:
        """Write a file that is complete or absent after a crash."""
        final = self.folder / name
        part = self.folder / f"{name}.part"
        try:
            with open(part, "wb") as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            commit(part, final)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise DrtkError(f"{final}: {error.strerror}") from error

    def close(self) -> None:
        """Remove the journal of a folder that is finished without a FolderJob, which removes it itself."""
        self._journal.unlink(missing_ok=True)


def _is_entry(item: Any) -> bool:
    return isinstance(item, dict) and type(item.get("rows")) is int and isinstance(item.get("digest"), str)


def digest_records(records: Iterable[Any]) -> str:
    """Return a digest of records (blake2b, 16 bytes, hexadecimal), to detect a changed input."""
    digest = hashlib.blake2b(digest_size=16)
    for record in records:
        digest.update(orjson.dumps(record))
    return digest.hexdigest()


_KEPT = 4  # shards whose ids are kept in memory; the queries of a run are in order


def make_pair_id(query_id: str, doc_id: str) -> str:
    """Return the id of the vector of a pair; ids contain no white space."""
    return f"{query_id}\t{doc_id}"


def _get_query_id(pair: str) -> str:
    return pair.partition("\t")[0]


class PairVectors:
    """The vectors of a finished folder, by query and document. Memory grows with the number of queries, not of pairs.

    scorer: the entry of meta.json about the cross-encoder that made them
    Raises MismatchError for a folder of another kind, or one in which a query has several places.
    """

    def __init__(self, folder: str) -> None:
        manifest = read_manifest(folder, kind=KIND, dimension=int)
        if manifest.get("role") != PAIR:
            raise MismatchError(
                f"{folder}: holds vectors of texts; those of pairs are needed: drtk rerank RUN --vectors DIR"
            )
        self.folder = folder
        self.scorer: dict[str, Any] = manifest.get("scorer") or {}
        self._manifest = manifest
        self._queries = self._reordered = 0
        self.dimension = int(manifest["dimension"])
        self._shards = read_shards(folder)
        self._places: dict[str, tuple[int, int, int]] = {}  # shard, first row in it, rows
        self._starts = np.cumsum([0, *(shard.rows for shard in self._shards)])
        for number, shard in enumerate(self._shards):
            at = 0
            for query, rows in groupby(self._ids(shard), key=_get_query_id):
                count = sum(1 for _ in rows)
                if query in self._places:
                    raise MismatchError(f"{folder}: holds query '{query}' at two places")
                self._places[query] = (number, at, count)
                at += count
        self._kept: dict[int, list[str]] = {}

    @staticmethod
    def _ids(shard: Shard) -> list[str]:
        return replace(shard).ids  # a copy, as a shard keeps its list

    @property
    def run(self) -> str:
        """The name of the run of these pairs."""
        named = {value for value in self._manifest.get("settings", {}).values() if isinstance(value, str)}
        return next(
            (name_of(each["path"]) for each in self._manifest.get("inputs", []) if each["path"] not in named), "a run"
        )

    def warn_of_another_order(self, run: str) -> None:
        """Warn if queries had their documents in another order than in the run of the vectors.

        A list re-ranker reads the retrieval rank of each candidate, which a re-ranked run does not have.
        """
        if self._reordered:
            warn(
                f"{run}: {self._reordered:,} of {self._queries:,} queries have their documents in another order than in "
                f"{self.run}, whose pairs {self.folder} holds: a list re-ranker reads ranks of retrieval"
            )
        self._queries = self._reordered = 0

    def find_rows(self, query_id: str, doc_ids: Iterable[str]) -> np.ndarray:
        """Return the row of each pair, (documents,) int64; -1 without a vector."""
        number, first, count = self._places.get(query_id, (-1, 0, 0))
        if number < 0:
            return np.array([-1 for _ in doc_ids], dtype=np.int64)
        if number not in self._kept:
            while len(self._kept) >= _KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[number] = self._ids(self._shards[number])
        own = self._kept[number][first : first + count]
        start = int(self._starts[number]) + first
        places = {id.partition("\t")[2]: start + row for row, id in enumerate(own)}
        rows = np.array([places.get(id, -1) for id in doc_ids], dtype=np.int64)
        self._queries += 1
        self._reordered += bool((np.diff(rows[rows >= 0]) < 0).any())
        return rows

    def load_vectors(self, rows: Sequence[int] | array[int] | np.ndarray) -> np.ndarray:
        """Return the vectors of rows, (len(rows), dimension), float32."""
        wanted = np.asarray(rows, dtype=np.int64)
        out = np.empty((len(wanted), self.dimension), dtype=np.float32)
        numbers = np.searchsorted(self._starts, wanted, side="right") - 1
        for number in np.unique(numbers):
            chosen = numbers == number
            shard, rows_in = self._shards[number], wanted[chosen] - self._starts[number]
            out[chosen] = shard.vectors[rows_in]
            check_finite(shard, out[chosen], rows_in)
        return out


class PairWriter:
    """Write the vectors of a run, one shard per window, beside an output that can be resumed."""

    def __init__(self, writer: ShardWriter) -> None:
        self._writer = writer

    def write(self, ids: Sequence[str], vectors: np.ndarray, *, before: int) -> None:
        """Write the pairs of a window, unless they were written before a crash.

        before: number of pairs of the finished windows
        Raises MismatchError if the folder does not hold exactly these.
        """
        if not len(ids):
            return
        digest, rows = digest_records(ids), 0
        if self._writer.rows == before:
            self._writer.write(ids, vectors, digest=digest)
            return
        for entry in self._writer.entries:
            if rows == before and entry == {"rows": len(ids), "digest": digest}:
                return
            rows += entry["rows"]
        raise MismatchError(
            f"{self._writer.folder}: holds {self._writer.rows:,} vectors, but the output has {before:,} pairs; "
            "`force` without `resume` begins again"
        )
