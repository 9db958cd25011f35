"""BM25 and impact indexes of Lucene."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import orjson

from drtk.errors import UsageError
from drtk.indexing.base import Ranking, is_external_index
from drtk.indexing.config import BM25IndexSettings, BM25SearchSettings
from drtk.indexing.indexed_text import IMPACTS
from drtk.indexing.lucene.build import write_index
from drtk.indexing.lucene.jvm import find_jar, find_java, load_class, parse_anserini_version
from drtk.indexing.lucene.search import (
    LuceneSearcher,
    compose_handles,
    make_json_reader,
    make_weighted_query_builder,
    replace_surrogates,
)
from drtk.records import Passage
from drtk.runtime.integrity import read_object
from drtk.text.languages import get_language_code
from drtk.text.words import LUCENE_STOPWORDS, extract_question_words, load_stop_words_with_parts, read_stopwords

ANALYSIS_FILE, STOPWORDS_FILE, WORDS_FILE = "analysis.json", "stopwords.txt", "words.json"
_WHITE_SPACE = "".join(map(chr, range(33)))  # removed by Java's trim; Anserini skips texts that are empty afterwards
_LUCENE = "org.apache.lucene.analysis."
_ANALYZERS = "io.anserini.analysis.AnalyzerMap"
# Lucene analyzers for languages that are missing in Anserini's table.
_MORE_ANALYZERS = {
    "any": "standard.StandardAnalyzer",
    "bg": "bg.BulgarianAnalyzer",
    "ca": "ca.CatalanAnalyzer",
    "ckb": "ckb.SoraniAnalyzer",
    "cs": "cz.CzechAnalyzer",
    "el": "el.GreekAnalyzer",
    "et": "et.EstonianAnalyzer",
    "eu": "eu.BasqueAnalyzer",
    "ga": "ga.IrishAnalyzer",
    "gl": "gl.GalicianAnalyzer",
    "hy": "hy.ArmenianAnalyzer",
    "lt": "lt.LithuanianAnalyzer",
    "lv": "lv.LatvianAnalyzer",
    "ne": "ne.NepaliAnalyzer",
    "ro": "ro.RomanianAnalyzer",
    "sr": "sr.SerbianAnalyzer",
    "ta": "ta.TamilAnalyzer",
}


@dataclass(frozen=True, slots=True)
class AnalyzerSettings:
    """Analyzer settings; they are stored with the index, so that queries are analyzed in the same way.

    stopwords: "lucene", "none", "file" (in the index folder), or "default" (of a language other than English)
    """

    language: str
    stemmer: str
    stopwords: str
    term_vectors: bool

    @classmethod
    def from_settings(cls, settings: BM25IndexSettings, folder: Path) -> AnalyzerSettings:
        """Return the analyzer settings that `settings` select, and copy a file of stop words into the index folder.

        Raises UsageError for an unknown language, for stemmer snowball, and if a stemmer or stop words are set for a
        language other than English.
        """
        language = get_language_code(settings.language)
        if language not in (languages := find_languages()):
            raise UsageError(f"`language`: Lucene has no analyzer for '{language}'; choose from {', '.join(languages)}")
        if language != "en":
            for field in ("stemmer", "stopwords"):
                if getattr(settings, field) != "default":
                    raise UsageError(f"`{field}` requires `language=en`; omit it for language '{language}'")
            return cls(language, "default", "default", settings.term_vectors)
        if settings.stemmer == "snowball":
            raise UsageError("`stemmer=snowball` is not supported by indexes of type bm25; use porter, krovetz or none")
        stemmer = "porter" if settings.stemmer == "default" else settings.stemmer
        stopwords = "lucene" if settings.stopwords == "default" else settings.stopwords
        if stopwords not in ("lucene", "none"):
            words = read_stopwords(stopwords)
            (folder / STOPWORDS_FILE).write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
            stopwords = "file"
        return cls(language, stemmer, stopwords, settings.term_vectors)

    @classmethod
    def load(cls, folder: Path) -> AnalyzerSettings:
        """Load the analyzer settings of an index. Raises DrtkError if `analysis.json` is missing or damaged."""
        keys = {"language": str, "stemmer": str, "stopwords": str, "term_vectors": bool}
        content = read_object(folder / ANALYSIS_FILE, **keys)
        return cls(**{key: content[key] for key in keys})

    def make_analyzer(self, folder: Path) -> Any:
        """Return the Lucene analyzer. folder: index folder, which contains the file of stop words"""
        if self.language != "en":
            return _load_analyzers().getLanguageSpecificAnalyzer(self.language)
        words = str(folder / STOPWORDS_FILE) if self.stopwords == "file" else None
        english = load_class("io.anserini.analysis.DefaultEnglishAnalyzer")
        return english.fromArguments(self.stemmer, self.stopwords == "none", words)


def find_languages() -> list[str]:
    """Return the sorted codes of all languages with a Lucene analyzer."""
    table = _load_analyzers().analyzerMap
    loader = load_class("java.lang.ClassLoader").getSystemClassLoader()
    paths = {language: table.get(language).replace(".", "/") + ".class" for language in table.keySet().toArray()}
    return sorted({"en"} | {language for language, path in paths.items() if loader.getResource(path) is not None})


def _load_analyzers() -> Any:
    """Add the missing Lucene analyzers to Anserini's table of analyzers; return the Java class with the table."""
    analyzers = load_class(_ANALYZERS)
    for language, name in _MORE_ANALYZERS.items():
        analyzers.analyzerMap.putIfAbsent(language, _LUCENE + name)
    return analyzers


