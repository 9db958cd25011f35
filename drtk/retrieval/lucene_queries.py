"""Java functions from a text to a Lucene query: its words, and RM3's widening of them with words of the best passages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drtk.retrieval.lucene_batch import bound, constructor, getter, method, method_type, static_method, then
from drtk.retrieval.lucene_jvm import java
from drtk.settings.retrieval import BM25SearchSettings

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
