"""Align words with the word pieces of a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import orjson

from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.records import Passage
from drtk.runtime.streams import digest_bytes
from drtk.text.expanded_text import get_added_texts
from drtk.text.sentences import Span
from drtk.text.tokenizers import load_tokenizer, serialize_tokenizer
from drtk.text.words import normalize_word, split_basic_words

_SPACES = tuple(chr(256 + byte) for byte in b" \t\n\v\f\r")  # as written in byte-level vocabularies: a space is Ġ


class WordPieces(NamedTuple):
    """The word pieces of a text, without special tokens. Each list has one entry per piece.

    offsets: (begin, end) in characters; words: word index, as the tokenizer splits words
    """

    ids: list[int]
    offsets: list[Span]
    words: list[int]


class WordPieceTokenizer:
    """Tokenizer into word pieces, without special tokens and without truncation.

    name: a model folder or hub name; passages with weights have it as `metadata.weights_tokenizer`
    Raises DrtkError if there is no tokenizer, MismatchError for one without offsets.
    """

    def __init__(self, name: str) -> None:
        from tokenizers import Tokenizer

        self.name = name
        self.tokenizer = load_tokenizer(name)
        definition = serialize_tokenizer(self.tokenizer, name)
        self._parts: dict[str, Any] = orjson.loads(definition)
        self._pieces: Any = Tokenizer.from_str(definition)
        self._pieces.no_truncation()
        self._pieces.no_padding()

    def __call__(self, texts: Sequence[str]) -> list[WordPieces]:
        """Return the word pieces of each text."""
        return [WordPieces(encoding.ids, encoding.offsets, encoding.word_ids) for encoding in self.encode(texts)]

    def encode(self, texts: Sequence[str]) -> list[Any]:
        """Return the encodings of the tokenizers library, which compute `ids`, `word_ids` and `offsets` on access."""
        return self._pieces.encode_batch(list(texts), add_special_tokens=False)

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the special tokens, except the unknown token, which replaces text."""
        return frozenset(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}

    @property
    def max_id(self) -> int:
        """The largest token id."""
        return max(self._pieces.get_vocab(with_added_tokens=True).values())

    @property
    def space_prefixed_ids(self) -> frozenset[int] | None:
        """Ids of the pieces of a byte-level vocabulary that begin with white space; None for another kind of vocabulary.

        Whole-word masking needs them: a byte-level tokenizer splits a full stop from its word (docs/methods/masking.md).
        """
        kinds = self._parts.get("pre_tokenizer") or {}
        if not any(kind.get("type") == "ByteLevel" for kind in (kinds, *kinds.get("pretokenizers", ()))):
            return None
        vocabulary = self._pieces.get_vocab(with_added_tokens=False)
        return frozenset(number for piece, number in vocabulary.items() if piece.startswith(_SPACES))

    def check_same_pieces(self, other: WordPieceTokenizer) -> None:
        """Raise MismatchError unless `other`, the tokenizer of the term weights, produces the same word pieces."""
        if other.identity != self.identity:
            raise MismatchError(
                f"the weights are for the word pieces of {other.name}, which differ from those of {self.name}; "
                "give the tokenizer of the weights, or compute them again with `drtk termweight`"
            )

    @property
    def identity(self) -> tuple[Any, ...]:
        """The components of the tokenizer that determine the pieces: vocabulary, normalizer and pre-tokenizer."""
        return tuple(self._parts.get(part) for part in ("model", "normalizer", "pre_tokenizer"))

    @property
    def digest(self) -> str:
        """Digest (blake2b, 16 bytes, hexadecimal) of `identity` and the added tokens."""
        parts = [*self.identity, self._parts.get("added_tokens")]
        return digest_bytes(orjson.dumps(parts))


def align_words(pieces: WordPieces, words: Sequence[Span]) -> list[int]:
    """Return for each word piece the index of the first word that it overlaps; -1 for none.

    words: spans in characters, ordered and disjoint
    """
    numbers = []
    at = 0
    for begin, end in pieces.offsets:
        while at < len(words) and words[at][1] <= begin:
            at += 1
        inside = at < len(words) and words[at][0] < max(end, begin + 1)  # a byte-level piece may begin with the space
        numbers.append(at if inside else -1)
    return numbers


WordSplit = Literal["treebank", "pieces", "plain", "basic"]
Splitter = Callable[[str, WordPieces], list[Span]]
_PLAIN = re.compile(r"[^\W_]+(?:['’][^\W_]+)*|[^\w\s]|_")


def get_splitter(name: WordSplit) -> Splitter:
    """Return the function (text, word pieces) -> character spans of the words. "basic" omits punctuation."""
    return {"treebank": split_treebank, "pieces": split_by_pieces, "plain": split_plain, "basic": split_basic}[name]


def split_treebank(text: str, pieces: WordPieces) -> list[Span]:
    """Split words with nltk's word tokenizer, sentence by sentence, with an untrained Punkt model.

    The result does not depend on whether nltk's data is installed.
    """
    words, sentences = _load_nltk()
    spans: list[Span] = []
    for begin, end in sentences.span_tokenize(text):
        sentence = text[begin:end]
        try:
            word_spans = list(words.span_tokenize(sentence))
        except ValueError:  # it cannot align unusual quotation marks
            word_spans = split_plain(sentence, pieces)
        spans += [(begin + start, begin + stop) for start, stop in word_spans]
    return spans


@cache
def _load_nltk() -> tuple[Any, Any]:
    from nltk.tokenize import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    return NLTKWordTokenizer(), PunktSentenceTokenizer()


