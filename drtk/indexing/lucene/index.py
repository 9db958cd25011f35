"""BM25 and impact indexes by Lucene."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import orjson

from drtk.errors import MismatchError, RecordError, UsageError
from drtk.indexing.base import Ranking
from drtk.indexing.config import BM25IndexSettings, BM25SearchSettings
from drtk.indexing.indexed_text import impacts_of
from drtk.indexing.lucene.analysis import Analysis
from drtk.indexing.lucene.build import build_index, write_index
from drtk.indexing.lucene.jvm import anserini_version, find_jar, find_java, java
from drtk.indexing.lucene.search import LuceneSearch, Searcher, bag_of_words, rm3
from drtk.indexing.words import LUCENE_STOPWORDS, read_stopwords
from drtk.records import Passage
from drtk.runtime.integrity import read_object
from drtk.runtime.progress import Progress
from drtk.text.words import function_words, question_words


@dataclass(frozen=True, slots=True)
class _BM25:
    """How an index of texts is searched."""

    folder: Path
    settings: BM25SearchSettings
    analysis: Analysis

    def similarity(self) -> Any:
        return java("org.apache.lucene.search.similarities.BM25Similarity")(*self.settings.parameters())

    def analyzer(self) -> tuple[Any, bool]:
        return self.analysis.analyzer(self.folder), self.analysis.language == "en"

    def to_query(self, searcher: Searcher) -> Any:
        return rm3(searcher, self.settings) if self.settings.rm3 else bag_of_words(searcher)


class LuceneIndex:
    """A Lucene index: the files of Lucene, `analysis.json`, and `ids.txt` in Lucene's numbering.

    Scores are Lucene's own, unrounded; its passage lengths are coarse above 40 words (one byte each). A word twice in
    a query counts twice. Queries may have any number of words.
    """

    reads: ClassVar[Literal["passages"]] = "passages"
    tunable: ClassVar[bool] = True

    def __init__(self, search: LuceneSearch) -> None:
        self._search = search

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
        return cls(LuceneSearch(folder, _BM25(folder, settings, analysis), threads=settings.threads))

    @staticmethod
    def software() -> dict[str, str]:
        """Versions of Anserini, which decide who can read the index, and of Java."""
        return {"anserini": anserini_version(find_jar()), "java": str(find_java().version)}

    def __len__(self) -> int:
        return len(self._search)

    def search(self, texts: Sequence[str], k: int) -> list[Ranking]:
        """Up to `k` passages for each text, by score, then by descending id, exactly so at the cut as well."""
        return self._search.search(texts, k)


WORDS_FILE = "words.json"


class _Impacts:
    """Rows of Anserini's JsonVectorCollection: a word's impact is its frequency."""

    def __init__(self, stopped: Sequence[str], folder: Path) -> None:
        self._stopped, self._folder = stopped, folder

    def row(self, passage: Passage) -> dict[str, Any] | None:
        try:
            impacts = impacts_of(passage)
        except ValueError as error:
            raise RecordError(f"passage '{passage.id}'", str(error)) from error
        return {"id": passage.id, "contents": "", "vector": impacts} if impacts else None

    def configure(self, arguments: Any) -> None:
        arguments.collectionClass = "JsonVectorCollection"
        arguments.impact = True
        arguments.pretokenized = True

    def save(self) -> None:
        words = {"parted": "basic", "stopwords": list(self._stopped)}
        (self._folder / WORDS_FILE).write_bytes(orjson.dumps(words, option=orjson.OPT_INDENT_2))


class _Sums:
    """How such an index is searched: words as they come, scores as sums."""

    def similarity(self) -> Any:
        return java("io.anserini.search.similarity.ImpactSimilarity")()

    def analyzer(self) -> tuple[Any, bool]:
        return java("org.apache.lucene.analysis.core.WhitespaceAnalyzer")(), False

    def to_query(self, searcher: Searcher) -> Any:
        return bag_of_words(searcher)


class ImpactIndex:
    """The files of Lucene, `ids.txt` in its numbering, and `words.json`: the words of questions that do not count.

    Questions are cut as BERT's basic tokenizer does, in lower case; a word twice counts once (methods: section 3.4).
    Scores are whole numbers.
    """

    reads: ClassVar[Literal["passages"]] = "passages"
    tunable: ClassVar[bool] = False
    software = staticmethod(LuceneIndex.software)

    def __init__(self, search: LuceneSearch, stopped: frozenset[str]) -> None:
        self._search, self._stopped = search, stopped

    @classmethod
    def build(
        cls, passages: Iterable[Passage], folder: Path, settings: BM25IndexSettings, *, progress: Progress | None = None
    ) -> int:
        """Index the `impacts` of every passage; the number of passages in the index, those without a word left out.

        Raises UsageError for settings of indexes of texts, RecordError for a passage without impacts or with what is
        none, naming its id; other faults as `write_index`.
        """
        stopped = _choose_stopwords(settings)
        feed = _Impacts(stopped, folder)
        return write_index(passages, folder, lambda: feed, threads=settings.threads, progress=progress)

    @classmethod
    def open(cls, folder: Path, settings: BM25SearchSettings) -> ImpactIndex:
        """Open the index in `folder`. Raises DrtkError if there is none, UsageError for k1, b and RM3."""
        for flag, given in (("--k1", settings.k1), ("--b", settings.b), ("--rm3", settings.rm3 or None)):
            if given is not None:
                raise UsageError(f"{flag}: {folder} is an index of impacts, whose scores are plain sums")
        stopped = frozenset(map(str, read_object(folder / WORDS_FILE, stopwords=list)["stopwords"]))
        return cls(LuceneSearch(folder, _Sums(), threads=settings.threads), stopped)

    def __len__(self) -> int:
        return len(self._search)

    def search(self, texts: Sequence[str], k: int) -> list[Ranking]:
        """Up to `k` passages with a word of each text, by score, then by descending id."""
        sound = (text.encode("utf-8", "replace").decode("utf-8") for text in texts)
        return self._search.search([" ".join(question_words(text, stopped=self._stopped)) for text in sound], k)


def _choose_stopwords(settings: BM25IndexSettings) -> list[str]:
    """The words of questions that do not count, sorted: drtk's own list unless another is named."""
    if settings.stemmer not in ("default", "none"):
        raise UsageError("--stemmer: impacts belong to whole words")
    if settings.term_vectors:
        raise UsageError("--term-vectors: only for --type bm25")
    if settings.stopwords == "lucene":
        return sorted(LUCENE_STOPWORDS)
    if settings.stopwords == "none" or (settings.stopwords == "default" and settings.language.lower() != "en"):
        return []
    return sorted(function_words()) if settings.stopwords == "default" else read_stopwords(settings.stopwords)
