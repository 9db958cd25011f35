"""Align words with the word pieces of a tokenizer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.records import Passage
from drtk.text.expanded_text import added_texts
from drtk.text.tokenizers import load_tokenizer, portable
from drtk.text.words import basic_form, basic_words

Span = tuple[int, int]
_SPACES = tuple(chr(256 + byte) for byte in b" \t\n\v\f\r")  # as byte-level vocabularies write them: a space is Ġ


class Pieces(NamedTuple):
    """Word pieces of one text, special tokens apart; all three have one entry a piece.

    offsets: (begin, end) in characters; words: number of the word, as the tokenizer sees words, the piece belongs to
    """

    ids: list[int]
    offsets: list[Span]
    words: list[int]


class WordPieceTokenizer:
    """Texts to pieces by the tokenizer of a model folder or hub name, whatever their length.

    name: what `metadata.weights_tokenizer` of weighted passages holds
    Raises DrtkError where there is no tokenizer, MismatchError for one that does not say where its pieces lie.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.tokenizer = load_tokenizer(name)
        self._definition = portable(self.tokenizer, name)
        from tokenizers import Tokenizer

        self._pieces: Any = Tokenizer.from_str(self._definition)
        self._pieces.no_truncation()
        self._pieces.no_padding()

    def __call__(self, texts: Sequence[str]) -> list[Pieces]:
        """The pieces of each text."""
        return [Pieces(each.ids, each.offsets, each.word_ids) for each in self.encoded(texts)]

    def encoded(self, texts: Sequence[str]) -> list[Any]:
        """The same as the tokenizers library's own records, whose `ids`, `word_ids` and `offsets` are made when asked for."""
        return self._pieces.encode_batch(list(texts), add_special_tokens=False)

    @property
    def specials(self) -> frozenset[int]:
        """Ids of the special tokens; the one for unknown words, which stands for text, is none of them."""
        return frozenset(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}

    @property
    def largest(self) -> int:
        """The largest id a piece can have."""
        return max(self._pieces.get_vocab(with_added_tokens=True).values())

    @property
    def spaced(self) -> frozenset[int] | None:
        """Pieces of a byte-level vocabulary that begin with white space, and with that a word; None for another kind.

        There the tokenizer's own words are of no use to whole-word masking: they part a full stop from the word it is
        written to, which the space marker does not (methods: section 4.1).
        """
        import orjson

        kinds = orjson.loads(self._definition).get("pre_tokenizer") or {}
        if not any(each.get("type") == "ByteLevel" for each in (kinds, *kinds.get("pretokenizers", ()))):
            return None
        vocabulary = self._pieces.get_vocab(with_added_tokens=False)
        return frozenset(number for piece, number in vocabulary.items() if piece.startswith(_SPACES))

    def check(self, name: str) -> None:
        """Raise MismatchError unless pieces of the tokenizer `name` are pieces of this one, whatever the two are called."""
        if name != self.name and WordPieceTokenizer(name).identity != self.identity:
            raise MismatchError(f"weights were made for the word pieces of {name}, not for those of {self.name}")

    @property
    def identity(self) -> tuple[Any, ...]:
        """What decides the pieces: vocabulary, normaliser and the split into words; lengths and padding do not."""
        import orjson

        parts = orjson.loads(self._definition)
        return tuple(parts.get(part) for part in ("model", "normalizer", "pre_tokenizer"))

    @property
    def digest(self) -> str:
        """blake2b (16 bytes, hexadecimal) of all that decides the pieces, tokens that were added included."""
        import orjson

        added = orjson.loads(self._definition).get("added_tokens")
        return hashlib.blake2b(orjson.dumps([*self.identity, added]), digest_size=16).hexdigest()


def owners(pieces: Pieces, words: Sequence[Span]) -> list[int]:
    """The number of the word in which each piece begins, -1 for a piece in none; by characters.

    words: spans in order that do not overlap, of any way to part a text into words
    """
    found = []
    at = 0
    for begin, end in pieces.offsets:
        while at < len(words) and words[at][1] <= begin:
            at += 1
        inside = at < len(words) and words[at][0] < max(end, begin + 1)  # a byte-level piece may begin with the space
        found.append(at if inside else -1)
    return found


WordSplit = Literal["treebank", "pieces", "plain", "basic"]
Splitter = Callable[[str, Pieces], list[Span]]
_PLAIN = re.compile(r"[^\W_]+(?:['’][^\W_]+)*|[^\w\s]|_")


def splitter(name: WordSplit) -> Splitter:
    """The function from a text and its pieces to the spans of its words, in order; punctuation marks are words,
    except for "basic".
    """
    return {"treebank": treebank, "pieces": of_pieces, "plain": plain, "basic": basic}[name]


def treebank(text: str, pieces: Pieces) -> list[Span]:
    """Words as nltk's word tokeniser sees them, within sentences that Punkt finds by its rules alone.

    No learnt abbreviations: the same on every machine, whether nltk's data is installed or not.
    """
    words, sentences = _nltk()
    found: list[Span] = []
    for begin, end in sentences.span_tokenize(text):
        try:
            found += [(begin + start, begin + stop) for start, stop in words.span_tokenize(text[begin:end])]
        except ValueError:  # it lost its place among unusual quotation marks
            found += [(begin + start, begin + stop) for start, stop in plain(text[begin:end], pieces)]
    return found