class LuceneIndex(LuceneSearcher):
    """BM25 index of Lucene, with `analysis.json` (see `AnalyzerSettings`) and `ids.txt` (passage ids by document number).

    Scores are not rounded, but Lucene rounds passage lengths above 40 terms to store them in one byte. Repeated query words
    count repeatedly. Queries may have any number of words.
    """

    reads: ClassVar[Literal["passages"]] = "passages"
    tunable: ClassVar[bool] = True

    @classmethod
    def build(cls, passages: Iterable[Passage], folder: Path, settings: BM25IndexSettings) -> int:
        """Index title and text of all nonempty passages; return their number.

        Raises the errors of `AnalyzerSettings.from_settings` and `write_index`.
        """
        analysis = AnalyzerSettings.from_settings(settings, folder)

        def set_index_arguments(arguments: Any) -> None:
            arguments.collectionClass = "JsonCollection"
            arguments.language = analysis.language
            arguments.stemmer = analysis.stemmer
            arguments.keepStopwords = analysis.stopwords == "none"
            if analysis.stopwords == "file":
                arguments.stopwords = str((folder / STOPWORDS_FILE).absolute())
            arguments.storeDocvectors = analysis.term_vectors

        count = write_index(passages, folder, _make_text_row, set_index_arguments, threads=settings.threads)
        (folder / ANALYSIS_FILE).write_bytes(orjson.dumps(asdict(analysis), option=orjson.OPT_INDENT_2))
        return count

    @classmethod
    def open(cls, folder: Path, settings: BM25SearchSettings) -> LuceneIndex:
        """Open an index of drtk, or one of Anserini; `settings.language` then selects the analyzer.

        Raises MismatchError for RM3 on an index without term vectors, UsageError for `language` on an index of drtk.
        """
        if is_external_index(folder):
            analysis = AnalyzerSettings.from_settings(BM25IndexSettings(language=settings.language or "en"), folder)
        else:
            analysis = AnalyzerSettings.load(folder)
            if settings.language is not None:
                raise UsageError(f"`language` has no effect on {folder}, which records its analyzer; omit it")
        k1, b = settings.get_parameters()
        return cls(
            folder,
            lambda: load_class("org.apache.lucene.search.similarities.BM25Similarity")(k1, b),
            lambda: analysis.make_analyzer(folder),
            rm3=settings if settings.rm3 else None,
            is_english=analysis.language == "en",
            threads=settings.threads,
        )

    @staticmethod
    def get_versions() -> dict[str, str]:
        """Return the versions of Anserini and Java, for the manifest."""
        return {"anserini": parse_anserini_version(find_jar()), "java": str(find_java().version)}


def _make_text_row(passage: Passage) -> dict[str, Any] | None:
    contents = f"{passage.title} {passage.text}".strip(_WHITE_SPACE)
    return {"id": passage.id, "contents": contents} if contents else None


