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

Span = tuple[int, int]
BLOCK = 50_000  # characters split together; no sentence is longer
_KIND = "drtk punkt model"
_TRAINING_BLOCK = 1 << 18  # characters given to the trainer at once: it holds an object for each of their tokens
_LONGEST_LINE = 1 << 15  # nltk aborts a regular expression on a line after five seconds
# Blank lines, or the line end before a row of a Markdown table.
_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*|\n(?=\|)")
_WORD = re.compile(r"\S+")

# Added to every English model that is trained here, because its training text may be short. They rarely end a sentence;
# if one does, Punkt decides by the capital letter after it.
ENGLISH_ABBREVIATIONS = """
    mr mrs ms messrs dr prof rev hon gov sen rep gen col capt lt sgt st jr sr
    inc ltd corp bros dept univ assn vs viz cf etc e.g i.e al approx ca
    u.s u.k u.n e.u d.c b.c a.d a.m p.m p.s ph.d m.d b.a m.a b.sc m.sc
    fig figs eq eqs vol vols pp ed eds op cit ibid jan feb apr aug sept oct nov dec
"""


@dataclass(frozen=True)
class PunktModel:
    """The parameters of a Punkt sentence splitter for a language."""

    abbreviations: tuple[str, ...]
    collocations: tuple[tuple[str, str], ...]
    sentence_starters: tuple[str, ...]
    capitalization: dict[str, int]  # word type -> bits of the contexts in which it occurred


def load_installed_model(language: str) -> PunktModel | None:
    """Return nltk's sentence splitter for `language`; None if it is not installed. Nothing is downloaded.

    Raises DrtkError if it is damaged.
    """
    from nltk.tokenize.punkt import PunktTokenizer

    try:
        return _build_punkt_model(PunktTokenizer(language)._params)
    except LookupError:
        return None
    except (OSError, ValueError) as error:
        raise DrtkError(
            f"`language` {language}: nltk's Punkt model cannot be loaded ({error}); reinstall nltk's punkt_tab data"
        ) from error


def train_model(texts: Iterable[str], language: str) -> PunktModel:
    """Train a sentence splitter with nltk; for English, add common abbreviations."""
    from nltk.tokenize.punkt import PunktTrainer

    trainer = PunktTrainer()
    for block in _iter_blocks(texts):
        trainer.train(block, finalize=False)
    parameters = trainer.get_params()
    if language == "english":
        parameters.abbrev_types.update(ENGLISH_ABBREVIATIONS.split())
    return _build_punkt_model(parameters)


def _iter_blocks(texts: Iterable[str]) -> Iterable[str]:
    block: list[str] = []
    size = 0
    for text in texts:
        for line in text.split("\n"):
            for begin in range(0, len(line) or 1, _LONGEST_LINE):
                block.append(line[begin : begin + _LONGEST_LINE])
                size += len(block[-1]) + 1
                if size >= _TRAINING_BLOCK:
                    yield "\n".join(block)
                    block, size = [], 0
        block.append("")  # a blank line between two texts
    if block:
        yield "\n".join(block)


def _build_punkt_model(parameters: Any) -> PunktModel:
    return PunktModel(
        tuple(sorted(parameters.abbrev_types)),
        tuple(sorted(parameters.collocations)),
        tuple(sorted(parameters.sent_starters)),
        {word: parameters.ortho_context[word] for word in sorted(parameters.ortho_context)},
    )


def save_model(model: PunktModel, path: str | Path, *, replace: bool = False) -> None:
    """Write a sentence splitter as JSON. Raises DrtkError if the file has other content, unless `replace` is set."""
    content = {"kind": _KIND, **vars(model)}
    data = orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    target = Path(path)
    if target.exists() and not replace and target.read_bytes() != data:
        raise DrtkError(f"{path}: exists already; `force` replaces it")
    write_bytes(target, data)


