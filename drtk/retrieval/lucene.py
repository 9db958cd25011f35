"""BM25 by Lucene: Anserini's analysis and indexing, Lucene's search, driven from Python without a system Java."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from drtk.errors import MismatchError
from drtk.io.progress import Progress
from drtk.records import Passage
from drtk.retrieval.base import Ranking
from drtk.retrieval.lucene_analysis import Analysis
from drtk.retrieval.lucene_build import build_index
from drtk.retrieval.lucene_jvm import anserini_version, find_jar, find_java, java
from drtk.retrieval.lucene_queries import Searcher, bag_of_words, rm3
from drtk.retrieval.lucene_search import LuceneSearch
from drtk.settings.retrieval import BM25IndexSettings, BM25SearchSettings


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