class ImpactIndex(LuceneSearcher):
    """Impact index of Lucene, with `ids.txt` and `words.json` (stop words of queries).

    A query is a text or {term: impact} (docs/methods/splade.md). Texts are lowercased and split by BERT's basic tokenizer;
    repeated words count once (docs/methods/term-weights.md). Scores are dot products of integer impacts.
    """

    reads: ClassVar[Literal["passages"]] = "passages"
    get_versions = staticmethod(LuceneIndex.get_versions)
    _stopwords: frozenset[str] = frozenset()

    @classmethod
    def build(cls, passages: Iterable[Passage], folder: Path, settings: BM25IndexSettings) -> int:
        """Index the field `impacts` of every passage; return the number of passages with impacts.

        passages: their field `impacts` comes from `read_impacts`
        Raises UsageError for settings that only other types support, and the errors of `write_index`.
        """
        stopwords = _choose_stopwords(settings)

        def set_index_arguments(arguments: Any) -> None:
            arguments.collectionClass = "JsonVectorCollection"
            arguments.impact = True
            arguments.pretokenized = True

        count = write_index(passages, folder, _make_impact_row, set_index_arguments, threads=settings.threads)
        words = {"parted": "basic", "stopwords": stopwords}
        (folder / WORDS_FILE).write_bytes(orjson.dumps(words, option=orjson.OPT_INDENT_2))
        return count

    @classmethod
    def open(cls, folder: Path, settings: BM25SearchSettings) -> ImpactIndex:
        """Open the index in `folder`. Raises DrtkError if it is missing, UsageError for settings of BM25 (k1, b, RM3)."""
        for field, value in (("k1", settings.k1), ("b", settings.b), ("rm3", settings.rm3 or None)):
            if value is not None:
                raise UsageError(f"`{field}` has no effect on {folder}, an index of type impact; omit it")
        stopwords = read_object(folder / WORDS_FILE, stopwords=list)["stopwords"]
        index = cls(
            folder,
            lambda: load_class("io.anserini.search.similarity.ImpactSimilarity")(),
            lambda: load_class("org.apache.lucene.analysis.core.WhitespaceAnalyzer")(),
            threads=settings.threads,
        )
        index._stopwords = frozenset(map(str, stopwords))
        return index

    def search(self, queries: Sequence[str | Mapping[str, int]], k: int) -> list[Ranking]:
        """Return the top `k` passages for each query, by score, then by descending id.

        queries: texts, whose words have impact 1, or the impact of each term
        """
        return super().search([orjson.dumps(self._weight_terms(query)).decode() for query in queries], k)

    def _weight_terms(self, query: str | Mapping[str, int]) -> Mapping[str, int]:
        if isinstance(query, str):
            return dict.fromkeys(extract_question_words(replace_surrogates(query), stop_words=self._stopwords), 1)
        return query

    def _make_query_builder(self) -> Any:
        """Return a method handle JSON object {term: impact} -> query."""
        return compose_handles(make_json_reader(), make_weighted_query_builder())


def _make_impact_row(passage: Passage) -> dict[str, Any] | None:
    """Return a row of Anserini's JsonVectorCollection, which indexes impacts as frequencies; None without impacts."""
    impacts = passage.extra[IMPACTS]
    return {"id": passage.id, "contents": "", "vector": impacts} if impacts else None


def _choose_stopwords(settings: BM25IndexSettings) -> list[str]:
    """Return the sorted stop words of queries. Raises UsageError for settings that only other types support."""
    if settings.stemmer not in ("default", "none"):
        raise UsageError("`stemmer` has no effect on an index of type impact; omit it")
    if settings.term_vectors:
        raise UsageError("`term_vectors` requires an index of type bm25")
    if settings.stopwords == "lucene":
        return sorted(LUCENE_STOPWORDS)
    if settings.stopwords == "none" or (
        settings.stopwords == "default" and get_language_code(settings.language) != "en"
    ):
        return []
    return (
        sorted(load_stop_words_with_parts()) if settings.stopwords == "default" else read_stopwords(settings.stopwords)
    )
