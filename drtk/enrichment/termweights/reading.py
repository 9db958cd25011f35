"""A passage as word pieces and as words, and which piece belongs to which word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from drtk.records import Passage
from drtk.settings.weighting import WeightingSettings
from drtk.text.word_pieces import Pieces, WordPieceTokenizer, owners
from drtk.text.word_spans import Splitter, WordSplit, splitter
from drtk.text.words import LUCENE_STOPWORDS, read_stopwords, stem_with


class Reading(NamedTuple):
    """A passage, its title first where that is read.

    ids:    word pieces, special tokens apart: those of the title, then those of the text
    title:  how many of them are the title's
    words:  what each occurrence of a word stands for: lower-cased, stemmed; stop words left out
    owners: for each piece the number of its word among `words`; -1 where it has none
    """

    passage: Passage
    ids: list[int]
    title: int
    words: list[str]
    owners: list[int]

    def heads(self) -> list[int]:
        """The first piece of each word; every word has one."""
        found: list[int] = []
        for piece, owner in enumerate(self.owners):
            if owner == len(found):
                found.append(piece)
        return found

    def spread(self, weights: Sequence[float], how: str) -> list[float]:
        """One weight a piece from one a word: "copy" to all pieces of the word, or to its "first"."""
        if how == "copy":
            return [weights[owner] if owner >= 0 else 0.0 for owner in self.owners]
        found = [0.0] * len(self.ids)
        for piece, weight in zip(self.heads(), weights, strict=True):
            found[piece] = weight
        return found


class Reader:
    """Passages to readings. Raises UsageError for a stemmer or DrtkError for a list of stop words that is not there."""

    def __init__(self, tokenizer: WordPieceTokenizer, settings: WeightingSettings, split: WordSplit) -> None:
        self._tokenizer = tokenizer
        self._split: Splitter = splitter(split)
        self._stem: Callable[[str], str] = stem_with(settings.stemmer)
        self._stopped = _stopwords(settings.stopwords)
        self._with_title = settings.title != "none"

    def __call__(self, passages: Sequence[Passage]) -> list[Reading]:
        """The passages' readings, in order."""
        titles = [passage.title if self._with_title else "" for passage in passages]
        of_titles = self._tokenizer(titles) if any(titles) else [Pieces([], [], [])] * len(titles)
        of_texts = self._tokenizer([passage.text for passage in passages])
        return [self._read(*each) for each in zip(passages, titles, of_titles, of_texts, strict=True)]

    def _read(self, passage: Passage, title: str, of_title: Pieces, of_text: Pieces) -> Reading:
        words, owned = self._words(title, of_title)
        more, further = self._words(passage.text, of_text)
        owned += [owner + len(words) if owner >= 0 else -1 for owner in further]
        return Reading(passage, of_title.ids + of_text.ids, len(of_title.ids), words + more, owned)

    def _words(self, text: str, pieces: Pieces) -> tuple[list[str], list[int]]:
        """Words that own a piece and count, and the owner of each piece among them."""
        spans = self._split(text, pieces)
        owned = owners(pieces, spans)
        owning = set(owned)
        kept = [at in owning and text[begin:end].lower() not in self._stopped for at, (begin, end) in enumerate(spans)]
        words = [
            self._stem(text[begin:end].lower()) for (begin, end), wanted in zip(spans, kept, strict=True) if wanted
        ]
        number = [*accumulate(kept, initial=0)]  # of kept words before each
        return words, [number[owner] if owner >= 0 and kept[owner] else -1 for owner in owned]


def _stopwords(name: str) -> frozenset[str]:
    if name == "none":
        return frozenset()
    return LUCENE_STOPWORDS if name == "lucene" else frozenset(read_stopwords(name))
