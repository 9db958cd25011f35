"""How Lucene makes words of texts: the language's analyzer, and for English the choice of stemmer and stop words.

The choice is part of the index: `analysis.json` in its folder, so that queries are cut as the passages were.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from drtk.errors import UsageError
from drtk.indexing.config import BM25IndexSettings
from drtk.indexing.lucene.jvm import java
from drtk.indexing.words import read_stopwords
from drtk.runtime.integrity import read_object

ANALYSIS_FILE = "analysis.json"
STOPWORDS_FILE = "stopwords.txt"
ANY_LANGUAGE = "any"
_LUCENE = "org.apache.lucene.analysis."
# Lucene has these, Anserini's own table of languages has not.
_FURTHER = {
    ANY_LANGUAGE: "standard.StandardAnalyzer",
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
_LANGUAGES = "io.anserini.analysis.AnalyzerMap"


@dataclass(frozen=True, slots=True)
class Analysis:
    """What decides an index's words. `stopwords`: "lucene", "none", or "file" (kept beside it in the index)."""

    language: str
    stemmer: str
    stopwords: str
    term_vectors: bool

    def save(self, folder: Path) -> None:
        """Write it into an index folder."""
        (folder / ANALYSIS_FILE).write_bytes(orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2))

    @classmethod
    def load(cls, folder: Path) -> Analysis:
        """Load what `save` wrote. Raises DrtkError if the folder has no Lucene index."""
        keys = {"language": str, "stemmer": str, "stopwords": str, "term_vectors": bool}
        content = read_object(folder / ANALYSIS_FILE, **keys)
        return cls(**{key: content[key] for key in keys})

    def analyzer(self, folder: Path) -> Any:
        """The Lucene analyzer; `folder` is where a file of stop words lies."""
        if self.language != "en":
            return java(_LANGUAGES).getLanguageSpecificAnalyzer(self.language)
        words = str(folder / STOPWORDS_FILE) if self.stopwords == "file" else None
        english = java("io.anserini.analysis.DefaultEnglishAnalyzer")
        return english.fromArguments(self.stemmer, self.stopwords == "none", words)


def choose_analysis(settings: BM25IndexSettings, folder: Path) -> Analysis:
    """The analysis that `settings` ask for; a file of stop words is copied into the index folder.

    Raises UsageError for an unknown language, and for a stemmer or stop words where the language's analyzer has its own.
    """
    language = settings.language.lower()
    if language not in languages():
        raise UsageError(f"--language: Lucene has no analyzer for '{language}'; choose from {', '.join(languages())}")
    if language != "en":
        for flag, value in (("--stemmer", settings.stemmer), ("--stopwords", settings.stopwords)):
            if value != "default":
                raise UsageError(f"{flag}: only for English; Lucene's analyzer for '{language}' brings its own")
        return Analysis(language, "default", "default", settings.term_vectors)
    if settings.stemmer == "snowball":
        raise UsageError("--stemmer: Lucene's English analyzer has porter, krovetz or none")
    stemmer = "porter" if settings.stemmer == "default" else settings.stemmer
    stopwords = "lucene" if settings.stopwords == "default" else settings.stopwords
    if stopwords not in ("lucene", "none"):
        words = read_stopwords(stopwords)
        (folder / STOPWORDS_FILE).write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
        stopwords = "file"
    return Analysis(language, stemmer, stopwords, settings.term_vectors)


def languages() -> list[str]:
    """Languages this jar has an analyzer for, sorted."""
    table = java(_LANGUAGES).analyzerMap
    for language, name in _FURTHER.items():
        table.putIfAbsent(language, _LUCENE + name)
    loader = java("java.lang.ClassLoader").getSystemClassLoader()
    found = {language for language in table.keySet().toArray() if _exists(loader, table.get(language))}
    return sorted(found | {"en"})


def _exists(loader: Any, name: str) -> bool:
    return loader.getResource(name.replace(".", "/") + ".class") is not None
