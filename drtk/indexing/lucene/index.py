"""BM25 and impact indexes by Lucene."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import orjson

from drtk.errors import MismatchError, RecordError, UsageError
from drtk.indexing.base import Ranking
from drtk.indexing.config import BM25IndexSettings, BM25SearchSettings
from drtk.indexing.indexed_text import read_impacts
from drtk.indexing.lucene.build import write_index
from drtk.indexing.lucene.jvm import anserini_version, find_jar, find_java, java
from drtk.indexing.lucene.search import LuceneSearcher, replace_surrogates
from drtk.records import Passage
from drtk.runtime.integrity import read_object
from drtk.runtime.progress import Progress
from drtk.text.words import LUCENE_STOPWORDS, extract_question_words, load_function_words, read_stopwords

ANALYSIS_FILE, STOPWORDS_FILE, WORDS_FILE = "analysis.json", "stopwords.txt", "words.json"
_WHITE_SPACE = "".join(map(chr, range(33)))  # for Java's trim, by which Anserini decides that a text is empty
_LUCENE = "org.apache.lucene.analysis."
_ANALYZERS = "io.anserini.analysis.AnalyzerMap"
# Languages that Lucene has an analyzer for and Anserini's table lacks.
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
class Analysis:
    """How texts are split into terms; stored with the index, so that queries are analyzed like passages.

    stopwords: "lucene", "none", "default" or "file" (stored in the index folder)
    """

    language: str
    stemmer: str
    stopwords: str
    term_vectors: bool

    @classmethod
    def choose(cls, settings: BM25IndexSettings, folder: Path) -> Analysis:
        """Return the analysis for `settings`; a file of stop words is copied into the index folder.

        Raises UsageError for an unknown language, and for a stemmer or stop words of a language other than English.
        """
        language = settings.language.lower()
        if language not in (known := languages()):
            raise UsageError(f"`language`: Lucene has no analyzer for '{language}'; choose from {', '.join(known)}")
        if language != "en":
            for field in ("stemmer", "stopwords"):
                if getattr(settings, field) != "default":
                    raise UsageError(f"`{field}`: only for English; Lucene's analyzer for '{language}' has its own")
            return cls(language, "default", "default", settings.term_vectors)
        if settings.stemmer == "snowball":
            raise UsageError("`stemmer`: Lucene's English analyzer has porter, krovetz or none")
        stemmer = "porter" if settings.stemmer == "default" else settings.stemmer
        stopwords = "lucene" if settings.stopwords == "default" else settings.stopwords
        if stopwords not in ("lucene", "none"):
            words = read_stopwords(stopwords)
            (folder / STOPWORDS_FILE).write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
            stopwords = "file"
        return cls(language, stemmer, stopwords, settings.term_vectors)

    @classmethod
    def load(cls, folder: Path) -> Analysis:
        """Load the analysis of an index. Raises DrtkError if the folder has no Lucene index."""
        keys = {"language": str, "stemmer": str, "stopwords": str, "term_vectors": bool}
        content = read_object(folder / ANALYSIS_FILE, **keys)
        return cls(**{key: content[key] for key in keys})

    def make_analyzer(self, folder: Path) -> Any:
        """Return the Lucene analyzer; `folder` contains the file of stop words."""
        if self.language != "en":
            return java(_ANALYZERS).getLanguageSpecificAnalyzer(self.language)
        words = str(folder / STOPWORDS_FILE) if self.stopwords == "file" else None
        english = java("io.anserini.analysis.DefaultEnglishAnalyzer")
        return english.fromArguments(self.stemmer, self.stopwords == "none", words)


def languages() -> list[str]:
    """Return the languages that the jar has an analyzer for, sorted."""
    table = java(_ANALYZERS).analyzerMap
    for language, name in _MORE_ANALYZERS.items():
        table.putIfAbsent(language, _LUCENE + name)
    loader = java("java.lang.ClassLoader").getSystemClassLoader()
    paths = {language: table.get(language).replace(".", "/") + ".class" for language in table.keySet().toArray()}
    return sorted({"en"} | {language for language, path in paths.items() if loader.getResource(path) is not None})


class LuceneIndex(LuceneSearcher):
    """BM25 in a Lucene index: the files of Lucene, `analysis.json`, and `ids.txt` in Lucene's numbering.

    Scores are Lucene's own, unrounded; it stores lengths of passages above 40 words coarsely (one byte each). A repeated
    word of a query counts each time. Queries may have any number of words.
    """

    reads: ClassVar[Literal["passages"]] = "passages"
    tunable: ClassVar[bool] = True

    @classmethod
    def build(
        cls, passages: Iterable[Passage], folder: Path, settings: BM25IndexSettings, *, progress: Progress | None = None
    ) -> int:
        """Index title and text of every passage; return the number of passages in the index.

        Raises UsageError for settings that contradict each other, and what `write_index` raises.
        """
        analysis = Analysis.choose(settings, folder)

        def configure(arguments: Any) -> None:
            arguments.collectionClass = "JsonCollection"
            arguments.language = analysis.language
            arguments.stemmer = analysis.stemmer
            arguments.keepStopwords = analysis.stopwords == "none"
            if analysis.stopwords == "file":
                arguments.stopwords = str((folder / STOPWORDS_FILE).absolute())
            arguments.storeDocvectors = analysis.term_vectors

        count = write_index(passages, folder, _text_row, configure, threads=settings.threads, progress=progress)
        (folder / ANALYSIS_FILE).write_bytes(orjson.dumps(asdict(analysis), option=orjson.OPT_INDENT_2))
        return count

    @classmethod
    def open(cls, folder: Path, settings: BM25SearchSettings) -> LuceneIndex:
        """Open the index in `folder`. Raises MismatchError for RM3 on an index without term vectors."""
        analysis = Analysis.load(folder)
        if settings.rm3 and not analysis.term_vectors:
            raise MismatchError(f"{folder}: `rm3` needs an index made with `term_vectors`")
        k1, b = settings.parameters()
        return cls(
            folder,
            lambda: java("org.apache.lucene.search.similarities.BM25Similarity")(k1, b),
            lambda: analysis.make_analyzer(folder),
            rm3=settings if settings.rm3 else None,
            is_english=analysis.language == "en",
            threads=settings.threads,
        )

    @staticmethod
    def software() -> dict[str, str]:
        """Return the versions of Java and of Anserini, which decide who can read the index."""
        return {"anserini": anserini_version(find_jar()), "java": str(find_java().version)}


def _text_row(passage: Passage) -> dict[str, Any] | None:
    contents = f"{passage.title} {passage.text}".strip(_WHITE_SPACE)
    return {"id": passage.id, "contents": contents} if contents else None


class ImpactIndex(LuceneSearcher):
    """Impacts in a Lucene index: the files of Lucene, `ids.txt`, and `words.json` with the stop words of queries.

    Queries are split like BERT's basic tokenizer does, lower-cased; a repeated word counts once (docs/methods/term-weights.md).
    Scores are whole numbers.
    """

    reads: ClassVar[Literal["passages"]] = "passages"
    tunable: ClassVar[bool] = False
    software = staticmethod(LuceneIndex.software)
    _stopwords: frozenset[str] = frozenset()

    @classmethod
    def build(
        cls, passages: Iterable[Passage], folder: Path, settings: BM25IndexSettings, *, progress: Progress | None = None
    ) -> int:
        """Index the `impacts` of every passage; return the number of passages in the index.

        Raises UsageError for settings of other indexes, RecordError for a passage without valid impacts, and what
        `write_index` raises.
        """
        stopwords = _choose_stopwords(settings)

        def configure(arguments: Any) -> None:
            arguments.collectionClass = "JsonVectorCollection"
            arguments.impact = True
            arguments.pretokenized = True

        count = write_index(passages, folder, _impact_row, configure, threads=settings.threads, progress=progress)
        words = {"parted": "basic", "stopwords": stopwords}
        (folder / WORDS_FILE).write_bytes(orjson.dumps(words, option=orjson.OPT_INDENT_2))
        return count

    @classmethod
    def open(cls, folder: Path, settings: BM25SearchSettings) -> ImpactIndex:
        """Open the index in `folder`. Raises DrtkError if there is none, UsageError for k1, b and RM3."""
        for field, value in (("k1", settings.k1), ("b", settings.b), ("rm3", settings.rm3 or None)):
            if value is not None:
                raise UsageError(f"`{field}`: {folder} is an index of impacts, whose scores are plain sums")
        stopwords = read_object(folder / WORDS_FILE, stopwords=list)["stopwords"]
        index = cls(
            folder,
            lambda: java("io.anserini.search.similarity.ImpactSimilarity")(),
            lambda: java("org.apache.lucene.analysis.core.WhitespaceAnalyzer")(),
            threads=settings.threads,
        )
        index._stopwords = frozenset(map(str, stopwords))
        return index

    def search(self, texts: Sequence[str], k: int) -> list[Ranking]:
        """Return up to `k` passages with a word of each text, by score, then by descending id."""
        words = [extract_question_words(replace_surrogates(text), stopped=self._stopwords) for text in texts]
        return super().search([" ".join(each) for each in words], k)


def _impact_row(passage: Passage) -> dict[str, Any] | None:
    """Return a row of Anserini's JsonVectorCollection; a word's impact is its frequency."""
    try:
        impacts = read_impacts(passage)
    except ValueError as error:
        raise RecordError(f"passage '{passage.id}'", str(error)) from error
    return {"id": passage.id, "contents": "", "vector": impacts} if impacts else None


def _choose_stopwords(settings: BM25IndexSettings) -> list[str]:
    """Return the sorted stop words of queries: drtk's own list unless another is named."""
    if settings.stemmer not in ("default", "none"):
        raise UsageError("`stemmer`: impacts belong to whole words")
    if settings.term_vectors:
        raise UsageError("`term_vectors`: only for index type bm25")
    if settings.stopwords == "lucene":
        return sorted(LUCENE_STOPWORDS)
    if settings.stopwords == "none" or (settings.stopwords == "default" and settings.language.lower() != "en"):
        return []
    return sorted(load_function_words()) if settings.stopwords == "default" else read_stopwords(settings.stopwords)
