"""Search a Lucene index.

A call from Python into Java costs microseconds per object, and pyjnius objects must not be shared between Python
threads. So analysis, search and feedback of a query are composed into one java.lang.invoke.MethodHandle, which runs as a
java.util.function.Function in a parallel stream. The results of all queries are returned as one JSON text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any
from weakref import finalize

import orjson

from drtk.data.rows import parse_passage, parse_row
from drtk.errors import MismatchError
from drtk.indexing.base import IdTable, Ranking, is_external_index, sort_hits
from drtk.indexing.config import BM25SearchSettings
from drtk.indexing.lucene.jvm import convert_java_error, load_class, run_interruptibly, start_jvm
from drtk.records import Passage

INDEX_FOLDER, IDS_FILE = "lucene", "ids.txt"
ID, CONTENTS, RAW = "id", "contents", "raw"  # Anserini's fields
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
_OBJECT_MAPPER = "com.fasterxml.jackson.databind.ObjectMapper"
_RM3 = "io.anserini.rerank.lib.Rm3Reranker"

_FIRST_BATCH, _MAX_BATCH = 64, 4096
_SECONDS_PER_BATCH = 1.0
_NORM_SAMPLE = 100  # passages

_PRIMITIVE = {"void": "V", "int": "I", "float": "F", "boolean": "Z"}
_FUNCTION = "java.util.function.Function"
_STREAM = "java.util.stream.Stream"
_COMMON_POOL = "java.util.concurrent.ForkJoinPool.common.parallelism"


def get_class_object(name: str) -> Any:
    """Return the java.lang.Class object of a class by its full name."""
    return load_class("java.lang.Class").forName(name)


def make_method_type(returns: str, *takes: str) -> Any:
    """Return a java.lang.invoke.MethodType from the class names of the result and of the parameters."""
    codes = [_PRIMITIVE.get(name) or f"L{name.replace('.', '/')};" for name in (*takes, returns)]
    return load_class("java.lang.invoke.MethodType").fromMethodDescriptorString(
        f"({''.join(codes[:-1])}){codes[-1]}", None
    )


def find_method(owner: str, name: str, returns: str, *takes: str) -> Any:
    """Return the method handle of a public method; the first argument of the handle is the object.

    owner: class of the method; returns, takes: classes of the result and of the parameters
    """
    return _get_public_lookup().findVirtual(get_class_object(owner), name, make_method_type(returns, *takes))


def find_static_method(owner: str, name: str, returns: str, *takes: str) -> Any:
    """Return the method handle of a public static method. The parameters are those of `find_method`."""
    return _get_public_lookup().findStatic(get_class_object(owner), name, make_method_type(returns, *takes))


def _get_public_lookup() -> Any:
    return load_class("java.lang.invoke.MethodHandles").publicLookup()


def bind_argument(handle: Any, position: int, value: Any) -> Any:
    """Return a method handle with the argument at `position` bound to `value`, a Java object, an int or None."""
    if isinstance(value, int):
        value = load_class("java.lang.Integer")(value)
    return load_class("java.lang.invoke.MethodHandles").insertArguments(handle, position, value)


def compose_handles(first: Any, second: Any) -> Any:
    """Return a method handle that computes second(first(x))."""
    return load_class("java.lang.invoke.MethodHandles").filterReturnValue(first, second)


def make_java_list(items: Iterable[Any]) -> Any:
    """Return a java.util.ArrayList of the items."""
    result = load_class("java.util.ArrayList")()
    for item in items:
        result.add(item)
    return result


class JavaMap:
    """Function that applies a method handle to every item of a Java collection, and returns the results in order.

    parallel: use all threads of Java's common pool
    """

    def __init__(self, handle: Any, *, parallel: bool = True) -> None:
        handles = load_class("java.lang.invoke.MethodHandles")
        holder = load_class("java.util.concurrent.atomic.AtomicReference")()
        _store_java_function(handle.asType(make_method_type("java.lang.Object", "java.lang.Object")), holder)
        supply = bind_argument(find_method(holder.getClass().getName(), "get", "java.lang.Object"), 0, holder)
        stream = find_method("java.util.Collection", "parallelStream" if parallel else "stream", _STREAM)
        mapped = handles.collectArguments(
            find_method(_STREAM, "map", _STREAM, _FUNCTION), 1, supply.asType(make_method_type(_FUNCTION))
        )
        write = find_method(_OBJECT_MAPPER, "writeValueAsString", "java.lang.String", "java.lang.Object")
        to_list = find_method(_STREAM, "toList", "java.util.List").asType(make_method_type("java.lang.Object", _STREAM))
        self._run = compose_handles(
            compose_handles(compose_handles(stream, mapped), to_list), bind_argument(write, 0, _make_json_writer())
        )

    def __call__(self, items: Any) -> Any:
        """Return the results for a Java collection, parsed from JSON. Raises jnius.JavaException for a Java exception."""
        return orjson.loads(self._run.invokeWithArguments(make_java_list([items])))


def _store_java_function(handle: Any, holder: Any) -> None:
    """Convert a method handle to a java.util.function.Function, and store the Function in the AtomicReference `holder`.

    Since Java 24, the class of the Function is hidden from pyjnius, so one composed method handle creates and stores the
    Function. Before Java 22, the class is visible, and the method that creates the Function rejects a public lookup.
    """
    import jnius

    proxies = "java.lang.invoke.MethodHandleProxies"
    try:
        make = find_static_method(
            proxies, "asInterfaceInstance", "java.lang.Object", "java.lang.Class", "java.lang.invoke.MethodHandle"
        )
    except jnius.JavaException:
        holder.set(load_class(proxies).asInterfaceInstance(get_class_object(_FUNCTION), handle))
    else:
        make = bind_argument(bind_argument(make, 0, get_class_object(_FUNCTION)), 0, handle)
        store = bind_argument(find_method(holder.getClass().getName(), "set", "void", "java.lang.Object"), 0, holder)
        compose_handles(make, store).invokeWithArguments(make_java_list([]))


def _make_json_writer() -> Any:
    """Return a JSON writer that omits unused fields of search results."""
    writer = load_class(_OBJECT_MAPPER)()
    true = load_class("java.lang.Boolean")(True)
    for name in ("org.apache.lucene.search.TotalHits", "[Lorg.apache.lucene.search.SortField;", "[Ljava.lang.Object;"):
        writer.configOverride(get_class_object(name)).setIsIgnoredType(true)
    return writer


def open_reader(folder: Path) -> Any:
    """Return a Lucene reader of the index in `folder`, or in its subfolder `lucene`."""
    inner = folder / INDEX_FOLDER
    path = load_class("java.io.File")(str((inner if inner.exists() else folder).absolute())).toPath()
    return load_class("org.apache.lucene.index.DirectoryReader").open(
        load_class("org.apache.lucene.store.FSDirectory").open(path)
    )


def find_field(reader: Any, name: str) -> Any:
    """Return Lucene's FieldInfo of a field; None if no document has the field."""
    return load_class("org.apache.lucene.index.FieldInfos").getMergedFieldInfos(reader).fieldInfo(name)


