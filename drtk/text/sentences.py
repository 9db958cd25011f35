"""Split texts into sentences with nltk's Punkt."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from drtk.errors import DrtkError
from drtk.runtime.atomic import write_bytes

_KIND = "drtk punkt model"
_BLOCK = 1 << 18  # characters given to the trainer at once: it holds an object for each of their tokens
_LONGEST_LINE = 1 << 15  # nltk gives its patterns five seconds for a line

# What every English text may contain, however short the text that was trained on. None of these ends a sentence often,
# and where one does, Punkt looks at the capital that follows.
ENGLISH_ABBREVIATIONS = """
    mr mrs ms messrs dr prof rev hon gov sen rep gen col capt lt sgt st jr sr
    inc ltd corp bros dept univ assn vs viz cf etc e.g i.e al approx ca
    u.s u.k u.n e.u d.c b.c a.d a.m p.m p.s ph.d m.d b.a m.a b.sc m.sc
    fig figs eq eqs vol vols pp ed eds op cit ibid jan feb apr aug sept oct nov dec
"""


@dataclass(frozen=True)
class PunktModel:
    """What Punkt knows of a language: abbreviations, collocations, sentence starters, and how words are capitalised."""

    abbreviations: tuple[str, ...]
    collocations: tuple[tuple[str, str], ...]
    sentence_starters: tuple[str, ...]
    capitalisation: dict[str, int]  # word type -> bits of the contexts it was seen in


def installed_model(language: str) -> PunktModel | None:
    """nltk's own model of `language`, or None where nltk's data has none; nothing is downloaded."""
    from nltk.tokenize.punkt import PunktTokenizer

    try:
        return _from_parameters(PunktTokenizer(language)._params)
    except LookupError:
        return None
    except (OSError, ValueError) as error:
        raise DrtkError(f"--language {language}: {error}") from error


def train_model(texts: Iterable[str], language: str) -> PunktModel:
    """A model learnt from `texts` by nltk's trainer; for English, common abbreviations are known beforehand."""
    from nltk.tokenize.punkt import PunktTrainer

    trainer = PunktTrainer()
    for block in _blocks(texts):
        trainer.train(block, finalize=False)
    parameters = trainer.get_params()
    if language == "english":
        parameters.abbrev_types.update(ENGLISH_ABBREVIATIONS.split())
    return _from_parameters(parameters)


def _blocks(texts: Iterable[str]) -> Iterable[str]:
    block: list[str] = []
    size = 0
    for text in texts:
        for line in text.split("\n"):
            for begin in range(0, len(line) or 1, _LONGEST_LINE):
                block.append(line[begin : begin + _LONGEST_LINE])
                size += len(block[-1]) + 1
                if size >= _BLOCK:
                    yield "\n".join(block)
                    block, size = [], 0
        block.append("")  # a blank line between two texts
    if block:
        yield "\n".join(block)


def _from_parameters(parameters: Any) -> PunktModel:
    return PunktModel(
        tuple(sorted(parameters.abbrev_types)),
        tuple(sorted(parameters.collocations)),
        tuple(sorted(parameters.sent_starters)),
        {word: parameters.ortho_context[word] for word in sorted(parameters.ortho_context)},
    )


def save_model(model: PunktModel, path: str | Path, *, replace: bool = False) -> None:
    """Write a model as JSON. Raises DrtkError where the file holds something else, unless it may be replaced."""
    content = {
        "kind": _KIND,
        "abbreviations": model.abbreviations,
        "collocations": model.collocations,
        "sentence_starters": model.sentence_starters,
        "capitalisation": model.capitalisation,
    }
    data = orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    target = Path(path)
    try:
        if target.exists() and not replace and target.read_bytes() != data:
            raise DrtkError(f"{path}: exists already; --force replaces it")
        write_bytes(target, data)
    except OSError as error:
        raise DrtkError(f"{path}: {error.strerror}") from error


def parse_model(data: bytes, name: str) -> PunktModel:
    """The model in the bytes of a file that `save_model` wrote. Raises DrtkError for anything else."""
    try:
        content = orjson.loads(data)
        if content["kind"] != _KIND:
            raise DrtkError(f"{name}: is not a sentence model; chunk --save-punkt makes one")
        return PunktModel(
            tuple(map(_word, content["abbreviations"])),
            tuple((_word(first), _word(second)) for first, second in content["collocations"]),
            tuple(map(_word, content["sentence_starters"])),
            {_word(word): int(bits) for word, bits in content["capitalisation"].items()},
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DrtkError(f"{name}: is not a sentence model; chunk --save-punkt makes one") from error


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a word must be a string")
    return value


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
