"""BM25 by the bm25s library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import orjson

from drtk.data.arrays import read_array
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.indexing.base import RankedIds, Ranking
from drtk.indexing.config import BM25IndexSettings, BM25SearchSettings
from drtk.indexing.words import LUCENE_STOPWORDS, read_stopwords, split_words, stem_with
from drtk.records import Passage
from drtk.runtime.integrity import read_object
from drtk.runtime.progress import Progress, detail

if TYPE_CHECKING:
    import bm25s

_WORDS, _COUNTS, _LENGTHS = "words.json", "counts.npy", "lengths.npy"


@dataclass(frozen=True, slots=True)
class _Words:
    """How texts become words; kept with the index, so that queries are cut as the passages were."""

    language: str
    stemmer: str
    stopwords: list[str]

    def cutter(self) -> Callable[[str], list[str]]:
        """The function from a text to its words."""
        stem, stopped, latin = (
            stem_with(self.stemmer, language=self.language),
            set(self.stopwords),
            self.language == "en",
        )
        return lambda text: [stem(word) for word in split_words(text, latin=latin) if word not in stopped]


class Bm25sIndex:
    """The library's files, memory-mapped; its scores are for k1 .9 and b .4.

    Others are computed at opening, in memory, from each word's count in each passage (`counts.npy`) and the passages'
    lengths: exact, and quick enough to try many.
    """

    reads: ClassVar[Literal["passages"]] = "passages"
    tunable: ClassVar[bool] = True

    def __init__(self, library: bm25s.BM25, ids: RankedIds, cut: Callable[[str], list[str]]) -> None:
        self._library, self._ids, self._cut = library, ids, cut

    @classmethod
    def build(
        cls, passages: Iterable[Passage], folder: Path, settings: BM25IndexSettings, *, progress: Progress | None = None
    ) -> int:
        """Index title and text, joined by a space, of every passage, empty ones too; their number.

        The library holds the numbers of all words in memory meanwhile. Raises DrtkError where no passage has a word,
        MismatchError where an id occurs twice, UsageError for settings of Lucene's alone.
        """
        import bm25s

        words = _choose_words(settings)
        cut = words.cutter()
        ids: list[str] = []
        texts: list[list[int]] = []
        vocabulary: dict[str, int] = {}
        for passage in passages:
            ids.append(passage.id)
            found = cut(f"{passage.title} {passage.text}")
            texts.append([vocabulary.setdefault(word, len(vocabulary)) for word in found])
            if progress is not None:
                progress.add()
        if not vocabulary:
            raise DrtkError("nothing to index: no passage with a word")
        k1, b = BM25SearchSettings().parameters()
        library = bm25s.BM25(k1=k1, b=b, method="lucene")
        library.index((texts, vocabulary), create_empty_token=False, show_progress=False)
        try:
            RankedIds.write(ids, folder)
            library.save(folder, show_progress=False)
            np.save(folder / _COUNTS, _counts(texts))
            np.save(folder / _LENGTHS, np.array([len(text) for text in texts], dtype=np.uint32))
            (folder / _WORDS).write_bytes(orjson.dumps(asdict(words), option=orjson.OPT_INDENT_2))
        except OSError as error:
            raise DrtkError(f"{error.filename or folder}: {error.strerror or error}") from error
        return len(ids)

    @classmethod
    def open(cls, folder: Path, settings: BM25SearchSettings) -> Bm25sIndex:
        """The index in `folder`.

        Raises MismatchError where the folder holds none or a part of it is missing, UsageError for RM3, which is Lucene's.
        """
        import bm25s

        if settings.rm3:
            raise UsageError("--rm3: only indexes of --type bm25 can do that")
        try:
            content = read_object(folder / _WORDS, language=str, stemmer=str, stopwords=list)
            words = _Words(content["language"], content["stemmer"], content["stopwords"])
            library = bm25s.BM25.load(folder, mmap=True, show_progress=False)
            np.dtype(library.dtype), np.dtype(library.int_dtype)
            if not all(type(number) is int for number in library.vocab_dict.values()):
                raise ValueError("its vocabulary is damaged")
            k1, b = settings.parameters()
            if (k1, b) != (library.k1, library.b):
                detail(f"bm25s: computing scores for k1 {k1:g}, b {b:g}")
                library.scores["data"] = _scores(library.scores, folder, k1=k1, b=b)
        except DrtkError:
            raise
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise MismatchError(f"{folder}: the bm25s index is incomplete or damaged: {reason}; rebuild it") from error
        ids = RankedIds(folder)
        if len(ids) != library.scores["num_docs"]:
            raise MismatchError(f"{folder}: the index is damaged: its ids and its scores do not belong together")
        return cls(library, ids, words.cutter())

    def __len__(self) -> int:
        return len(self._ids)

    def search(self, texts: Sequence[str], k: int) -> list[Ranking]:
        """Up to `k` passages with a word of each text, by score, then by descending id. A word twice counts twice."""
        return [self._search(text, k) for text in texts]

    def _search(self, text: str, k: int) -> Ranking:
        known = self._library.get_tokens_ids(self._cut(text))
        if not known or k < 1:
            return []
        scores = self._library.get_scores_from_ids(known)
        rows = np.flatnonzero(scores > 0)
        scores = scores[rows]
        if len(rows) > k:
            worst = np.partition(scores, len(rows) - k)[len(rows) - k]
            kept = scores >= worst  # all that tie with the k-th: the ids decide among them
            rows, scores = rows[kept], scores[kept]
        return self._ids.ranking(rows, scores, k)


def _choose_words(settings: BM25IndexSettings) -> _Words:
    if settings.term_vectors:
        raise UsageError("--term-vectors: only for --type bm25")
    language = settings.language.lower()
    stopwords: list[str] = []
    if settings.stopwords == "lucene":
        if language != "en":
            raise UsageError("--stopwords: lucene's list is English; name a file with one word a line")
        stopwords = sorted(LUCENE_STOPWORDS)
    elif settings.stopwords not in ("default", "none"):
        stopwords = read_stopwords(settings.stopwords)
    return _Words(language, "none" if settings.stemmer == "default" else settings.stemmer, stopwords)


def _counts(texts: list[list[int]]) -> np.ndarray:
    """How often each word stands in each passage, in the order of the library's postings: by word, then by passage."""
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    flat = np.fromiter(chain.from_iterable(texts), dtype=np.int64, count=int(lengths.sum()))
    pairs = (flat << 32) | np.repeat(np.arange(len(texts), dtype=np.int64), lengths)
    counts = np.unique(pairs, return_counts=True)[1]
    return counts.astype(np.uint16 if counts.max() < 2**16 else np.uint32)


def _scores(postings: dict[str, np.ndarray], folder: Path, *, k1: float, b: float) -> np.ndarray:
    """float32 scores of all postings for other k1 and b (methods: section 8.1)."""
    counts = read_array(folder / _COUNTS, mmap="r")
    lengths = read_array(folder / _LENGTHS)
    if len(counts) != len(postings["indices"]):
        raise MismatchError(f"{folder / _COUNTS}: does not belong to the index")
    frequencies = np.diff(postings["indptr"])
    idf = np.log(1 + (len(lengths) - frequencies + 0.5) / (frequencies + 0.5)).astype(np.float32)
    damping = k1 * (1 - b + b * lengths / lengths.mean())
    scores = np.empty(len(counts), dtype=np.float32)
    step = 10_000_000
    weights = np.repeat(idf, frequencies)
    for start in range(0, len(counts), step):
        part = slice(start, start + step)
        count = counts[part].astype(np.float64)
        scores[part] = weights[part] * (count / (count + damping[postings["indices"][part]]))
    return scores