def _contains_impacts(reader: Any) -> bool:
    """Return whether term frequencies are learned impacts, from a sample of passages.

    Anserini's ImpactSimilarity stores the norm 1 for each passage, BM25Similarity the length.
    """
    norms = load_class("org.apache.lucene.index.MultiDocValues").getNormValues(reader, CONTENTS)
    if norms is None or reader.getSumTotalTermFreq(CONTENTS) < 2 * reader.getDocCount(CONTENTS):
        return False  # with a mean length of 1, BM25 also stores 1
    count = reader.maxDoc()
    number = norms.advance(0)
    while number < count:
        if norms.longValue() != 1:
            return False
        number = norms.advance(number + 1 + count // _NORM_SAMPLE)
    return True


class StoredField:
    """Values of a stored field by document number."""

    def __init__(self, reader: Any, name: str) -> None:
        fields = find_method(
            "org.apache.lucene.index.IndexReader", "storedFields", "org.apache.lucene.index.StoredFields"
        )
        document = find_method(
            "org.apache.lucene.index.StoredFields", "document", "org.apache.lucene.document.Document", "int"
        )
        document = load_class("java.lang.invoke.MethodHandles").collectArguments(
            document, 0, bind_argument(fields, 0, reader)
        )
        get = find_method("org.apache.lucene.document.Document", "get", STRING, STRING)
        self._read = JavaMap(compose_handles(document, bind_argument(get, 1, name)))
        self._count = int(reader.maxDoc())

    def __len__(self) -> int:
        return self._count

    def get_values(self, rows: Iterable[int]) -> list[Any]:
        """Return the field values of the documents with the numbers `rows`; None for a document without the field."""
        return run_interruptibly(partial(self._read, make_java_list(rows)))


class LuceneSearcher:
    """Searcher of a Lucene index; the base class of `LuceneIndex` and `ImpactIndex`.

    make_similarity, make_analyzer: return the Lucene Similarity and Analyzer; called after the JVM is started
    rm3: settings of RM3 query expansion; None for no expansion
    is_english: whether the analyzer is English
    Raises MismatchError for files of different indexes, and an index without the required fields or term vectors;
    DrtkError for missing files and Java exceptions.
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
        self._ids: IdTable | StoredField
        start_jvm()  # before jnius is imported, which would start a JVM without the jar
        import jnius

        try:
            reader = open_reader(folder)
            finalize(self, _close_reader, reader).atexit = False  # tuning opens many readers
            self._ids = StoredField(reader, ID) if is_external_index(folder) else IdTable(folder / IDS_FILE)
            for name in (ID, CONTENTS):
                if find_field(reader, name) is None:
                    raise MismatchError(f"{folder}: its documents have no field '{name}'; give an index of Anserini")
            if is_external_index(folder) and _contains_impacts(reader):
                raise MismatchError(
                    f"{folder}: contains learned impacts, which BM25 cannot search; index their vectors with `type=impact`"
                )
            if rm3 and not find_field(reader, CONTENTS).hasVectors():
                raise MismatchError(f"{folder}: `rm3` requires term vectors; rebuild the index with `term_vectors`")
            if reader.maxDoc() != len(self):
                raise MismatchError(
                    f"{folder}: {INDEX_FOLDER}/ and {IDS_FILE} have different numbers of passages; rebuild the index"
                )
            if threads:  # of Java's common pool, which the calling thread joins; only the first setting has an effect
                load_class("java.lang.System").setProperty(_COMMON_POOL, str(max(threads - 1, 1)))
            self._lucene = load_class(SEARCHER)(reader.getContext())
            self._lucene.setSimilarity(make_similarity())
            load_class(SEARCHER).setMaxClauseCount(2**31 - 1)  # for queries of any length (docs/methods/ear.md)
            self._analyzer, self._is_english = make_analyzer(), is_english
            self._to_query = self._make_query_builder() if rm3 is None else self._make_rm3_query_builder(rm3)
            self._raw = StoredField(reader, RAW) if find_field(reader, RAW) is not None else None
        except jnius.JavaException as error:
            raise convert_java_error(error, str(folder)) from error
        self._maps: dict[tuple[str, int], JavaMap] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def search(self, texts: Sequence[str], k: int) -> list[Ranking]:
        """Return the top `k` passages for each text, by score, then by descending id, also for ties at rank k."""
        import jnius

        k = min(k, len(self))
        if k < 1:
            return [[] for _ in texts]
        try:
            results = self._search(self._make_search_by_score, texts, k + 1)  # hit k + 1 shows a tie at rank k
            tied = [at for at, hits in enumerate(results) if len(hits) > k and hits[k - 1]["score"] == hits[k]["score"]]
            if tied:
                for at, hits in zip(
                    tied, self._search(self._make_search_by_score_then_id, [texts[at] for at in tied], k), strict=True
                ):
                    results[at] = hits
            ids = iter(self._ids.get_values(hit["doc"] for hits in results for hit in hits))
        except jnius.JavaException as error:
            raise convert_java_error(error, str(self.folder)) from error
        return [sort_hits([*islice(ids, len(hits))], [hit["score"] for hit in hits], k) for hits in results]

    @property
    def has_passages(self) -> bool:
        """Whether the index stores the passages themselves (Anserini's -storeRaw)."""
        return self._raw is not None

    def get(self, id: str) -> Passage | None:
        """Return a passage that the index stores; None if there is none with this id."""
        if self._raw is None:
            return None
        (result,) = run_interruptibly(partial(self._find_id, make_java_list([id])))
        for raw in self._raw.get_values(hit["doc"] for hit in result["scoreDocs"]):
            try:
                return parse_passage(parse_row((raw or "").encode()))
            except ValueError:  # the markup of another collection class
                return Passage(id, raw or "")
        return None

    @cached_property
    def _find_id(self) -> JavaMap:
        """Function that returns Lucene's TopDocs for each id of a Java collection: one hit, or none for an unknown id."""
        keyword = load_class("org.apache.lucene.analysis.core.KeywordAnalyzer")()
        return JavaMap(compose_handles(self._make_bag_of_words_builder(ID, keyword), self._make_search_by_score(1)))

    def _search(self, make_search: Callable[[int], Any], texts: Sequence[str], k: int) -> list[list[dict[str, Any]]]:
        """Return the Lucene hits for each text. The batch size grows until a batch takes about a second."""
        key = make_search.__name__, k
        if key not in self._maps:
            self._maps[key] = JavaMap(compose_handles(self._to_query, make_search(k)), parallel=self._threads != 1)
        search = self._maps[key]
        hits: list[list[dict[str, Any]]] = []
        size = _FIRST_BATCH
        while len(hits) < len(texts):
            batch = make_java_list(replace_surrogates(text) for text in texts[len(hits) : len(hits) + size])
            start = time.monotonic()
            hits.extend(result["scoreDocs"] for result in run_interruptibly(partial(search, batch)))
            if time.monotonic() - start < _SECONDS_PER_BATCH / 2:
                size = min(2 * size, _MAX_BATCH)
        return hits

    def _make_search_by_score(self, k: int) -> Any:
        """Return a method handle query -> top k, with ties by document number. It is fast, since Lucene skips blocks."""
        search = bind_argument(find_method(SEARCHER, "search", TOP_DOCS, QUERY, "int"), 0, self._lucene)
        return bind_argument(search, 1, k)

    def _make_search_by_score_then_id(self, k: int) -> Any:
        """Return a method handle query -> top k, with ties by descending id."""
        field = load_class(_SEARCH + "SortField")
        order = load_class(SORT)(
            field.FIELD_SCORE, field("id", load_class(_SEARCH + "SortField$Type").STRING_VAL, True)
        )
        search = find_method(SEARCHER, "search", _SEARCH + "TopFieldDocs", QUERY, "int", SORT, "boolean")
        search = bind_argument(
            bind_argument(search.bindTo(self._lucene), 3, load_class("java.lang.Boolean")(True)), 2, order
        )
        return bind_argument(search, 1, k).asType(make_method_type(TOP_DOCS, QUERY))

    def _make_query_builder(self) -> Any:
        """Return a method handle text -> query."""
        return self._make_bag_of_words_builder()

    def _make_bag_of_words_builder(self, field: str = CONTENTS, analyzer: Any = None) -> Any:
        """Return a method handle text -> query with a clause per distinct term, weighted by its count."""
        build = find_method(_BAG_OF_WORDS, "buildQuery", QUERY, STRING, ANALYZER, STRING).bindTo(
            load_class(_BAG_OF_WORDS)()
        )
        return build.bindTo(field).bindTo(analyzer or self._analyzer)

    def _make_rm3_query_builder(self, settings: BM25SearchSettings) -> Any:
        """Return a method handle text -> query, expanded with up to `fb_terms` terms from the top `fb_docs` passages.

        Anserini's RM3 selects the terms; its own second search is limited to one hit. The expanded query is searched like
        any other query, with the same tie-breaking.
        """
        handles = load_class("java.lang.invoke.MethodHandles")
        words = self._make_bag_of_words_builder()
        tokens = find_static_method("io.anserini.analysis.AnalyzerUtils", "analyze", "java.util.List", ANALYZER, STRING)
        to_docs = bind_argument(
            find_static_method(_SCORED_DOCS, "fromTopDocs", _SCORED_DOCS, TOP_DOCS, SEARCHER), 1, self._lucene
        )
        search = self._make_search_by_score_then_id(settings.fb_docs)
        feedback_docs = compose_handles(compose_handles(words, search), to_docs)

        one_hit = load_class(_SEARCH_ARGS)()
        one_hit.hits = 1
        takes = (SEARCHER, "java.lang.Object", QUERY, STRING, STRING, "java.util.List", QUERY, _SEARCH_ARGS)
        context = _get_public_lookup().findConstructor(get_class_object(_CONTEXT), make_method_type("void", *takes))
        context = bind_argument(context, 7, one_hit)  # the last position first, so that the others do not change
        context = bind_argument(context, 6, None)  # no filter
        context = bind_argument(context, 3, None)  # no query document
        context = bind_argument(context, 1, None)  # no query id
        context = context.bindTo(self._lucene)  # remaining arguments: query, text, tokens
        context = handles.filterArguments(handles.filterArguments(context, 0, words), 2, tokens.bindTo(self._analyzer))
        context = handles.permuteArguments(context, make_method_type(_CONTEXT, STRING), 0, 0, 0)

        feedback = load_class(_RM3)(
            self._analyzer, None, CONTENTS, settings.fb_terms, settings.fb_docs, settings.fb_weight, False,
            self._is_english,  # keep only terms of [a-z0-9]; in other alphabets no term would remain
        )  # fmt: skip
        rerank = find_method(_RM3, "rerank", _SCORED_DOCS, _SCORED_DOCS, _CONTEXT).bindTo(feedback)
        rerank = rerank.asType(make_method_type("void", _SCORED_DOCS, _CONTEXT))
        rerank = handles.filterArguments(rerank, 0, feedback_docs)

        weighted = make_weighted_query_builder()
        terms = _get_public_lookup().findGetter(
            get_class_object(_CONTEXT), "feedbackTerms", get_class_object("java.util.Map")
        )
        finish = compose_handles(terms, weighted)
        finish = handles.dropArguments(finish, 0, make_method_type("void", STRING).parameterList())
        both = handles.foldArguments(
            finish, rerank
        )  # (text, context): `rerank` fills the context, `finish` reads its terms
        both = handles.filterArguments(both, 1, context)
        return handles.permuteArguments(both, make_method_type(QUERY, STRING), 0, 0)


def make_weighted_query_builder() -> Any:
    """Return a method handle map -> query with a clause per term. The map has the weight of each term, a Float."""
    build = find_method(_BAG_OF_WORDS, "buildQuery", QUERY, STRING, "java.util.Map")
    return build.bindTo(load_class(_BAG_OF_WORDS)()).bindTo(CONTENTS)


def make_json_reader() -> Any:
    """Return a method handle that parses a JSON text as a map of String to Float."""
    mapper = load_class(_OBJECT_MAPPER)()
    classes = [get_class_object(name) for name in ("java.util.HashMap", STRING, "java.lang.Float")]
    kind = mapper.getTypeFactory().constructMapType(*classes)
    java_type = "com.fasterxml.jackson.databind.JavaType"
    read = find_method(_OBJECT_MAPPER, "readValue", "java.lang.Object", STRING, java_type).bindTo(mapper)
    return bind_argument(read, 1, kind).asType(make_method_type("java.util.Map", STRING))


def replace_surrogates(text: str) -> str:
    """Replace unpaired surrogates, which represent undecodable bytes of the command line, by "?"."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _close_reader(reader: Any) -> None:
    """Close a reader. Storing `reader.close` instead would fail, because pyjnius rebinds methods at each attribute access."""
    reader.close()
