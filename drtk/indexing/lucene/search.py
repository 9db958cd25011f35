"""Search a Lucene index.

A call from Python into Java costs microseconds per object, and pyjnius' objects must not be shared between Python
threads. So analysis, search and feedback of a query are composed into one method handle, which becomes a
java.util.function.Function and runs in a parallel stream; the results of all items arrive as one JSON text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from weakref import finalize

import orjson

from drtk.errors import MismatchError
from drtk.indexing.base import IdTable, Ranking, sort_hits
from drtk.indexing.config import BM25SearchSettings
from drtk.indexing.lucene.jvm import in_background, java, lucene_error, start_jvm

INDEX_FOLDER, IDS_FILE = "lucene", "ids.txt"
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

_FIRST_BATCH, _MAX_BATCH = 64, 4096
_SECONDS_PER_BATCH = 1.0

_PRIMITIVE = {"void": "V", "int": "I", "float": "F", "boolean": "Z"}
_FUNCTION = "java.util.function.Function"
_STREAM = "java.util.stream.Stream"
_COMMON_POOL = "java.util.concurrent.ForkJoinPool.common.parallelism"


def java_class(name: str) -> Any:
    """Return the java.lang.Class object of a class, by full name."""
    return java("java.lang.Class").forName(name)


def method_type(returns: str, *takes: str) -> Any:
    """Return a java.lang.invoke.MethodType from names of classes."""
    codes = [_PRIMITIVE.get(name) or f"L{name.replace('.', '/')};" for name in (*takes, returns)]
    return java("java.lang.invoke.MethodType").fromMethodDescriptorString(f"({''.join(codes[:-1])}){codes[-1]}", None)


def find_method(owner: str, name: str, returns: str, *takes: str) -> Any:
    """Return a handle of a public method; its first argument is the object."""
    return _lookup().findVirtual(java_class(owner), name, method_type(returns, *takes))


def find_static_method(owner: str, name: str, returns: str, *takes: str) -> Any:
    """Return a handle of a public static method."""
    return _lookup().findStatic(java_class(owner), name, method_type(returns, *takes))


def _lookup() -> Any:
    return java("java.lang.invoke.MethodHandles").publicLookup()


def bind(handle: Any, position: int, value: Any) -> Any:
    """Fix one argument of a handle to a Java object, an int or None."""
    if isinstance(value, int):
        value = java("java.lang.Integer")(value)
    return java("java.lang.invoke.MethodHandles").insertArguments(handle, position, value)


def chain(first: Any, second: Any) -> Any:
    """Return a handle of x -> second(first(x))."""
    return java("java.lang.invoke.MethodHandles").filterReturnValue(first, second)


def java_list(items: Iterable[Any]) -> Any:
    """Return a java.util.ArrayList of the items."""
    result = java("java.util.ArrayList")()
    for item in items:
        result.add(item)
    return result


class JavaMap:
    """Apply a handle of one argument to every item of a Java collection.

    parallel: on all threads of Java's common pool; results keep the items' order either way
    """

    def __init__(self, handle: Any, *, parallel: bool = True) -> None:
        handles = java("java.lang.invoke.MethodHandles")
        holder = java("java.util.concurrent.atomic.AtomicReference")()
        _store_function(handle.asType(method_type("java.lang.Object", "java.lang.Object")), holder)
        supply = bind(find_method(holder.getClass().getName(), "get", "java.lang.Object"), 0, holder)
        stream = find_method("java.util.Collection", "parallelStream" if parallel else "stream", _STREAM)
        mapped = handles.collectArguments(
            find_method(_STREAM, "map", _STREAM, _FUNCTION), 1, supply.asType(method_type(_FUNCTION))
        )
        write = find_method(
            "com.fasterxml.jackson.databind.ObjectMapper", "writeValueAsString", "java.lang.String", "java.lang.Object"
        )
        to_list = find_method(_STREAM, "toList", "java.util.List").asType(method_type("java.lang.Object", _STREAM))
        self._run = chain(chain(chain(stream, mapped), to_list), bind(write, 0, _make_json_writer()))

    def __call__(self, items: Any) -> Any:
        """Return the handle's results for the items, as parsed JSON. Raises jnius.JavaException for a Java exception."""
        return orjson.loads(self._run.invokeWithArguments(java_list([items])))


def _store_function(handle: Any, holder: Any) -> None:
    """Store `handle`, as a java.util.function.Function, in the AtomicReference `holder`.

    From Java 24 on its class is hidden and pyjnius cannot name it: it must be made and stored without leaving Java.
    Before Java 22, the class has a name, and the method that makes it rejects a public lookup.
    """
    import jnius

    proxies = "java.lang.invoke.MethodHandleProxies"
    try:
        make = find_static_method(
            proxies, "asInterfaceInstance", "java.lang.Object", "java.lang.Class", "java.lang.invoke.MethodHandle"
        )
    except jnius.JavaException:
        holder.set(java(proxies).asInterfaceInstance(java_class(_FUNCTION), handle))
    else:
        make = bind(bind(make, 0, java_class(_FUNCTION)), 0, handle)
        store = bind(find_method(holder.getClass().getName(), "set", "void", "java.lang.Object"), 0, holder)
        chain(make, store).invokeWithArguments(java_list([]))


