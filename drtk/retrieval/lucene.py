"""BM25 by Lucene: Anserini's analysis and indexing, Lucene's search, driven from Python without a system Java."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal
from weakref import finalize

from drtk.errors import MismatchError
from drtk.io.progress import Progress
from drtk.records import Passage
from drtk.retrieval.base import Ranking, best_first
from drtk.retrieval.id_table import IdTable
from drtk.retrieval.lucene_analysis import Analysis
from drtk.retrieval.lucene_batch import JavaMap, java_list, set_threads, then
from drtk.retrieval.lucene_build import IDS_FILE, INDEX_FOLDER, build_index, open_reader
from drtk.retrieval.lucene_jvm import (
    anserini_version,
    find_jar,
    find_java,
    in_background,
    java,
    lucene_fault,
    start_jvm,
)
from drtk.retrieval.lucene_queries import Searcher, bag_of_words, by_score, by_score_then_id, rm3
from drtk.settings.retrieval import BM25IndexSettings, BM25SearchSettings

_FIRST_BATCH, _LARGEST_BATCH = 64, 4096
_SECONDS_A_BATCH = 1.0
_NO_LIMIT = 2**31 - 1


class LuceneIndex:
    """A Lucene index: the files of Lucene, `analysis.json`, and `ids.txt` in Lucene's numbering.

    Scores are Lucene's own, unrounded; its passage lengths are coarse above 40 words (one byte each). A word twice in
    a query counts twice. Queries may have any number of words.
    """

    reads: ClassVar[Literal["passages"]] = "passages"

    def __init__(self, folder: Path, settings: BM25SearchSettings, analysis: Analysis, ids: IdTable) -> None:
        self.folder = folder
        self.settings = settings
        self._ids = ids
        self._reader = open_reader(folder)
        finalize(self, self._reader.close).atexit = False  # a grid of k1 and b opens many
        if self._reader.maxDoc() != len(ids):
            raise MismatchError(f"{folder}: {INDEX_FOLDER}/ and {IDS_FILE} do not belong together")
        set_threads(settings.threads)
        lucene = java("org.apache.lucene.search.IndexSearcher")(self._reader.getContext())
        lucene.setSimilarity(java("org.apache.lucene.search.similarities.BM25Similarity")(settings.k1, settings.b))
        java("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(_NO_LIMIT)  # methods: section 7.9
        self._searcher = Searcher(lucene, analysis.analyzer(folder), analysis.language == "en")
        self._to_query = rm3(self._searcher, settings) if settings.rm3 else bag_of_words(self._searcher)
        self._maps: dict[tuple[str, int], JavaMap] = {}

    @classmethod
    def build(
        cls, passages: Iterable[Passage], folder: Path, settings: BM25IndexSettings, *, progress: Progress | None = None
    ) -> int:
        """Write the index into `folder`, which exists; the number of passages indexed. Faults: see `build_index`."""
        return build_index(passages, folder, settings, progress=progress)

    @classmethod
    def open(cls, folder: Path, settings: BM25SearchSettings) -> LuceneIndex:
        """The index in `folder`.

        Raises MismatchError where the folder holds none, and where RM3 is asked of an index without term vectors.
        """
        analysis = Analysis.load(folder)
        if settings.rm3 and not analysis.term_vectors:
            raise MismatchError(f"{folder}: --rm3 needs an index made with --term-vectors")
        ids = IdTable(folder / IDS_FILE)
        start_jvm()  # before jnius is imported, which would start one without the jar
        import jnius

        try:
            return cls(folder, settings, analysis, ids)
        except jnius.JavaException as error:
            raise lucene_fault(error, str(folder)) from error

    @staticmethod
    def software() -> dict[str, str]:
        """Versions of Anserini, which decide who can read the index, and of Java."""
        return {"anserini": anserini_version(find_jar()), "java": str(find_java().version)}

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
        found = self._hits("score", texts, k + 1)  # one more tells whether the cut goes through a tie
        torn = [place for place, hits in enumerate(found) if len(hits) > k and hits[k - 1]["score"] == hits[k]["score"]]
        if torn:
            for place, hits in zip(torn, self._hits("id", [texts[place] for place in torn], k), strict=True):
                found[place] = hits
        return [
            best_first(self._ids.take(hit["doc"] for hit in hits), [hit["score"] for hit in hits], k) for hits in found
        ]

    def _hits(self, ties: str, texts: Sequence[str], k: int) -> list[list[dict[str, Any]]]:
        """Lucene's hits, in batches that grow until one takes about a second."""
        search = self._map(ties, k)
        hits: list[list[dict[str, Any]]] = []
        size = _FIRST_BATCH
        while len(hits) < len(texts):
            batch = java_list(_sound(text) for text in texts[len(hits) : len(hits) + size])
            start = time.monotonic()
            hits.extend(found["scoreDocs"] for found in in_background(partial(search, batch)))
            if time.monotonic() - start < _SECONDS_A_BATCH / 2:
                size = min(2 * size, _LARGEST_BATCH)
        return hits

    def _map(self, ties: str, k: int) -> JavaMap:
        if (ties, k) not in self._maps:
            search = (by_score if ties == "score" else by_score_then_id)(self._searcher, k)
            self._maps[ties, k] = JavaMap(then(self._to_query, search), parallel=self.settings.threads != 1)
        return self._maps[ties, k]


def _sound(text: str) -> str:
    """The text, without the halves of surrogate pairs that a command line's bytes may have become."""
    return text.encode("utf-8", "replace").decode("utf-8")
