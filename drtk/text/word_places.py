"""Where the words of a text begin among its word pieces: what learned weights are read off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from drtk.errors import RecordError
from drtk.records import Passage
from drtk.text.added_texts import added_texts
from drtk.text.basic_words import basic_form
from drtk.text.word_pieces import WordPieceTokenizer, owners
from drtk.text.word_spans import WordSplit, splitter


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
