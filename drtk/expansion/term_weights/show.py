"""Show weighted passages in a terminal or as an HTML page."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from html import escape
from math import floor, log10
from typing import Any, NamedTuple

from drtk.errors import MismatchError
from drtk.records import Passage
from drtk.runtime.progress import printable
from drtk.text.word_pieces import RecordedTokenizers, WordPieceTokenizer, read_weights_tokenizer, split_by_pieces

Word = tuple[str, float]


class Weighted(NamedTuple):
    """A passage in parts: stretches of its text with what they weigh, 0 between words; the title's, then the text's.

    top: its heaviest words in lower case, each once, the first of equals first; marks are none
    """

    passage: Passage
    title: list[Word]
    text: list[Word]
    top: list[Word]

    @property
    def heaviest(self) -> float:
        """The largest weight, at least some."""
        return max((weight for _, weight in self.title + self.text), default=0.0) or 1.0


def weighted(passages: Iterable[Passage], *, top: int, tokenizer: str = "") -> Iterator[Weighted]:
    """The passages in parts; `top` heaviest words of each.

    tokenizer: whose word pieces the weights are for, in place of what the passages say
    Raises MismatchError for a passage without weights, or with another number of them than its text has word pieces,
    and what `RecordedTokenizers` raises.
    """
    tokenizers = RecordedTokenizers(tokenizer)
    for passage in passages:
        name = read_weights_tokenizer(passage)
        weights = passage.extra.get("weights")
        if not isinstance(weights, list) or not (name or tokenizers.replacement):
            raise MismatchError(f"passage '{passage.id}' has no weights; drtk termweight makes them")
        pieces_of = tokenizers(name)
        title: list[Word] = [(passage.title, 0.0)] if passage.title else []
        if "title_weights" in passage.extra:
            title = _parts(passage.title, passage.extra["title_weights"], pieces_of, passage.id)
        text = _parts(passage.text, weights, pieces_of, passage.id)
        yield Weighted(passage, title, text, _top(title + text, top))


def _parts(text: str, weights: Any, tokenizer: WordPieceTokenizer, id: str) -> list[Word]:
    """The whole text as stretches; a word weighs what the heaviest of its pieces does."""
    if not isinstance(weights, list) or not all(type(weight) in (int, float) for weight in weights):
        raise MismatchError(f"passage '{id}': its weights must be a list of numbers; run drtk termweight again")
    pieces = tokenizer([text])[0]
    if len(weights) != len(pieces.ids):
        raise MismatchError(
            f"passage '{id}': {len(weights)} weights, but {tokenizer.name} makes {len(pieces.ids)} word pieces of it"
        )
    found: list[Word] = []
    at = 0
    for begin, end in split_by_pieces(text, pieces):
        inside = [
            float(weight)
            for (start, stop), weight in zip(pieces.offsets, weights, strict=True)
            if start < end and stop > begin
        ]
        found += [(text[at:begin], 0.0)] * (at < begin) + [(text[begin:end], max(inside, default=0.0))]
        at = end
    return found + [(text[at:], 0.0)] * (at < len(text))


def _top(words: Iterable[Word], count: int) -> list[Word]:
    heaviest: dict[str, float] = {}
    for word, weight in words:
        if weight > 0 and any(map(str.isalnum, word)):  # a mark is no word to name
            key = word.lower()
            heaviest[key] = max(weight, heaviest.get(key, 0.0))
    return sorted(heaviest.items(), key=lambda item: -item[1])[:count]


_SHADES = (0, 230, 229, 221, 214, 208)  # of xterm's 256 colours, from pale to strong; black letters can be read on each
_WHITE = re.compile(r"\s+")
_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --dim: #666; --line: #d8d8d8; --page: #fff; --mark: 230, 126, 0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --dim: #a0a0a0; --line: #3a3a3a; --page: #161616;
  --mark: 190, 95, 0; } }
body { font: 16px/1.7 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 52rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 0; }
.dim, code { color: var(--dim); font-size: .9rem; } section { border-top: 1px solid var(--line); padding: 1rem 0; }
p { margin: .5rem 0; white-space: pre-wrap; } b { font-weight: inherit; border-radius: .2rem; padding: .05rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
td { padding: 0 .8rem 0 0; } td.figure { text-align: right; } td.bar { width: 12rem; } td.bar i { display: block; height: .6rem; background: rgb(var(--mark)); }
.scale b { padding: .1rem .7rem; margin-right: 2px; color: var(--ink); }
"""


