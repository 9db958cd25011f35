"""What a weighting method is: its input, collection statistics, and output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import accumulate
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import orjson

from drtk.config import get_default
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.expansion.config import WeightingSettings
from drtk.expansion.term_weights import TERM_WEIGHTS
from drtk.records import Passage
from drtk.runtime.inputs import Intake
from drtk.runtime.streams import name_of
from drtk.text.word_pieces import Pieces, Splitter, WordPieceTokenizer, WordSplit, find_words, get_splitter
from drtk.text.words import LUCENE_STOPWORDS, make_stemmer, read_stopwords


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
        self._split: Splitter = get_splitter(split)
        self._stem: Callable[[str], str] = make_stemmer(settings.stemmer)
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
        owned = find_words(pieces, spans)
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


Sums = dict[str, list[float]]
KINDS = {"counts": 2, "attention": 1}  # numbers a word


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
        self.words: Sums = {}

    def add(self, words: Mapping[str, Sequence[float]], *, length: int, documents: int = 1) -> None:
        """Add what was found of words in a passage, or in several."""
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
        """As a line of a file."""
        row = {
            "statistics": self.kind,
            "made_by": self.made_by,
            "documents": self.documents,
            "length": self.length,
            "words": self.words,
        }
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def read_statistics(
    sources: Iterable[str], kind: str, check: Callable[[Mapping[str, Any], str], None], *, intake: Intake
) -> Statistics:
    """The sum of all lines of all files.

    check: raises where the choices of a line, at a place, are not those wanted
    Raises RecordError for what is no line of statistics, MismatchError for statistics of another kind,
    DrtkError where there is none.
    """
    total: Statistics | None = None
    source = ""
    for source in sources:
        for number, line in intake.lines(source):
            if not line.strip():
                continue
            place = f"{name_of(source)}:{number}"
            row = _row(line, place)
            if row["statistics"] != kind:
                raise MismatchError(f"{place}: statistics of {row['statistics']}, but this method needs {kind}")
            if total is None:
                check(row["made_by"], place)
                total = Statistics(kind, row["made_by"])
            elif row["made_by"] != total.made_by:
                raise MismatchError(f"{place}: was collected with {_differences(row['made_by'], total.made_by)}")
            total.add(row["words"], length=row["length"], documents=row["documents"])
    if total is None or not total.documents:
        raise DrtkError(f"{name_of(source)}: holds no statistics of a passage")
    return total


def _row(line: bytes, place: str) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
        wanted = KINDS[row["statistics"]]
        whole = isinstance(row["made_by"], dict) and row["documents"] >= 0 and row["length"] >= 0
        if not whole or any(len(values) != wanted for values in row["words"].values()):
            raise ValueError
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(place, "is no line of statistics; drtk termweight --collect makes them") from error
    found: dict[str, Any] = row
    return found


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    names = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    return ", ".join(f"{name} {one.get(name)}, not {other.get(name)}" for name in names)


Needs = Literal["counts", "attention"]


class TermWeights(Protocol):
    """A method's class; `drtk termweight` uses nothing else.

    needs: the kind of statistics of the collection it must have, None where the passage tells enough
    split: what a word is, where the user does not say
    with_model: whether it reads passages with a model
    """

    needs: ClassVar[Needs | None]
    split: ClassVar[WordSplit]
    with_model: ClassVar[bool]

    def __init__(
        self, settings: WeightingSettings, statistics: Statistics | None, model: str | None, device: str
    ) -> None: ...

    def __call__(self, readings: Sequence[Reading]) -> list[list[float]]:
        """For each passage one weight, 0 or more, for each of its words (`Reading.words`), in order."""

    def fields(self, reading: Reading, weights: Sequence[float]) -> dict[str, Any]:
        """What else the passage's record shall hold."""


class OfWords:
    """Base of methods for which all occurrences of a word in a passage weigh the same."""

    with_model: ClassVar[bool] = False

    def __call__(self, readings: Sequence[Reading]) -> list[list[float]]:
        """One weight an occurrence."""
        return [
            [values[word] for word in reading.words]
            for reading, values in zip(readings, self.values(readings), strict=True)
        ]

    def values(self, readings: Sequence[Reading]) -> Iterable[Mapping[str, float]]:
        """For each passage its words and what they weigh."""
        raise NotImplementedError

    def fields(self, reading: Reading, weights: Sequence[float]) -> dict[str, Any]:
        """Nothing."""
        return {}


Work = Literal["weigh", "collect", "merge", "train"]
_SAYS = {
    "collect": "--collect writes statistics",
    "merge": "--merge joins the files of --collection",
    "train": "--train makes a model",
}