def split_by_pieces(text: str, pieces: WordPieces) -> list[Span]:
    """Return the spans of the tokenizer's own words: the pieces of a word are merged to one span."""
    spans: list[Span] = []
    last = None
    for (begin, end), word in zip(pieces.offsets, pieces.words, strict=True):
        while begin < end and text[begin].isspace():
            begin += 1
        if begin == end:
            continue
        if word == last and spans:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        elif not spans or begin >= spans[-1][1]:
            spans.append((begin, end))
        last = word
    return spans


def split_plain(text: str, pieces: WordPieces) -> list[Span]:
    """Split a text of any script into words, such as "don't", and single punctuation marks; return their spans."""
    return [match.span() for match in _PLAIN.finditer(text)]


def split_basic(text: str, pieces: WordPieces) -> list[Span]:
    """Return the spans of the words of BERT's basic tokenizer, without punctuation; suited to DeepImpact weights."""
    return [(word.begin, word.end) for word in split_basic_words(text)]


class WordPositions(NamedTuple):
    """The word pieces of a text, without special tokens, and the positions of its words.

    ids: token ids; words: normalized form of each word; heads: position in `ids` of the first piece of each word
    """

    ids: list[int]
    words: list[str]
    heads: list[int]

    def append(self, other: WordPositions) -> WordPositions:
        """Return the words of this text followed by the words of `other`."""
        heads = self.heads + [head + len(self.ids) for head in other.heads]
        return WordPositions(self.ids + other.ids, self.words + other.words, heads)

    def find_first_heads(self) -> dict[str, int]:
        """Return for each distinct word the position of the first piece of its first occurrence."""
        heads: dict[str, int] = {}
        for word, head in zip(self.words, self.heads, strict=True):
            heads.setdefault(word, head)
        return heads


def locate_words(texts: Sequence[str], tokenizer: WordPieceTokenizer, split: WordSplit) -> list[WordPositions]:
    """Return the words of each text with their positions; skip words without a piece (see `align_words`).

    split: name of a word splitter (see `get_splitter`)
    """
    split_text = get_splitter(split)
    places = []
    for text, pieces in zip(texts, tokenizer(texts), strict=True):
        spans = split_text(text, pieces)
        words, heads = [], []
        last = -1
        for piece, word in enumerate(align_words(pieces, spans)):
            if word > last:
                last = word
                words.append(normalize_word(text[spans[word][0] : spans[word][1]]))
                heads.append(piece)
        places.append(WordPositions(pieces.ids, words, heads))
    return places


def locate_passage_words(
    passages: Sequence[Passage],
    tokenizer: WordPieceTokenizer,
    split: WordSplit,
    *,
    title: str = "join",
    expand: Sequence[str] = (),
) -> list[WordPositions]:
    """Return the words of title, text and expansion fields (`expand`) of each passage, in this order.

    split: name of a word splitter (see `get_splitter`); title: "join" or "none", which drops the title

    Raises RecordError, naming the passage, for a field that does not contain texts.
    """
    titles = locate_words([passage.title if title == "join" else "" for passage in passages], tokenizer, split)
    texts = locate_words([passage.text for passage in passages], tokenizer, split)
    places = [title_words.append(text_words) for title_words, text_words in zip(titles, texts, strict=True)]
    return append_added_words(places, passages, tokenizer, split, expand=expand) if expand else places


def append_added_words(
    positions: Sequence[WordPositions],
    passages: Sequence[Passage],
    tokenizer: WordPieceTokenizer,
    split: WordSplit,
    *,
    expand: Sequence[str],
) -> list[WordPositions]:
    """Append the words of the expansion fields (`expand`) of each passage to its words (`positions`).

    Raises RecordError, naming the passage, for a field that does not contain texts.
    """
    added = []
    for passage in passages:
        try:
            added.append(" ".join(text for name in expand for text in get_added_texts(passage, name)))
        except ValueError as error:
            raise RecordError(f"passage '{passage.id}'", str(error)) from error
    return [
        words.append(added_words) if added_words.ids else words
        for words, added_words in zip(positions, locate_words(added, tokenizer, split), strict=True)
    ]


def get_weights_tokenizer_name(passage: Passage) -> str:
    """Return `metadata.weights_tokenizer` of a passage; "" if there is none."""
    name = (passage.metadata or {}).get("weights_tokenizer")
    return name if isinstance(name, str) else ""


class RecordedTokenizers:
    """Cache of the tokenizers that are recorded in weighted passages.

    replacement: a tokenizer to use instead of all recorded ones, for example after its folder was moved; "" for none
    """

    def __init__(self, replacement: str = "") -> None:
        self.replacement = WordPieceTokenizer(replacement) if replacement else None
        self._known: dict[str, WordPieceTokenizer] = {}

    def __call__(self, recorded: str) -> WordPieceTokenizer:
        """Return the tokenizer for weights that name `recorded`.

        Raises DrtkError if `recorded` is "" or cannot be loaded and there is no replacement, MismatchError if the
        replacement returns word pieces other than a recorded tokenizer that can be loaded.
        """
        if recorded not in self._known:
            try:
                tokenizer = WordPieceTokenizer(recorded) if recorded else None
            except DrtkError as error:
                if self.replacement is None:
                    raise DrtkError(f"{error}; if it was moved, set `tokenizer` to its new path") from error
                tokenizer = None
            if self.replacement is not None and tokenizer is not None:
                self.replacement.check_same_pieces(tokenizer)
            tokenizer = self.replacement or tokenizer
            if tokenizer is None:
                raise DrtkError("the term weights have no tokenizer name; set `tokenizer`")
            self._known[recorded] = tokenizer
        return self._known[recorded]
