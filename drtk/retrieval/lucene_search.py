"""Searching the Lucene index in a folder: batches of texts on Java's threads, ties decided by id."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from weakref import finalize

from drtk.errors import MismatchError
from drtk.retrieval.base import Ranking, best_first
from drtk.retrieval.id_table import IdTable
from drtk.retrieval.lucene_batch import JavaMap, java_list, set_threads, then
from drtk.retrieval.lucene_build import IDS_FILE, INDEX_FOLDER, open_reader
from drtk.retrieval.lucene_jvm import in_background, java, lucene_fault, start_jvm
from drtk.retrieval.lucene_queries import Searcher, by_score, by_score_then_id

_FIRST_BATCH, _LARGEST_BATCH = 64, 4096
_SECONDS_A_BATCH = 1.0
_NO_LIMIT = 2**31 - 1


class Manner(Protocol):
    """How one type of index is searched; asked once Java runs."""

    def similarity(self) -> Any:
        """Lucene's Similarity, which scores."""

    def analyzer(self) -> tuple[Any, bool]:
        """What cuts queries into words, and whether these are English."""

    def to_query(self, searcher: Searcher) -> Any:
        """A handle from a text to a Lucene query."""


class LuceneSearch:
    """An opened index: Lucene's files in `folder`, and `ids.txt` in Lucene's numbering.

    Scores are Lucene's own, unrounded. Queries may have any number of words. Raises MismatchError where files are
    missing or do not belong together, DrtkError for faults of Java's.
    """

    def __init__(self, folder: Path, manner: Manner, *, threads: int = 0) -> None:
        self.folder, self._threads = folder, threads
        self._ids = IdTable(folder / IDS_FILE)
        start_jvm()  # before jnius is imported, which would start one without the jar
        import jnius

        try:
            self._open(manner)
        except jnius.JavaException as error:
            raise lucene_fault(error, str(folder)) from error

    def _open(self, manner: Manner) -> None:
        reader = open_reader(self.folder)
        finalize(self, _close, reader).atexit = False  # a grid of k1 and b opens many
        if reader.maxDoc() != len(self):
            raise MismatchError(f"{self.folder}: {INDEX_FOLDER}/ and {IDS_FILE} do not belong together")
        set_threads(self._threads)
        lucene = java("org.apache.lucene.search.IndexSearcher")(reader.getContext())
        lucene.setSimilarity(manner.similarity())
        java("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(_NO_LIMIT)  # methods: section 7.9
        self._searcher = Searcher(lucene, *manner.analyzer())
        self._to_query = manner.to_query(self._searcher)
        self._maps: dict[tuple[Callable[..., Any], int], JavaMap] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def search(self, texts: Sequence[str], k: int) -> list[Ranking]:
        """Up to `k` passages for each text, by score, then by descending id, exactly so at the cut as well."""
        import jnius

        try:
            return self._search(texts, min(k, len(self)))
        except jnius.JavaException as error:
            raise lucene_fault(error, str(self.folder)) from error

    def _search(self, texts: Sequence[str], k: int) -> list[Ranking]:
        if k < 1:
            return [[] for _ in texts]
        found = self._hits(by_score, texts, k + 1)  # one more tells whether the cut goes through a tie
        torn = [place for place, hits in enumerate(found) if len(hits) > k and hits[k - 1]["score"] == hits[k]["score"]]
        if torn:
            for place, hits in zip(
                torn, self._hits(by_score_then_id, [texts[place] for place in torn], k), strict=True
            ):
                found[place] = hits
        return [
            best_first(self._ids.take(hit["doc"] for hit in hits), [hit["score"] for hit in hits], k) for hits in found
        ]

    def _hits(self, order: Callable[..., Any], texts: Sequence[str], k: int) -> list[list[dict[str, Any]]]:
        """Lucene's hits, in batches that grow until one takes about a second."""
        search = self._map(order, k)
        hits: list[list[dict[str, Any]]] = []
        size = _FIRST_BATCH
        while len(hits) < len(texts):
            batch = java_list(_sound(text) for text in texts[len(hits) : len(hits) + size])
            start = time.monotonic()
            hits.extend(found["scoreDocs"] for found in in_background(partial(search, batch)))
            if time.monotonic() - start < _SECONDS_A_BATCH / 2:
                size = min(2 * size, _LARGEST_BATCH)
        return hits

    def _map(self, order: Callable[..., Any], k: int) -> JavaMap:
        if (order, k) not in self._maps:
            search = order(self._searcher, k)
            self._maps[order, k] = JavaMap(then(self._to_query, search), parallel=self._threads != 1)
        return self._maps[order, k]


def _sound(text: str) -> str:
    """The text, without the halves of surrogate pairs that a command line's bytes may have become."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _close(reader: Any) -> None:
    """Close a reader. Its method is looked up now: one kept from before is another reader's by then, as pyjnius binds."""
    reader.close()
