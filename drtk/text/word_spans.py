"""Ways to part a text into words, by name; each gives spans, so that words and word pieces can be brought together."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

from drtk.text.basic_words import basic_words
from drtk.text.word_pieces import Pieces, Span

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