def parse_model(data: bytes, name: str) -> PunktModel:
    """Parse the bytes of a file that `save_model` wrote. Raises DrtkError for other content.

    name: the file, for errors
    """
    try:
        content = orjson.loads(data)
        if content["kind"] != _KIND:
            raise ValueError
        return PunktModel(
            tuple(map(_check_string, content["abbreviations"])),
            tuple((_check_string(first), _check_string(second)) for first, second in content["collocations"]),
            tuple(map(_check_string, content["sentence_starters"])),
            {_check_string(word): int(bits) for word, bits in content["capitalization"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # JSONDecodeError is a ValueError
        raise DrtkError(f"{name}: not a sentence splitter; create one with `drtk chunk` and `save_punkt`") from error


def _check_string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


class _OrthographicContexts(dict[str, int]):
    """Dictionary with 0 for missing keys, which it does not add: a defaultdict would grow with every word of the corpus."""

    def __missing__(self, word: str) -> int:
        return 0


class SentenceSplitter:
    """Sentence splitter: Punkt with the parameters of `model`."""

    def __init__(self, model: PunktModel) -> None:
        from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

        parameters = PunktParameters()
        parameters.abbrev_types = set(model.abbreviations)
        parameters.collocations = set(model.collocations)
        parameters.sent_starters = set(model.sentence_starters)
        parameters.ortho_context = _OrthographicContexts(model.capitalization)
        self._punkt = PunktSentenceTokenizer(parameters)

    def find_spans(self, text: str) -> list[Span]:
        """Return (begin, end) of each sentence in characters, in order, without the white space around it."""
        # A long text is split in blocks, and the last sentence of a block is split again with the next block. Unless a
        # sentence fills a block, the result does not change, because Punkt looks only at the words around a full stop.
        spans: list[Span] = []
        begin = 0
        while begin < len(text):
            end = _find_block_end(text, begin)
            block = [(begin + start, begin + stop) for start, stop in self._punkt.span_tokenize(text[begin:end])]
            if end < len(text) and len(block) > 1:
                end = block.pop()[0]
            spans.extend(block)
            begin = end
        return [span for span in (trim_span(text, start, stop) for start, stop in spans) if span[0] < span[1]]


def split_english_sentences(text: str) -> list[str]:
    """Split an English text into sentences with collapsed white space, by a model of common abbreviations only.

    The result does not depend on whether nltk's data is installed.
    """
    return [" ".join(text[begin:end].split()) for begin, end in _load_english_splitter().find_spans(text)]


@cache
def _load_english_splitter() -> SentenceSplitter:
    return SentenceSplitter(PunktModel(tuple(ENGLISH_ABBREVIATIONS.split()), (), (), {}))


def _find_block_end(text: str, begin: int) -> int:
    """Return the end of the block that begins at `begin`.

    It is the end of the text if at most BLOCK characters are left. Otherwise it is the last white space in the next
    BLOCK characters, or their end if they have none.
    """
    end = begin + BLOCK
    if end >= len(text):
        return len(text)
    at = max(text.rfind(" ", begin + 1, end), text.rfind("\n", begin + 1, end), text.rfind("\t", begin + 1, end))
    return at if at > begin else end


def trim_span(text: str, begin: int, end: int) -> Span:
    """Return the span [begin, end) of `text` without white space at its ends; an empty span if nothing is left."""
    while begin < end and text[begin].isspace():
        begin += 1
    while begin < end and text[end - 1].isspace():
        end -= 1
    return begin, end


def find_word_spans(text: str) -> list[Span]:
    """Return (begin, end) in characters of each word of `str.split`."""
    return [match.span() for match in _WORD.finditer(text)]


def normalize_whitespace(text: str, *, paragraphs: bool, keep_whitespace: bool) -> tuple[str, list[Span]]:
    """Normalize white space; return the text and the spans to split into sentences separately.

    paragraphs: start a new span after each blank line and before each row of a Markdown table; otherwise the text is one span
    keep_whitespace: keep the text unchanged; otherwise replace each run of white space by one space
    """
    pieces: list[Span] = []
    begin = 0
    for gap in _PARAGRAPH_END.finditer(text) if paragraphs else ():
        pieces.append((begin, gap.start()))
        begin = gap.end()
    pieces.append((begin, len(text)))
    if keep_whitespace:
        return text, [span for span in (trim_span(text, *piece) for piece in pieces) if span[0] < span[1]]
    spans: list[Span] = []
    parts = [part for start, stop in pieces if (part := " ".join(text[start:stop].split()))]
    begin = 0
    for part in parts:
        spans.append((begin, begin + len(part)))
        begin += len(part) + 1
    return " ".join(parts), spans
