"""Vectors of (query, document) pairs: embedding shards whose ids are `QID<TAB>DOCID`, written and looked up query by query."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from drtk.errors import MismatchError
from drtk.io.manifest import read_manifest
from drtk.io.progress import warn
from drtk.io.shards import KIND, PAIR, Shard, ShardWriter, check_finite, read_shards, records_digest
from drtk.io.streams import name_of

_KEPT = 4  # shards whose ids are kept: those of a run come in order


def pair_id(query_id: str, doc_id: str) -> str:
    """The id under which the vector of a pair is stored; ids hold no white space of their own."""
    return f"{query_id}\t{doc_id}"


def _query_of(pair: str) -> str:
    return pair.partition("\t")[0]


class PairVectors:
    """The vectors of a finished folder, by query and document; in memory is a place for each query, not each pair.

    scorer: what meta.json says of the cross-encoder that made them
    Raises MismatchError for a folder of another kind, or one whose queries do not stand together.
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
        self._asked = self._reordered = 0
        self.dimension = int(manifest["dimension"])
        self._shards = read_shards(folder)
        self._places: dict[str, tuple[int, int, int]] = {}  # shard, first row in it, rows
        self._starts = np.cumsum([0, *(shard.rows for shard in self._shards)])
        for number, shard in enumerate(self._shards):
            at = 0
            for query, rows in groupby(self._ids(shard), key=_query_of):
                count = sum(1 for _ in rows)
                if query in self._places:
                    raise MismatchError(f"{folder}: holds query '{query}' at two places")
                self._places[query] = (number, at, count)
                at += count
        self._kept: dict[int, list[str]] = {}

    @staticmethod
    def _ids(shard: Shard) -> list[str]:
        return replace(shard).ids  # of its own: a shard keeps its list

    @property
    def run(self) -> str:
        """The name of the run whose pairs these are."""
        named = {value for value in self._manifest.get("settings", {}).values() if isinstance(value, str)}
        return next(
            (name_of(each["path"]) for each in self._manifest.get("inputs", []) if each["path"] not in named), "a run"
        )

    def warn_of_another_order(self, run: str) -> None:
        """Warn where queries that were looked up have their documents in another order than when the vectors were made.

        A list re-ranker reads the rank of a candidate beside its vector: those of retrieval, which a re-ranked run has no more.
        """
        if self._reordered:
            warn(
                f"{run}: {self._reordered:,} of {self._asked:,} queries have their documents in another order than in "
                f"{self.run}, whose pairs {self.folder} holds: a list re-ranker reads ranks of retrieval"
            )
        self._asked = self._reordered = 0

    def rows(self, query_id: str, doc_ids: Iterable[str]) -> np.ndarray:
        """The row of each pair, (documents,), int64; -1 where there is no vector."""
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
        self._asked += 1
        self._reordered += bool((np.diff(rows[rows >= 0]) < 0).any())
        return rows

    def vectors(self, rows: Sequence[int] | array[int] | np.ndarray) -> np.ndarray:
        """The vectors of rows that `rows` gave, (len(rows), dimension), float32."""
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
    """Writes the vectors of a run's windows, a shard each, beside an output that may be resumed."""

    def __init__(self, writer: ShardWriter) -> None:
        self._writer = writer

    def write(self, ids: Sequence[str], vectors: np.ndarray, *, before: int) -> None:
        """Add the pairs of a window; nothing where they were written before a crash.

        before: pairs of the windows whose output is finished
        Raises MismatchError where the folder does not hold exactly those.
        """
        if not len(ids):
            return
        digest, rows = records_digest(ids), 0
        if self._writer.rows == before:
            self._writer.write(ids, vectors, digest=digest)
            return
        for entry in self._writer.entries:
            if rows == before and entry == {"rows": len(ids), "digest": digest}:
                return
            rows += entry["rows"]
        raise MismatchError(
            f"{self._writer.folder}: holds {self._writer.rows:,} vectors, but the output has {before:,} pairs; "
            "--force without --resume begins again"
        )
