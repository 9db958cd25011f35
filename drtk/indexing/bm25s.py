"""BM25 index of the bm25s library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import orjson

from drtk.data.arrays import read_array
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.indexing.base import RankedIds, Ranking
from drtk.indexing.config import BM25IndexSettings, BM25SearchSettings
from drtk.records import Passage
from drtk.runtime.integrity import read_object
from drtk.runtime.progress import log_detail
from drtk.text.languages import get_language_code
from drtk.text.words import LUCENE_STOPWORDS, make_stemmer, read_stopwords, split_words

if TYPE_CHECKING:
    import bm25s

_ANALYSIS, _COUNTS, _LENGTHS = "words.json", "counts.npy", "lengths.npy"
_POSTINGS_AT_A_TIME = 10_000_000


class Bm25sIndex:
    """Memory-mapped BM25 index of the bm25s library, with precomputed scores for k1=0.9 and b=0.4.

    For other k1 and b, opening the index computes the scores from term frequencies and passage lengths.
    """

    reads: ClassVar[Literal["passages"]] = "passages"
    tunable: ClassVar[bool] = True

    def __init__(self, library: bm25s.BM25, ids: RankedIds, analyze: Callable[[str], list[str]]) -> None:
        self._library, self._ids, self._analyze = library, ids, analyze

    @classmethod
    def build(cls, passages: Iterable[Passage], folder: Path, settings: BM25IndexSettings) -> int:
        """Index title and text of all passages, including empty passages; return the number of passages.

        The term ids of all passages must fit into memory. Raises DrtkError if no passage has a term, MismatchError for
        a duplicate id, UsageError for settings that this index type does not support.
        """
        import bm25s

        analysis = _choose_analysis(settings)
        analyze = make_analyzer(analysis)
        ids: list[str] = []
        texts: list[list[int]] = []  # term ids
        vocabulary: dict[str, int] = {}
        for passage in passages:
            ids.append(passage.id)
            terms = analyze(f"{passage.title} {passage.text}")
            texts.append([vocabulary.setdefault(term, len(vocabulary)) for term in terms])
        if not vocabulary:
            raise DrtkError("no passage contains a word to index; check the corpus")
        k1, b = BM25SearchSettings().get_parameters()
        library = bm25s.BM25(k1=k1, b=b, method="lucene")
        library.index((texts, vocabulary), create_empty_token=False, show_progress=False)
        try:
            RankedIds.write(ids, folder)
            library.save(folder, show_progress=False)
            np.save(folder / _COUNTS, _count_terms(texts))
            np.save(folder / _LENGTHS, np.array([len(text) for text in texts], dtype=np.uint32))
            (folder / _ANALYSIS).write_bytes(orjson.dumps(analysis, option=orjson.OPT_INDENT_2))
        except OSError as error:
            raise DrtkError(f"{error.filename or folder}: {error.strerror or error}") from error
        return len(ids)

    @classmethod
    def open(cls, folder: Path, settings: BM25SearchSettings) -> Bm25sIndex:
        """Open the index in `folder`.

        Raises DrtkError for a missing or damaged file, UsageError for RM3, which only Lucene supports.
        """
        import bm25s

        if settings.rm3:
            raise UsageError("`rm3` requires an index of type bm25")
        try:
            analyze = make_analyzer(read_object(folder / _ANALYSIS, language=str, stemmer=str, stopwords=list))
            library = bm25s.BM25.load(folder, mmap=True, show_progress=False)
            if np.dtype(library.dtype).kind != "f" or np.dtype(library.int_dtype).kind not in "iu":
                raise ValueError("the score or index arrays have invalid data types")
            if not all(type(number) is int for number in library.vocab_dict.values()):
                raise ValueError("the vocabulary is damaged")
            k1, b = settings.get_parameters()
            if (k1, b) != (library.k1, library.b):
                log_detail(f"bm25s: computing scores for k1 {k1:g}, b {b:g}")
                library.scores["data"] = _compute_scores(library.scores, folder, k1=k1, b=b)
        except DrtkError:
            raise
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise MismatchError(f"{folder}: the bm25s index is incomplete or damaged: {reason}; rebuild it") from error
        ids = RankedIds(folder)
        if len(ids) != library.scores["num_docs"]:
            raise MismatchError(
                f"{folder}: the index is damaged (its number of ids differs from its number of passages); rebuild it"
            )
        return cls(library, ids, analyze)

    def __len__(self) -> int:
        return len(self._ids)

    def search(self, texts: Sequence[str], k: int) -> list[Ranking]:
        """Return the top `k` passages for each text, by score, then by descending id; repeated words count repeatedly."""
        return [self._search(text, k) for text in texts]

    def _search(self, text: str, k: int) -> Ranking:
        terms = self._library.get_tokens_ids(self._analyze(text))
        if not terms or k < 1:
            return []
        scores = self._library.get_scores_from_ids(terms)
        rows = np.flatnonzero(scores > 0)
        scores = scores[rows]
        if len(rows) > k:
            kth_score = np.partition(scores, len(rows) - k)[len(rows) - k]
            is_candidate = scores >= kth_score  # includes ties with the k-th score, which `make_ranking` orders by id
            rows, scores = rows[is_candidate], scores[is_candidate]
        return self._ids.make_ranking(rows, scores, k)


def _choose_analysis(settings: BM25IndexSettings) -> dict[str, Any]:
    """Return the analyzer settings; they are stored with the index, so that queries are analyzed in the same way."""
    if settings.term_vectors:
        raise UsageError("`term_vectors` requires an index of type bm25")
    language = get_language_code(settings.language)
    stopwords: list[str] = []
    if settings.stopwords == "lucene":
        if language != "en":
            raise UsageError("`stopwords=lucene` is a list of English words; give a file with one word per line")
        stopwords = sorted(LUCENE_STOPWORDS)
    elif settings.stopwords not in ("default", "none"):
        stopwords = read_stopwords(settings.stopwords)
    stemmer = "none" if settings.stemmer == "default" else settings.stemmer
    return {"language": language, "stemmer": stemmer, "stopwords": stopwords}


def make_analyzer(analysis: dict[str, Any]) -> Callable[[str], list[str]]:
    """Return a function that splits a text into terms. Raises UsageError if the stemmer does not support the language."""
    stem, stopwords = load_stemmer(analysis["stemmer"], analysis["language"]), set(analysis["stopwords"])
    is_english = analysis["language"] == "en"
    return lambda text: [stem(word) for word in split_words(text, latin=is_english) if word not in stopwords]


def load_stemmer(name: str, language: str) -> Callable[[str], str]:
    """Return a stemmer by name. English "porter" is Porter's revised algorithm, as in Lucene, not NLTK's default."""
    if name == "porter" and language == "en":
        from nltk.stem.porter import PorterStemmer

        return cache(PorterStemmer(mode=PorterStemmer.MARTIN_EXTENSIONS).stem)
    return make_stemmer(name, language=language)


def _count_terms(texts: list[list[int]]) -> np.ndarray:
    """Return the term frequency of each posting, ordered by term, then by passage, like the postings of bm25s."""
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    terms = np.fromiter(chain.from_iterable(texts), dtype=np.int64, count=int(lengths.sum()))
    pairs = (terms << 32) | np.repeat(np.arange(len(texts), dtype=np.int64), lengths)
    counts = np.unique(pairs, return_counts=True)[1]
    return counts.astype(np.uint16 if counts.max() < 2**16 else np.uint32)


def _compute_scores(postings: dict[str, np.ndarray], folder: Path, *, k1: float, b: float) -> np.ndarray:
    """Return the BM25 scores of all postings, float32, with the formula of docs/methods/term-weights.md."""
    counts = read_array(folder / _COUNTS, mmap="r")
    lengths = read_array(folder / _LENGTHS)
    if len(counts) != len(postings["indices"]):
        raise MismatchError(f"{folder / _COUNTS}: does not match the index; rebuild it")
    frequencies = np.diff(postings["indptr"])
    idf = np.log(1 + (len(lengths) - frequencies + 0.5) / (frequencies + 0.5)).astype(np.float32)
    length_norms = k1 * (1 - b + b * lengths / lengths.mean())
    scores = np.empty(len(counts), dtype=np.float32)
    idf_of_posting = np.repeat(idf, frequencies)
    for start in range(0, len(counts), _POSTINGS_AT_A_TIME):
        block = slice(start, start + _POSTINGS_AT_A_TIME)
        count = counts[block].astype(np.float64)
        scores[block] = idf_of_posting[block] * (count / (count + length_norms[postings["indices"][block]]))
    return scores