class Use(NamedTuple):
    """The methods that look at a choice, and the work it decides."""

    methods: frozenset[str]
    work: frozenset[str]


_ALL = frozenset(TERM_WEIGHTS)
_COUNTED = frozenset({"tfidf", "inv-freq", "idf", "bm25"})
_BPROP, _BM25, _DEEPIMPACT = frozenset({"bprop"}), frozenset({"bm25"}), frozenset({"deepimpact"})
_WITH_MODEL = frozenset({"bprop", "deepct", "deepimpact"})
_WEIGHING = frozenset({"weigh"})
_READING = frozenset({"weigh", "collect"})
# What decides statistics may be said to --merge as well, so that one list of options does for all.
_COUNTING = _READING | {"merge"}

SETTINGS = {
    "words": Use(_COUNTED | _BPROP, _COUNTING),
    "stemmer": Use(_COUNTED | _BPROP, _COUNTING),
    "stopwords": Use(_COUNTED | _BPROP, _COUNTING),
    "title": Use(_ALL, _COUNTING | {"train"}),
    "spread": Use(_ALL, _WEIGHING),
    "normalize": Use(_ALL, _WEIGHING),
    "k1": Use(_BM25, _WEIGHING),
    "b": Use(_BM25, _WEIGHING),
    "emit": Use(_BPROP, _COUNTING),
    "sub2word": Use(_BPROP, _COUNTING),
    "gather": Use(_BPROP, _COUNTING),
    "saturation": Use(_BPROP, _COUNTING),
    "contrast": Use(_BPROP, _WEIGHING),
    "softmax_temperature": Use(_BPROP, _WEIGHING),
    "min_words": Use(_BPROP, _WEIGHING),
    "max_length": Use(_WITH_MODEL, _COUNTING | {"train"}),
    "batch_tokens": Use(_WITH_MODEL, _COUNTING),
    "dtype": Use(_WITH_MODEL, _COUNTING),
    "expand": Use(_DEEPIMPACT, _WEIGHING | {"train"}),
    "impact_max": Use(_DEEPIMPACT, _WEIGHING),
}
OPTIONS = {
    "INPUT": _READING,
    "--tokenizer": _COUNTING,
    "--collection": _WEIGHING | {"merge"},
    "--collect": frozenset({"collect"}),
    "--merge": frozenset({"merge"}),
    "--report": _WEIGHING,
    "--bare": _WEIGHING,
    "--with": _READING,
    "--shard": _READING,
    "--runner": _READING,
    "--ray-workers": _READING,
    "--ray-address": _READING,
}


def check_settings(method: str, settings: WeightingSettings, work: Work) -> None:
    """Raise UsageError for a setting other than its default that method or work do not look at."""
    for name, flag in _chosen(settings):
        use = SETTINGS[name]
        if method in _ALL and method not in use.methods:  # a method from elsewhere may look at what it likes
            *others, last = (each for each in TERM_WEIGHTS if each in use.methods)
            raise UsageError(f"{flag}: only for --method {', '.join(others)}{' and ' * bool(others)}{last}")
        if work not in use.work:
            raise UsageError(f"{_SAYS[work]}; {flag} is for weighing")
        if settings.emit == "attention" and name in ("contrast", "min_words"):
            raise UsageError(f"{flag}: --emit attention looks at no collection")
        if settings.emit != "softmax" and name == "softmax_temperature":
            raise UsageError(f"{flag}: only with --emit softmax")


def check_options(given: Mapping[str, Any], training: Any, work: Work) -> None:
    """Raise UsageError for an option of `given` that the work does not look at, and for one of training without --train.

    given: flags with a value that is true where they were given
    """
    for flag, value in given.items():
        if value and work not in OPTIONS[flag]:
            raise UsageError(f"{_SAYS[work]}; {flag} is for weighing")
    for _, flag in _chosen(training):
        if work != "train":
            raise UsageError(f"{flag}: only with --train")


def _chosen(settings: Any) -> Iterator[tuple[str, str]]:
    """Names and flags of the settings that are not at their default."""
    for item in fields(settings):
        if getattr(settings, item.name) != get_default(item):
            yield item.name, item.metadata.get("flag") or "--" + item.name.replace("_", "-")


MAX_LENGTH = {
    "deepct": 128,
    "deepimpact": 300,
}  # of the input, in tokens, by trained method (DeepCT's and DeepImpact's papers)


def check_method(method: str) -> None:
    """Raise UsageError for a method that is not trained."""
    if method not in MAX_LENGTH:
        raise UsageError(f"`train`: `method` {method} is not trained; {' and '.join(MAX_LENGTH)} are")
