"""The word pieces of a text and where they lie in it: what weights and masks are counted by."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from drtk.errors import MismatchError
from drtk.text.tokens import load_tokenizer, portable

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
