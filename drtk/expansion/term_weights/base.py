"""Input, collection statistics and protocol of weighting methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import orjson

from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.expansion.config import WeightingSettings
from drtk.records import Passage
from drtk.runtime.inputs import InputTracker
from drtk.runtime.streams import name_of
from drtk.text.word_pieces import Splitter, WordPieces, WordPieceTokenizer, WordSplit, align_words, get_splitter
from drtk.text.words import LUCENE_STOPWORDS, make_stemmer, read_stopwords


class SplitPassage(NamedTuple):
    """The words of a passage and their pieces, the title's first if titles are read.

    ids:    word pieces without special tokens, of the title, then of the text
    title:  the number of pieces of the title
    words:  each occurrence of a word, lower-cased and stemmed, without stop words
    owners: for each piece the number of its word in `words`; -1 if it has none
    """

    passage: Passage
    ids: list[int]
    title: int
    words: list[str]
    owners: list[int]

    def heads(self) -> list[int]:
        """Return the first piece of each word; every word has one."""
        heads: list[int] = []
        for piece, owner in enumerate(self.owners):
            if owner == len(heads):
                heads.append(piece)
        return heads

    def spread(self, weights: Sequence[float], how: str) -> list[float]:
        """Return a weight per piece from a weight per word. how: "copy" to all pieces of the word, or to its "first"."""
        if how == "copy":
            return [weights[owner] if owner >= 0 else 0.0 for owner in self.owners]
        values = [0.0] * len(self.ids)
        for piece, weight in zip(self.heads(), weights, strict=True):
            values[piece] = weight
        return values


class PassageSplitter:
    """Split passages into words and pieces. Raises UsageError for an unknown stemmer, DrtkError for a missing stop-word file."""

    def __init__(self, tokenizer: WordPieceTokenizer, settings: WeightingSettings, split: WordSplit) -> None:
        self._tokenizer = tokenizer
        self._split: Splitter = get_splitter(split)
        self._stem: Callable[[str], str] = make_stemmer(settings.stemmer)
        self._stopwords: frozenset[str] = frozenset()
        if settings.stopwords != "none":
            is_listed = settings.stopwords == "lucene"
            self._stopwords = LUCENE_STOPWORDS if is_listed else frozenset(read_stopwords(settings.stopwords))
        self._with_title = settings.title != "none"

    def __call__(self, passages: Sequence[Passage]) -> list[SplitPassage]:
        """Return the passages' readings, in order."""
        titles = [passage.title if self._with_title else "" for passage in passages]
        of_titles = self._tokenizer(titles) if any(titles) else [WordPieces([], [], [])] * len(titles)
        of_texts = self._tokenizer([passage.text for passage in passages])
        readings = []
        for passage, title, of_title, of_text in zip(passages, titles, of_titles, of_texts, strict=True):
            words, owned = self._words(title, of_title)
            more, further = self._words(passage.text, of_text)
            owned += [owner + len(words) if owner >= 0 else -1 for owner in further]
            readings.append(SplitPassage(passage, of_title.ids + of_text.ids, len(of_title.ids), words + more, owned))
        return readings

    def _words(self, text: str, pieces: WordPieces) -> tuple[list[str], list[int]]:
        """Return the words that have a piece and are no stop words, and the number of each piece's word among them."""
        spans = self._split(text, pieces)
        owned = align_words(pieces, spans)
        owning = set(owned)
        words = [text[begin:end].lower() for begin, end in spans]
        kept = [at in owning and word not in self._stopwords for at, word in enumerate(words)]
        number = [*accumulate(kept, initial=0)]  # of kept words before each
        stems = [self._stem(word) for word, is_kept in zip(words, kept, strict=True) if is_kept]
        return stems, [number[owner] if owner >= 0 and kept[owner] else -1 for owner in owned]


Needs = Literal["counts", "attention"]
_SIZES = {"counts": 2, "attention": 1}  # numbers per word


