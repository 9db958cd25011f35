"""Embedding shards: folders of `00000.npy` (rows x dimension) beside `00000.ids` (an id a line), safe against crashes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson

from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.io.arrays import read_array
from drtk.io.atomic import commit, write_json
from drtk.io.json_files import check_object, read_json
from drtk.io.manifest import FOLDER_MANIFEST, read_manifest

KIND = "embeddings"
JOURNAL = "shards.json.part"
PAIR = "pair"  # the role of a folder that holds vectors of pairs of a query and a document


@dataclass(frozen=True)
class Shard:
    """Some rows of an embeddings folder; ids and vectors are loaded lazily.

    pairs: each id is that of a query and that of a document, separated by a tab
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
        """The ids, row by row. Raises DrtkError if there are more or fewer than vectors, or if one is not one word."""
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
        """(rows, dimension), float32 or float16, memory-mapped. Raises DrtkError where the file is damaged."""
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
    """The shards of a finished embeddings folder, in the order of its corpus.

    Raises MismatchError for a folder that is unfinished or of another kind.
    """
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
    """Writes shards in order; each is whole or absent, and a journal remembers what each was made from.

    Where the folder already holds shards of an interrupted run, `finished` says which need not be made again.
    """

    def __init__(self, folder: Path, *, dimension: int, dtype: str, model: str = "the model") -> None:
        self.model = model  # named in errors
        self.folder, self.dimension, self.dtype = folder, dimension, np.dtype(dtype)
        self._journal = folder / JOURNAL
        self._entries: list[dict[str, Any]] = read_json(self._journal) if self._journal.exists() else []
        if not isinstance(self._entries, list) or not all(map(_is_entry, self._entries)):
            raise DrtkError(f"{self._journal}: is not a list of finished shards; --force without --resume begins again")

    @property
    def entries(self) -> list[dict[str, Any]]:
        """[{"rows", "digest"}, …] of the shards written so far, as `meta.json` lists them."""
        return list(self._entries)

    @property
    def rows(self) -> int:
        return sum(entry["rows"] for entry in self._entries)

    def finished(self, number: int, digest: str) -> bool:
        """Whether shard `number` was written before. Raises MismatchError where it was made from other records."""
        if number >= len(self._entries):
            return False
        if self._entries[number]["digest"] != digest:
            raise MismatchError(f"{self.folder}: shard {number:05d} was made from other records; --force begins again")
        return True

    def write(self, ids: Sequence[str], vectors: np.ndarray, *, digest: str) -> None:
        """Add the next shard: vectors (len(ids), dimension), stored in the writer's dtype.

        Raises DrtkError on a full disk, and where a number is too large for float16 or is not a number.
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
        self._place(f"{name}.ids", lambda file: file.writelines(f"{id}\n".encode() for id in ids))
        self._place(f"{name}.npy", lambda file: np.lib.format.write_array(file, stored, allow_pickle=False))
        self._entries.append({"rows": len(ids), "digest": digest})
        write_json(self._journal, self._entries)

    def _place(self, name: str, fill: Callable[[IO[bytes]], object]) -> None:
        """A file that is there whole, on disk, or not at all."""
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
        """Take the journal away; meta.json is to list the shards from here on."""
        self._journal.unlink(missing_ok=True)


def _is_entry(item: Any) -> bool:
    return isinstance(item, dict) and type(item.get("rows")) is int and isinstance(item.get("digest"), str)


def records_digest(records: Iterable[Any]) -> str:
    """A digest of records (blake2b, 16 bytes, hexadecimal), so that a resumed run can tell whether its input changed."""
    digest = hashlib.blake2b(digest_size=16)
    for record in records:
        digest.update(orjson.dumps(record))
    return digest.hexdigest()
