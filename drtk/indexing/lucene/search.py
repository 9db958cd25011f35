"""Search a Lucene index."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from weakref import finalize

from drtk.errors import MismatchError
from drtk.indexing.base import IdTable, Ranking, best_first
from drtk.indexing.config import BM25SearchSettings
from drtk.indexing.lucene.batch import (
    JavaMap,
    bound,
    constructor,
    getter,
    java_list,
    method,
    method_type,
    set_threads,
    static_method,
    then,
)
from drtk.indexing.lucene.build import IDS_FILE, INDEX_FOLDER, open_reader
from drtk.indexing.lucene.jvm import in_background, java, lucene_fault, start_jvm

CONTENTS = "contents"
_SEARCH = "org.apache.lucene.search."
QUERY = _SEARCH + "Query"
SEARCHER = _SEARCH + "IndexSearcher"
TOP_DOCS = _SEARCH + "TopDocs"
SORT = _SEARCH + "Sort"
ANALYZER = "org.apache.lucene.analysis.Analyzer"
STRING = "java.lang.String"
_BAG_OF_WORDS = "io.anserini.search.query.BagOfWordsQueryGenerator"
_CONTEXT = "io.anserini.rerank.RerankerContext"
_SCORED_DOCS = "io.anserini.search.ScoredDocs"
_SEARCH_ARGS = "io.anserini.search.SearchCollection$Args"
_RM3 = "io.anserini.rerank.lib.Rm3Reranker"


@dataclass(frozen=True, slots=True)
class Searcher:
    """A Lucene searcher, the analyzer of its index, and whether its terms are English."""

    lucene: Any
    analyzer: Any
    english: bool


def bag_of_words(searcher: Searcher) -> Any:
    """A handle text -> query: every word a clause, weighted by how often the text has it (methods: section 8.1)."""
    build = bound(method(_BAG_OF_WORDS, "buildQuery", QUERY, STRING, ANALYZER, STRING), 0, java(_BAG_OF_WORDS)())
    return build.bindTo(CONTENTS).bindTo(searcher.analyzer)


def rm3(searcher: Searcher, settings: BM25SearchSettings) -> Any:
    """A handle text -> query of the text's words and `fb_terms` words of its `fb_docs` best passages.

    The feedback words are those of Anserini's RM3. Its own second search is cut to one hit: the caller searches with
    the query, so that ties are broken and scores are kept as everywhere.
    """
    handles = java("java.lang.invoke.MethodHandles")
    words = bag_of_words(searcher)
    tokens = static_method("io.anserini.analysis.AnalyzerUtils", "analyze", "java.util.List", ANALYZER, STRING)
    best = then(then(words, by_score_then_id(searcher, settings.fb_docs)), _as_scored_docs(searcher))

    one_hit = java(_SEARCH_ARGS)()
    one_hit.hits = 1
    context = constructor(
        _CONTEXT, SEARCHER, "java.lang.Object", QUERY, STRING, STRING, "java.util.List", QUERY, _SEARCH_ARGS
    )
    context = bound(context, 7, one_hit)  # from the last to the first, so that positions stay
    context = bound(context, 6, None)  # no filter
    context = bound(context, 3, None)  # no query document
    context = bound(context, 1, None)  # no query id
    context = context.bindTo(searcher.lucene)  # left: query, text, tokens
    context = handles.filterArguments(handles.filterArguments(context, 0, words), 2, tokens.bindTo(searcher.analyzer))
    context = handles.permuteArguments(context, method_type(_CONTEXT, STRING), 0, 0, 0)

    feedback = java(_RM3)(
        searcher.analyzer, None, CONTENTS, settings.fb_terms, settings.fb_docs, settings.fb_weight, False,
        searcher.english,  # keep to [a-z0-9]+, which would leave other alphabets nothing
    )  # fmt: skip
    rerank = method(_RM3, "rerank", _SCORED_DOCS, _SCORED_DOCS, _CONTEXT).bindTo(feedback)
    rerank = handles.filterArguments(rerank.asType(method_type("void", _SCORED_DOCS, _CONTEXT)), 0, best)

    weighted = method(_BAG_OF_WORDS, "buildQuery", QUERY, STRING, "java.util.Map").bindTo(java(_BAG_OF_WORDS)())
    finish = then(getter(_CONTEXT, "feedbackTerms", "java.util.Map"), weighted.bindTo(CONTENTS))
    finish = handles.dropArguments(finish, 0, method_type("void", STRING).parameterList())
    both = handles.foldArguments(finish, rerank)  # (text, context): rerank fills the context, then its terms are read
    both = handles.filterArguments(both, 1, context)
    return handles.permuteArguments(both, method_type(QUERY, STRING), 0, 0)


def by_score(searcher: Searcher, k: int) -> Any:
    """A handle query -> the k best: ties by Lucene's internal number. The fast way: whole blocks are skipped."""
    search = bound(method(SEARCHER, "search", TOP_DOCS, QUERY, "int"), 0, searcher.lucene)
    return bound(search, 1, k)


def by_score_then_id(searcher: Searcher, k: int) -> Any:
    """A handle query -> the k best: ties by descending id, also where the cut goes through a tie."""
    field = java(_SEARCH + "SortField")
    kind = java(_SEARCH + "SortField$Type")
    order = java(SORT)(field.FIELD_SCORE, field("id", kind.STRING_VAL, True))
    search = method(SEARCHER, "search", _SEARCH + "TopFieldDocs", QUERY, "int", SORT, "boolean").bindTo(searcher.lucene)
    search = bound(bound(search, 3, java("java.lang.Boolean")(True)), 2, order)
    return bound(search, 1, k).asType(method_type(TOP_DOCS, QUERY))


def _as_scored_docs(searcher: Searcher) -> Any:
    return bound(static_method(_SCORED_DOCS, "fromTopDocs", _SCORED_DOCS, TOP_DOCS, SEARCHER), 1, searcher.lucene)


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
