"""Learned impacts of words in Lucene: a passage's score is the sum of its impacts over the question's words (DeepImpact)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import orjson

from drtk.errors import RecordError, UsageError
from drtk.io.json_files import read_object
from drtk.io.progress import Progress
from drtk.records import Passage
from drtk.retrieval.base import Ranking
from drtk.retrieval.bm25_words import LUCENE_STOPWORDS, read_stopwords
from drtk.retrieval.impacts import impacts_of
from drtk.retrieval.lucene import LuceneIndex
from drtk.retrieval.lucene_build import write_index
from drtk.retrieval.lucene_jvm import java
from drtk.retrieval.lucene_queries import Searcher, bag_of_words
from drtk.retrieval.lucene_search import LuceneSearch
from drtk.settings.retrieval import BM25IndexSettings, BM25SearchSettings
from drtk.text.basic_words import function_words, question_words

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