@cache
def _nltk() -> tuple[Any, Any]:
    from nltk.tokenize import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    return NLTKWordTokenizer(), PunktSentenceTokenizer()


def of_pieces(text: str, pieces: Pieces) -> list[Span]:
    """Words as the tokenizer sees them: all pieces of one, merged."""
    found: list[Span] = []
    last = None
    for (begin, end), word in zip(pieces.offsets, pieces.words, strict=True):
        while begin < end and text[begin].isspace():
            begin += 1
        if begin == end:
            continue
        if word == last and found:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif not found or begin >= found[-1][1]:
            found.append((begin, end))
        last = word
    return found


def plain(text: str, pieces: Pieces) -> list[Span]:
    """Runs of letters and digits of every script, apostrophes within them kept; and every other mark by itself."""
    return [match.span() for match in _PLAIN.finditer(text)]


def basic(text: str, pieces: Pieces) -> list[Span]:
    """Words as BERT's basic tokenizer parts them, marks left out: as impacts are keyed."""
    return [(word.begin, word.end) for word in basic_words(text)]


class WordPlaces(NamedTuple):
    """Word pieces, special tokens apart, and for each occurrence of a word its basic form and its first piece."""

    ids: list[int]
    words: list[str]
    heads: list[int]

    def joined(self, other: WordPlaces) -> WordPlaces:
        """These and, after them, others."""
        heads = self.heads + [head + len(self.ids) for head in other.heads]
        return WordPlaces(self.ids + other.ids, self.words + other.words, heads)

    def first(self) -> dict[str, int]:
        """The first piece of the first occurrence of each word."""
        found: dict[str, int] = {}
        for word, head in zip(self.words, self.heads, strict=True):
            found.setdefault(word, head)
        return found


def word_places(texts: Sequence[str], tokenizer: WordPieceTokenizer, split: WordSplit) -> list[WordPlaces]:
    """The words of each text that own a piece."""
    spans_of = splitter(split)
    found = []
    for text, pieces in zip(texts, tokenizer(texts), strict=True):
        spans = spans_of(text, pieces)
        words, heads = [], []
        last = -1
        for piece, owner in enumerate(owners(pieces, spans)):
            if owner > last:
                last = owner
                words.append(basic_form(text[spans[owner][0] : spans[owner][1]]))
                heads.append(piece)
        found.append(WordPlaces(pieces.ids, words, heads))
    return found


def passage_places(
    passages: Sequence[Passage],
    tokenizer: WordPieceTokenizer,
    split: WordSplit,
    *,
    title: str = "join",
    expand: Sequence[str] = (),
) -> list[WordPlaces]:
    """Titles ("join"; "none" leaves them out), texts and the texts in the fields `expand`, one after the other.

    Raises RecordError naming the passage for a field that holds no texts.
    """
    titles = word_places([passage.title if title == "join" else "" for passage in passages], tokenizer, split)
    texts = word_places([passage.text for passage in passages], tokenizer, split)
    found = [one.joined(other) for one, other in zip(titles, texts, strict=True)]
    return expanded(found, passages, tokenizer, split, expand=expand) if expand else found


def expanded(
    places: Sequence[WordPlaces],
    passages: Sequence[Passage],
    tokenizer: WordPieceTokenizer,
    split: WordSplit,
    *,
    expand: Sequence[str],
) -> list[WordPlaces]:
    """The places of each passage and, after them, those of the texts in its fields `expand`, joined by spaces.

    Raises RecordError naming the passage for a field that holds no texts.
    """
    added = [_joined(passage, expand) for passage in passages]
    return [
        one.joined(other) if other.ids else one
        for one, other in zip(places, word_places(added, tokenizer, split), strict=True)
    ]


def _joined(passage: Passage, fields: Sequence[str]) -> str:
    try:
        return " ".join(text for name in fields for text in added_texts(passage, name))
    except ValueError as error:
        raise RecordError(f"passage '{passage.id}'", str(error)) from error


def recorded_name(passage: Passage) -> str:
    """What `metadata.weights_tokenizer` of a passage says, "" where that is nothing."""
    name = (passage.metadata or {}).get("weights_tokenizer")
    return name if isinstance(name, str) else ""


class RecordedTokenizers:
    """Recorded names to tokenizers, each loaded once.

    named: the tokenizer to take in place of all; "" where there is none. A folder may have moved since.
    Raises DrtkError where it cannot be loaded.
    """

    def __init__(self, named: str = "") -> None:
        self.named = WordPieceTokenizer(named) if named else None
        self._known: dict[str, WordPieceTokenizer] = {}

    def __call__(self, recorded: str) -> WordPieceTokenizer:
        """The tokenizer to read weights with that were made with `record_arguments`.

        Raises DrtkError where that cannot be loaded and none is named in its place, MismatchError where it can and the
        named one makes other pieces.
        """
        if recorded not in self._known:
            self._known[recorded] = self._load(recorded)
        return self._known[recorded]

    def _load(self, recorded: str) -> WordPieceTokenizer:
        try:
            found = WordPieceTokenizer(recorded) if recorded else None
        except DrtkError as error:
            if self.named is None:
                raise DrtkError(f"{error}; --tokenizer NAME says where it is now") from error
            return self.named
        if self.named is not None:
            if found is not None:
                self.named.check(recorded)
            return self.named
        if found is None:
            raise DrtkError("weights without the name of their tokenizer; --tokenizer NAME says it")
        return found