def _make_json_writer() -> Any:
    """Return a JSON writer that ignores the unused parts of search results."""
    writer = java("com.fasterxml.jackson.databind.ObjectMapper")()
    yes = java("java.lang.Boolean")(True)
    for name in ("org.apache.lucene.search.TotalHits", "[Lorg.apache.lucene.search.SortField;", "[Ljava.lang.Object;"):
        writer.configOverride(java_class(name)).setIsIgnoredType(yes)
    return writer


def open_reader(folder: Path) -> Any:
    """Return Lucene's reader of the index in `folder`."""
    path = java("java.io.File")(str((folder / INDEX_FOLDER).absolute())).toPath()
    return java("org.apache.lucene.index.DirectoryReader").open(java("org.apache.lucene.store.FSDirectory").open(path))


class LuceneSearcher:
    """Search Lucene's files in `folder`, with passage ids from `ids.txt` in Lucene's numbering.

    make_similarity, make_analyzer: return Lucene's Similarity and Analyzer, called once Java runs
    rm3: settings of query expansion by RM3, if it is used; is_english: whether the analyzer's terms are English
    Scores are Lucene's own, unrounded. Raises MismatchError for missing files and files of different indexes, DrtkError
    for Java exceptions.
    """

    def __init__(
        self,
        folder: Path,
        make_similarity: Callable[[], Any],
        make_analyzer: Callable[[], Any],
        *,
        rm3: BM25SearchSettings | None = None,
        is_english: bool = False,
        threads: int = 0,
    ) -> None:
        self.folder, self._threads = folder, threads
        self._ids = IdTable(folder / IDS_FILE)
        start_jvm()  # before jnius is imported, which would start a JVM without the jar
        import jnius

        try:
            reader = open_reader(folder)
            finalize(self, _close, reader).atexit = False  # tuning opens many
            if reader.maxDoc() != len(self):
                raise MismatchError(f"{folder}: {INDEX_FOLDER}/ and {IDS_FILE} do not belong together")
            if threads:  # of Java's common pool, where the calling thread works too; only the first setting counts
                java("java.lang.System").setProperty(_COMMON_POOL, str(max(threads - 1, 1)))
            self._lucene = java(SEARCHER)(reader.getContext())
            self._lucene.setSimilarity(make_similarity())
            java(SEARCHER).setMaxClauseCount(2**31 - 1)  # queries may have any number of words (docs/methods/ear.md)
            self._analyzer, self._is_english = make_analyzer(), is_english
            self._to_query = self._bag_of_words() if rm3 is None else self._expand_by_rm3(rm3)
        except jnius.JavaException as error:
            raise lucene_error(error, str(folder)) from error
        self._maps: dict[tuple[str, int], JavaMap] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def search(self, texts: Sequence[str], k: int) -> list[Ranking]:
        """Return up to `k` passages for each text, by score, then by descending id, also at the cut."""
        import jnius

        k = min(k, len(self))
        if k < 1:
            return [[] for _ in texts]
        try:
            results = self._hits(self._by_score, texts, k + 1)  # one more shows whether the cut splits a tie
            tied = [at for at, hits in enumerate(results) if len(hits) > k and hits[k - 1]["score"] == hits[k]["score"]]
            if tied:
                for at, hits in zip(
                    tied, self._hits(self._by_score_then_id, [texts[at] for at in tied], k), strict=True
                ):
                    results[at] = hits
        except jnius.JavaException as error:
            raise lucene_error(error, str(self.folder)) from error
        return [
            sort_hits(self._ids.take(hit["doc"] for hit in hits), [hit["score"] for hit in hits], k) for hits in results
        ]

    def _hits(self, order: Callable[[int], Any], texts: Sequence[str], k: int) -> list[list[dict[str, Any]]]:
        """Return Lucene's hits for each text, searched in batches that grow until one takes about a second."""
        key = order.__name__, k
        if key not in self._maps:
            self._maps[key] = JavaMap(chain(self._to_query, order(k)), parallel=self._threads != 1)
        search = self._maps[key]
        hits: list[list[dict[str, Any]]] = []
        size = _FIRST_BATCH
        while len(hits) < len(texts):
            batch = java_list(replace_surrogates(text) for text in texts[len(hits) : len(hits) + size])
            start = time.monotonic()
            hits.extend(result["scoreDocs"] for result in in_background(partial(search, batch)))
            if time.monotonic() - start < _SECONDS_PER_BATCH / 2:
                size = min(2 * size, _MAX_BATCH)
        return hits

    def _by_score(self, k: int) -> Any:
        """Return a handle query -> the k best, ties by Lucene's number: fast, because it skips whole blocks."""
        search = bind(find_method(SEARCHER, "search", TOP_DOCS, QUERY, "int"), 0, self._lucene)
        return bind(search, 1, k)

    def _by_score_then_id(self, k: int) -> Any:
        """Return a handle query -> the k best, ties by descending id, also at the cut."""
        field = java(_SEARCH + "SortField")
        order = java(SORT)(field.FIELD_SCORE, field("id", java(_SEARCH + "SortField$Type").STRING_VAL, True))
        search = find_method(SEARCHER, "search", _SEARCH + "TopFieldDocs", QUERY, "int", SORT, "boolean")
        search = bind(bind(search.bindTo(self._lucene), 3, java("java.lang.Boolean")(True)), 2, order)
        return bind(search, 1, k).asType(method_type(TOP_DOCS, QUERY))

    def _bag_of_words(self) -> Any:
        """Return a handle text -> query with a clause for each word, weighted by its count (docs/commands/index.md)."""
        build = find_method(_BAG_OF_WORDS, "buildQuery", QUERY, STRING, ANALYZER, STRING).bindTo(java(_BAG_OF_WORDS)())
        return build.bindTo(CONTENTS).bindTo(self._analyzer)

    def _expand_by_rm3(self, settings: BM25SearchSettings) -> Any:
        """Return a handle text -> query of the text's words and `fb_terms` words of its `fb_docs` best passages.

        The feedback words are those of Anserini's RM3. Its own second search is cut to one hit: the query is searched like
        any other, so that the rules for ties and scores hold.
        """
        handles = java("java.lang.invoke.MethodHandles")
        words = self._bag_of_words()
        tokens = find_static_method("io.anserini.analysis.AnalyzerUtils", "analyze", "java.util.List", ANALYZER, STRING)
        to_docs = bind(
            find_static_method(_SCORED_DOCS, "fromTopDocs", _SCORED_DOCS, TOP_DOCS, SEARCHER), 1, self._lucene
        )
        best = chain(chain(words, self._by_score_then_id(settings.fb_docs)), to_docs)

        one_hit = java(_SEARCH_ARGS)()
        one_hit.hits = 1
        takes = (SEARCHER, "java.lang.Object", QUERY, STRING, STRING, "java.util.List", QUERY, _SEARCH_ARGS)
        context = _lookup().findConstructor(java_class(_CONTEXT), method_type("void", *takes))
        context = bind(context, 7, one_hit)  # from the last to the first, so that positions stay
        context = bind(context, 6, None)  # no filter
        context = bind(context, 3, None)  # no query document
        context = bind(context, 1, None)  # no query id
        context = context.bindTo(self._lucene)  # left: query, text, tokens
        context = handles.filterArguments(handles.filterArguments(context, 0, words), 2, tokens.bindTo(self._analyzer))
        context = handles.permuteArguments(context, method_type(_CONTEXT, STRING), 0, 0, 0)

        feedback = java(_RM3)(
            self._analyzer, None, CONTENTS, settings.fb_terms, settings.fb_docs, settings.fb_weight, False,
            self._is_english,  # keep only [a-z0-9]+, which would leave other alphabets nothing
        )  # fmt: skip
        rerank = find_method(_RM3, "rerank", _SCORED_DOCS, _SCORED_DOCS, _CONTEXT).bindTo(feedback)
        rerank = handles.filterArguments(rerank.asType(method_type("void", _SCORED_DOCS, _CONTEXT)), 0, best)

        weighted = find_method(_BAG_OF_WORDS, "buildQuery", QUERY, STRING, "java.util.Map")
        weighted = weighted.bindTo(java(_BAG_OF_WORDS)()).bindTo(CONTENTS)
        terms = _lookup().findGetter(java_class(_CONTEXT), "feedbackTerms", java_class("java.util.Map"))
        finish = chain(terms, weighted)
        finish = handles.dropArguments(finish, 0, method_type("void", STRING).parameterList())
        both = handles.foldArguments(
            finish, rerank
        )  # (text, context): rerank fills the context, then its terms are read
        both = handles.filterArguments(both, 1, context)
        return handles.permuteArguments(both, method_type(QUERY, STRING), 0, 0)


def replace_surrogates(text: str) -> str:
    """Replace halves of surrogate pairs, which bytes of a command line may have become."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _close(reader: Any) -> None:
    """Close a reader. pyjnius binds methods to an object when they are looked up: a stored `close` may be of another."""
    reader.close()