class Statistics:
    """Sums over the passages of a collection.

    kind: "counts" (for each word the passages with it, and its occurrences) or "attention" (its saturated attention)
    made_by: the choices that decide them; only statistics of the same choices add up
    length: words of letters or digits, occurrences counted
    """

    def __init__(self, kind: str, made_by: Mapping[str, Any]) -> None:
        self.kind, self.made_by = kind, dict(made_by)
        self.documents = 0
        self.length = 0
        self.words: dict[str, list[float]] = {}

    def add(self, words: Mapping[str, Sequence[float]], *, length: int, documents: int = 1) -> None:
        """Add the numbers of one or several passages."""
        self.documents += documents
        self.length += length
        sums = self.words
        for word, values in words.items():
            known = sums.get(word)
            if known is None:
                sums[word] = [*values]
            else:
                for at, value in enumerate(values):
                    known[at] += value

    def line(self) -> bytes:
        """Return the line of a file."""
        row = {
            "statistics": self.kind,
            "made_by": self.made_by,
            "documents": self.documents,
            "length": self.length,
            "words": self.words,
        }
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def read_statistics(
    sources: Iterable[str], kind: str, made_by: Mapping[str, Any] | None, *, tracker: InputTracker
) -> Statistics:
    """Return the sum of all lines of all files.

    made_by: the choices that all lines must have; None: any, the same in all lines
    Raises RecordError for a line that holds no statistics, MismatchError for statistics of another kind or of other
    choices, DrtkError if there are none.
    """
    total: Statistics | None = None
    source = ""
    for source in sources:
        for number, line in tracker.iter_lines(source):
            if not line.strip():
                continue
            place = f"{name_of(source)}:{number}"
            row = _parse_line(line, place)
            if row["statistics"] != kind:
                raise MismatchError(f"{place}: statistics of {row['statistics']}, but this method needs {kind}")
            if made_by is None:
                made_by = row["made_by"]
            if differences := _differences(row["made_by"], made_by):
                raise MismatchError(f"{place}: was collected with {differences}")
            total = total or Statistics(kind, made_by)
            total.add(row["words"], length=row["length"], documents=row["documents"])
    if total is None or not total.documents:
        raise DrtkError(f"{name_of(source)}: holds no statistics of a passage")
    return total


def _parse_line(line: bytes, place: str) -> dict[str, Any]:
    try:
        row: dict[str, Any] = orjson.loads(line)
        size = _SIZES[row["statistics"]]
        is_complete = isinstance(row["made_by"], dict) and row["documents"] >= 0 and row["length"] >= 0
        if not is_complete or any(len(values) != size for values in row["words"].values()):
            raise ValueError
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(place, "holds no statistics; drtk termweight with `collect` writes them") from error
    return row


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    names = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    return ", ".join(f"{name} {one.get(name)}, not {other.get(name)}" for name in names)


class TermWeights(Protocol):
    """The class of a method; `drtk termweight` uses nothing else.

    needs: the kind of collection statistics that it requires, if any
    split: its word splitting, unless the user chooses another
    with_model: whether it reads passages with a model
    """

    needs: ClassVar[Needs | None]
    split: ClassVar[WordSplit]
    with_model: ClassVar[bool]

    def __init__(
        self, settings: WeightingSettings, statistics: Statistics | None, model: str | None, device: str
    ) -> None: ...

    def __call__(self, readings: Sequence[SplitPassage]) -> list[list[float]]:
        """Return for each passage a weight, at least 0, for each of its words (`SplitPassage.words`), in order."""

    def fields(self, reading: SplitPassage, weights: Sequence[float]) -> dict[str, Any]:
        """Return additional fields of the passage's record."""


class WordWeights:
    """Base of methods that give all occurrences of a word in a passage the same weight."""

    with_model: ClassVar[bool] = False

    def __call__(self, readings: Sequence[SplitPassage]) -> list[list[float]]:
        """Return a weight per occurrence."""
        return [
            [values[word] for word in reading.words]
            for reading, values in zip(readings, self.values(readings), strict=True)
        ]

    def values(self, readings: Sequence[SplitPassage]) -> Iterable[Mapping[str, float]]:
        """Return the weight of each word, for each passage."""
        raise NotImplementedError

    def fields(self, reading: SplitPassage, weights: Sequence[float]) -> dict[str, Any]:
        """Return no additional fields."""
        return {}
