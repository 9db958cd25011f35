"""Term weights from word counts: tf-idf, inverse frequency, idf, BM25 (docs/methods/term-weights.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import log
from typing import ClassVar

import numpy as np

from drtk.expansion.config import WeightingSettings
from drtk.expansion.term_weights.base import CollectionStatistics, SplitPassage, StatisticsKind, TermWeightingMethod
from drtk.text.word_pieces import WordSplit


def is_word(word: str) -> bool:
    """Return whether a word contains a letter or digit, unlike punctuation."""
    return any(map(str.isalnum, word))


def compute_idf(documents: int, frequency: int) -> float:
    """Return Lucene's ln(1 + (N - df + .5) / (df + .5)), which is above 0 for every word."""
    return log(1 + (documents - frequency + 0.5) / (frequency + 0.5))


class CountBasedMethod(TermWeightingMethod):
    """Base class of methods that compute weights from counts. Words missing in the collection have df = cf = 1."""

    needs: ClassVar[StatisticsKind | None] = "counts"

    def __init__(self, settings: WeightingSettings, statistics: CollectionStatistics | None, model: str | None) -> None:
        assert statistics is not None
        self._settings, self._statistics = settings, statistics
        self._average = statistics.length / max(1, statistics.documents)

    def weigh_words(
        self, split_passages: Sequence[SplitPassage], outputs: Sequence[np.ndarray]
    ) -> Iterator[Mapping[str, float]]:
        for split_passage in split_passages:
            counts = Counter(split_passage.words)
            length = sum(count for word, count in counts.items() if is_word(word))
            yield {word: self.compute_weight(word, count, length) for word, count in counts.items()}

    def compute_weight(self, word: str, count: int, length: int) -> float:
        """Return the weight of a word with `count` occurrences in a passage of `length` words."""
        raise NotImplementedError

    def _get_counts(self, word: str) -> tuple[int, int]:
        """Return the document frequency and the collection frequency of a word, each at least 1."""
        passages, occurrences = self._statistics.words.get(word, (1, 1))
        return int(passages), int(occurrences)


class TfIdf(CountBasedMethod):
    """tf-idf as in MASTER's paper, (tf / passage length) * log(N / df); 0 for punctuation."""

    def compute_weight(self, word: str, count: int, length: int) -> float:
        if not is_word(word):
            return 0.0
        return count / length * log(self._statistics.documents / self._get_counts(word)[0])


class InverseFrequency(CountBasedMethod):
    """1 / collection frequency, as in MASTER's released code; punctuation is also weighted."""

    def compute_weight(self, word: str, count: int, length: int) -> float:
        return 1 / self._get_counts(word)[1]


class Idf(CountBasedMethod):
    """Lucene's idf; 0 for punctuation."""

    split: ClassVar[WordSplit] = "plain"

    def compute_weight(self, word: str, count: int, length: int) -> float:
        return compute_idf(self._statistics.documents, self._get_counts(word)[0]) if is_word(word) else 0.0


class Bm25(CountBasedMethod):
    """Lucene's BM25 term score, idf * tf / (tf + k1 (1 - b + b length / average)); 0 for punctuation."""

    split: ClassVar[WordSplit] = "plain"

    def compute_weight(self, word: str, count: int, length: int) -> float:
        if not is_word(word):
            return 0.0
        idf = compute_idf(self._statistics.documents, self._get_counts(word)[0])
        k1, b = self._settings.k1, self._settings.b
        return idf * count / (count + k1 * (1 - b + b * length / (self._average or 1.0)))
