"""Where the sentences of a text begin and end, by nltk's Punkt."""

from __future__ import annotations

import re
from functools import cache

from drtk.text.punkt import ENGLISH_ABBREVIATIONS, PunktModel

Span = tuple[int, int]
BLOCK = 50_000  # characters looked at together; no sentence is longer
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
_WORD = re.compile(r"\S+")


class _Counts(dict[str, int]):
    """0 for what is not there, without taking it in: a defaultdict would grow with every word of the corpus."""

    def __missing__(self, word: str) -> int:
        return 0


class SentenceSplitter:
    """Punkt with the parameters of `model`."""

    def __init__(self, model: PunktModel) -> None:
        from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

        parameters = PunktParameters()
        parameters.abbrev_types = set(model.abbreviations)
        parameters.collocations = set(model.collocations)
        parameters.sent_starters = set(model.sentence_starters)
        parameters.ortho_context = _Counts(model.capitalisation)
        self._punkt = PunktSentenceTokenizer(parameters)

    def spans(self, text: str) -> list[Span]:
        """(begin, end) of each sentence, in order; white space around sentences belongs to none.

        A long text is looked at in blocks, and the last sentence of a block is looked at again with the next one.
        Punkt decides by the words around a full stop, so this gives what the whole text at once would give.
        """
        found: list[Span] = []
        begin = 0
        while begin < len(text):
            end = _block_end(text, begin)
            inside = [(begin + start, begin + stop) for start, stop in self._punkt.span_tokenize(text[begin:end])]
            if end < len(text) and len(inside) > 1:
                end = inside.pop()[0]
            found.extend(inside)
            begin = end
        return [span for span in (trimmed(text, start, stop) for start, stop in found) if span[0] < span[1]]


@cache
def plain_splitter() -> SentenceSplitter:
    """Punkt that knows common English abbreviations and nothing else: the same on every machine, whatever is installed."""
    return SentenceSplitter(PunktModel(tuple(ENGLISH_ABBREVIATIONS.split()), (), (), {}))


def plain_sentences(text: str) -> list[str]:
    """The sentences of a text by `plain_splitter`, white space made single spaces."""
    return [" ".join(text[begin:end].split()) for begin, end in plain_splitter().spans(text)]


def _block_end(text: str, begin: int) -> int:
    """The last white space within BLOCK characters of `begin`, or just there where a word is as long as that."""
    end = begin + BLOCK
    if end >= len(text):
        return len(text)
    at = max(text.rfind(" ", begin + 1, end), text.rfind("\n", begin + 1, end), text.rfind("\t", begin + 1, end))
    return at if at > begin else end


def trimmed(text: str, begin: int, end: int) -> Span:
    """The span without white space at its ends; empty where it holds nothing else."""
    while begin < end and text[begin].isspace():
        begin += 1
    while begin < end and text[end - 1].isspace():
        end -= 1
    return begin, end


def word_spans(text: str) -> list[Span]:
    """(begin, end) of each word as `str.split` sees words."""
    return [match.span() for match in _WORD.finditer(text)]


def layout(text: str, *, paragraphs: bool, keep_whitespace: bool) -> tuple[str, list[Span]]:
    """The text that passages are cut from, and the spans of it within which sentences lie.

    paragraphs: a blank line parts two spans; otherwise there is one.
    keep_whitespace: the text as it is; otherwise with every run of white space made one space, and none at the ends.
    """
    pieces: list[Span] = []
    begin = 0
    for gap in _BLANK_LINE.finditer(text) if paragraphs else ():
        pieces.append((begin, gap.start()))
        begin = gap.end()
    pieces.append((begin, len(text)))
    if keep_whitespace:
        return text, [span for span in (trimmed(text, *piece) for piece in pieces) if span[0] < span[1]]
    spans: list[Span] = []
    parts: list[str] = []
    at = 0
    for start, stop in pieces:
        part = " ".join(text[start:stop].split())
        if part:
            spans.append((at, at + len(part)))
            parts.append(part)
            at += len(part) + 1
    return " ".join(parts), spans
