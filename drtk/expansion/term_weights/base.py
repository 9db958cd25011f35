"""Interface and input of term weighting methods, and collection statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import orjson

from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.expansion.config import WeightingSettings
from drtk.records import Passage
from drtk.runtime.inputs import InputTracker
from drtk.runtime.streams import get_source_name
from drtk.text.word_pieces import Splitter, WordPieces, WordPieceTokenizer, WordSplit, align_words, get_splitter
from drtk.text.words import LUCENE_STOPWORDS, make_stemmer, read_stopwords


class SplitPassage(NamedTuple):
    """A passage split into words and word pieces. If titles are weighted, title pieces precede text pieces.

    ids: token ids of the word pieces, without special tokens
    num_title: number of word pieces of the title
    words: word occurrences, lowercased and stemmed, without stop words
    owners: for each word piece, the index of its word in `words`; -1 if it belongs to no word
    """

    passage: Passage
    ids: list[int]
    num_title: int
    words: list[str]
    owners: list[int]

    def find_first_pieces(self) -> list[int]:
        """Return for each word the index of its first word piece."""
        firsts: list[int] = []
        for piece, owner in enumerate(self.owners):
            if owner == len(firsts):
                firsts.append(piece)
        return firsts

    def spread_to_pieces(self, weights: Sequence[float], how: str) -> list[float]:
        """Return one weight per word piece, given one per word; 0 for pieces outside words.

        how: "copy" gives the weight to all pieces of a word, "first" to its first piece only
        """
        if how == "copy":
            return [weights[owner] if owner >= 0 else 0.0 for owner in self.owners]
        values = [0.0] * len(self.ids)
        for piece, weight in zip(self.find_first_pieces(), weights, strict=True):
            values[piece] = weight
        return values


class PassageSplitter:
    """Splitter of passages into words and word pieces.

    Raises UsageError for an unknown stemmer, DrtkError for a missing stop-word file.
    """

    def __init__(self, tokenizer: WordPieceTokenizer, settings: WeightingSettings, split: WordSplit) -> None:
        self._tokenizer = tokenizer
        self._split: Splitter = get_splitter(split)
        self._stem: Callable[[str], str] = make_stemmer(settings.stemmer)
        self._stopwords: frozenset[str] = frozenset()
        if settings.stopwords != "none":
            is_lucene = settings.stopwords == "lucene"
            self._stopwords = LUCENE_STOPWORDS if is_lucene else frozenset(read_stopwords(settings.stopwords))
        self._with_title = settings.title != "none"

    def __call__(self, passages: Sequence[Passage]) -> list[SplitPassage]:
        """Return the passages, split into words and word pieces, in input order."""
        titles = [passage.title if self._with_title else "" for passage in passages]
        title_pieces = self._tokenizer(titles) if any(titles) else [WordPieces([], [], [])] * len(titles)
        text_pieces = self._tokenizer([passage.text for passage in passages])
        split_passages = []
        for passage, title, of_title, of_text in zip(passages, titles, title_pieces, text_pieces, strict=True):
            words, owners = self._split_words(title, of_title)
            text_words, text_owners = self._split_words(passage.text, of_text)
            owners += [owner + len(words) if owner >= 0 else -1 for owner in text_owners]
            ids = of_title.ids + of_text.ids
            split_passages.append(SplitPassage(passage, ids, len(of_title.ids), words + text_words, owners))
        return split_passages

    def _split_words(self, text: str, pieces: WordPieces) -> tuple[list[str], list[int]]:
        """Return the words that have a word piece and are not stop words, and for each piece the index of its word, or -1."""
        spans = self._split(text, pieces)
        owners = align_words(pieces, spans)
        with_pieces = set(owners)
        words = [text[begin:end].lower() for begin, end in spans]
        is_kept = [number in with_pieces and word not in self._stopwords for number, word in enumerate(words)]
        new_number = [*accumulate(is_kept, initial=0)]
        stems = [self._stem(word) for word, keep in zip(words, is_kept, strict=True) if keep]
        return stems, [new_number[owner] if owner >= 0 and is_kept[owner] else -1 for owner in owners]


StatisticsKind = Literal["counts", "attention"]
_SIZES = {"counts": 2, "attention": 1}  # numbers per word


class CollectionStatistics:
    """Collection statistics per word.

    kind: "counts" (document frequency and collection frequency) or "attention" (summed saturated attention)
    made_by: settings that the statistics were collected with; only statistics with equal settings can be merged
    documents: number of passages in the collection
    length: number of words in the collection, without punctuation
    """

    def __init__(self, kind: str, made_by: Mapping[str, Any]) -> None:
        self.kind, self.made_by = kind, dict(made_by)
        self.documents = 0
        self.length = 0
        self.words: dict[str, list[float]] = {}

    def add(self, words: Mapping[str, Sequence[float]], *, length: int, documents: int = 1) -> None:
        """Add the statistics of one or several passages.

        words: {word: values}, added to the word's totals: [document frequency, collection frequency] for "counts", else
            [summed saturated attention]
        length: number of words in the passages
        documents: number of passages
        """
        self.documents += documents
        self.length += length
        sums = self.words
        for word, values in words.items():
            if (word_sums := sums.get(word)) is None:
                sums[word] = [*values]
                continue
            for number, value in enumerate(values):
                word_sums[number] += value

    def to_json_line(self) -> bytes:
        """Return the statistics as a JSON line."""
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
) -> CollectionStatistics:
    """Read files of collection statistics, and merge all lines.

    made_by: required settings of the statistics; None requires equal settings in all lines
    Raises RecordError for a line without statistics, MismatchError for statistics of another kind or with other settings,
    DrtkError for files without statistics.
    """
    total: CollectionStatistics | None = None
    source = ""
    for source in sources:
        for number, line in tracker.iter_lines(source):
            if not line.strip():
                continue
            place = f"{get_source_name(source)}:{number}"
            row = _parse_line(line, place)
            if row["statistics"] != kind:
                raise MismatchError(
                    f"{place}: expected '{kind}' statistics, got '{row['statistics']}'; collect them with the same `method`"
                )
            if made_by is None:
                made_by = row["made_by"]
            if differences := _describe_differences(row["made_by"], made_by):
                raise MismatchError(
                    f"{place}: statistics were collected with other settings ({differences}); collect them again with equal settings"
                )
            total = total or CollectionStatistics(kind, made_by)
            total.add(row["words"], length=row["length"], documents=row["documents"])
    if total is None or not total.documents:
        raise DrtkError(
            f"{get_source_name(source)}: contains no statistics; run `drtk termweight` with `collect` first"
        )
    return total


def _parse_line(line: bytes, place: str) -> dict[str, Any]:
    try:
        row: dict[str, Any] = orjson.loads(line)
        size = _SIZES[row["statistics"]]
        is_complete = isinstance(row["made_by"], dict) and row["documents"] >= 0 and row["length"] >= 0
        if not is_complete or any(len(values) != size for values in row["words"].values()):
            raise ValueError
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(place, "contains no statistics; run `drtk termweight` with `collect` first") from error
    return row


def _describe_differences(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    names = sorted(name for name in {*actual, *expected} if actual.get(name) != expected.get(name))
    return ", ".join(f"{name} {actual.get(name)}, not {expected.get(name)}" for name in names)


# Function that runs a model on the inputs of passages; returns a float32 array per passage, one value per word piece.
Predictor: TypeAlias = Callable[[Sequence[Any]], list[np.ndarray]]


class TermWeightingMethod:
    """Base class of term weighting methods.

    The constructor takes settings, collection statistics (None if the run needs none) and model. It does not load the
    weights of the model: worker processes compute term weights from the outputs of the predictor.
    needs: kind of collection statistics that the method requires, if any
    split: default method to split text into words
    with_model: whether the method runs a model on the passages
    """

    needs: ClassVar[StatisticsKind | None] = None
    split: ClassVar[WordSplit] = "pieces"
    with_model: ClassVar[bool] = False

    @staticmethod
    def load_predictor(settings: WeightingSettings, model: str, device: str) -> Predictor:
        """Load the model of a method with `with_model`."""
        raise NotImplementedError

    def build_inputs(self, split_passages: Sequence[SplitPassage]) -> list[Any]:
        """Return the input of the predictor for each passage; by default the word piece ids, (pieces,) int32."""
        return [np.array(split_passage.ids, dtype=np.int32) for split_passage in split_passages]

    def __call__(self, split_passages: Sequence[SplitPassage], outputs: Sequence[np.ndarray] = ()) -> list[list[float]]:
        """Return for each passage the nonnegative weights of `SplitPassage.words`; by default those of `weigh_words`.

        outputs: results of the predictor, if the method has one
        """
        return [
            [weights[word] for word in split_passage.words]
            for split_passage, weights in zip(split_passages, self.weigh_words(split_passages, outputs), strict=True)
        ]

    def weigh_words(
        self, split_passages: Sequence[SplitPassage], outputs: Sequence[np.ndarray]
    ) -> Iterable[Mapping[str, float]]:
        """Return for each passage the weight of each distinct word, for methods that do not override `__call__`."""
        raise NotImplementedError

    def build_extra_fields(self, split_passage: SplitPassage, weights: Sequence[float]) -> dict[str, Any]:
        """Return additional fields for the record of the passage; by default none."""
        return {}