def in_terminal(passages: Iterable[Weighted], *, colour: bool) -> Iterator[str]:
    """Lines for each passage: id and title, the text with words shaded by weight, and the heaviest words."""
    width = max(40, shutil.get_terminal_size().columns)
    for number, each in enumerate(passages):
        if number:
            yield ""
        yield f"{printable(each.passage.id)}  {''.join(_shaded(part, each.heaviest, colour) for part in each.title)}".rstrip()
        yield from _wrapped(each, width, colour)
        if each.top:
            heaviest = "  ".join(f"{word} {figure}" for word, figure in _figures(each))
            yield from textwrap.wrap(printable(heaviest), width)


def _figures(each: Weighted) -> list[tuple[str, str]]:
    """The heaviest words with their weights, all with as many decimals as give the first three digits: points stand in line."""
    heaviest = each.top[0][1]
    decimals = max(0, 2 - floor(log10(heaviest)))
    return [(word, f"{weight:.{decimals}f}") for word, weight in each.top]


def _wrapped(each: Weighted, width: int, colour: bool) -> Iterator[str]:
    """The text in lines of at most `width` characters where words allow it, colours not counted."""
    line, room = "", width
    for cluster in _clusters(each.text):
        size = sum(len(text) for text, _ in cluster)
        if line and size + 1 > room:
            yield line
            line, room = "", width
        line += " " * bool(line) + "".join(_shaded(part, each.heaviest, colour) for part in cluster)
        room -= size + 1
    if line:
        yield line


def _clusters(parts: Iterable[Word]) -> Iterator[list[Word]]:
    """What stands between white space."""
    cluster: list[Word] = []
    for text, weight in parts:
        for at, piece in enumerate(_WHITE.split(text)):
            if at and cluster:
                yield cluster
                cluster = []
            if piece:
                cluster.append((piece, weight))
    if cluster:
        yield cluster


def _shaded(word: Word, heaviest: float, colour: bool) -> str:
    text, weight = printable(word[0]), word[1]
    shade = round(weight / heaviest * (len(_SHADES) - 1))
    return f"\x1b[30;48;5;{_SHADES[shade]}m{text}\x1b[0m" if colour and shade else text


def as_page(passages: Iterable[Weighted], *, title: str) -> Iterator[str]:
    """Lines of the page: each passage with its words shaded, the weight shown under the pointer, and its heaviest words."""
    yield "<!DOCTYPE html>"
    yield f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
    yield f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
    yield f"<h1>{escape(title)}</h1>"
    scale = "".join(f"<b{_tint(step / 5)}>{step / 5:.1f}</b>" for step in range(6))
    yield f'<p class="dim scale">Share of the passage\'s heaviest word: {scale}</p>'
    for each in passages:
        heaviest = each.heaviest
        title = "".join(_marked(part, heaviest) for part in each.title)
        yield f"<section><h2>{title} <code>{escape(each.passage.id)}</code></h2>"
        yield f"<p>{''.join(_marked(part, heaviest) for part in each.text)}</p>"
        if each.top:
            rows = "".join(
                f'<tr><td>{escape(word)}</td><td class="figure">{figure}</td><td class="bar">'
                f'<i style="width:{weight / heaviest:.0%}"></i></td></tr>'
                for (word, weight), (_, figure) in zip(each.top, _figures(each), strict=True)
            )
            yield f"<table>{rows}</table>"
        yield "</section>"
    yield "</body></html>"


def _marked(word: Word, heaviest: float) -> str:
    text, weight = word
    return f'<b{_tint(weight / heaviest)} title="{weight:.4g}">{escape(text)}</b>' if weight > 0 else escape(text)


def _tint(share: float) -> str:
    return f' style="background:rgba(var(--mark),{share * 0.75:.2f})"'
