"""Show weighted passages in a terminal or as an HTML page."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from math import floor, log10
from typing import Any, NamedTuple

from markupsafe import Markup

from drtk.errors import MismatchError
from drtk.records import Passage
from drtk.runtime import pages
from drtk.runtime.progress import escape_control_characters
from drtk.text.word_pieces import RecordedTokenizers, WordPieceTokenizer, read_weights_tokenizer, split_by_pieces

Word = tuple[str, float]


class WeightedPassage(NamedTuple):
    """A passage as pieces of its title and text with their weights, 0 between words.

    top: its heaviest words in lower case, each once, the first of equals first; without punctuation
    """

    passage: Passage
    title: list[Word]
    text: list[Word]
    top: list[Word]

    @property
    def largest(self) -> float:
        """The largest weight, or 1 if all are 0."""
        return max((weight for _, weight in self.title + self.text), default=0.0) or 1.0

    def figures(self) -> list[str]:
        """Format the weights of `top` with as many decimals as give the largest three digits."""
        decimals = max(0, 2 - floor(log10(self.top[0][1]))) if self.top else 0
        return [f"{weight:.{decimals}f}" for _, weight in self.top]


def iter_weighted(passages: Iterable[Passage], *, top: int, tokenizer: str = "") -> Iterator[WeightedPassage]:
    """Yield the passages with their `top` heaviest words.

    tokenizer: use its word pieces instead of those of the recorded tokenizer
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
            title = _split(passage.title, passage.extra["title_weights"], pieces_of, passage.id)
        text = _split(passage.text, weights, pieces_of, passage.id)
        yield WeightedPassage(passage, title, text, _find_heaviest(title + text, top))


def _split(text: str, weights: Any, tokenizer: WordPieceTokenizer, id: str) -> list[Word]:
    """Return the text in pieces with their weights; a word has the largest weight of its word pieces."""
    if not isinstance(weights, list) or not all(type(weight) in (int, float) for weight in weights):
        raise MismatchError(f"passage '{id}': its weights must be a list of numbers; run drtk termweight again")
    pieces = tokenizer([text])[0]
    if len(weights) != len(pieces.ids):
        raise MismatchError(
            f"passage '{id}': {len(weights)} weights, but {tokenizer.name} makes {len(pieces.ids)} word pieces of it"
        )
    words: list[Word] = []
    at = 0
    for begin, end in split_by_pieces(text, pieces):
        inside = [
            float(weight)
            for (start, stop), weight in zip(pieces.offsets, weights, strict=True)
            if start < end and stop > begin
        ]
        words += [(text[at:begin], 0.0)] * (at < begin) + [(text[begin:end], max(inside, default=0.0))]
        at = end
    return words + [(text[at:], 0.0)] * (at < len(text))


def _find_heaviest(words: Iterable[Word], count: int) -> list[Word]:
    largest: dict[str, float] = {}
    for word, weight in words:
        if weight > 0 and any(map(str.isalnum, word)):
            key = word.lower()
            largest[key] = max(weight, largest.get(key, 0.0))
    return sorted(largest.items(), key=lambda item: -item[1])[:count]


_SHADES = (0, 230, 229, 221, 214, 208)  # xterm's 256 colors, from pale to strong; black text is legible on each
_WHITE = re.compile(r"\s+")


def format_terminal(passages: Iterable[WeightedPassage], *, color: bool) -> Iterator[str]:
    """Yield lines for each passage: id and title, the text with words shaded by weight, and the heaviest words."""
    width = max(40, shutil.get_terminal_size().columns)
    for number, each in enumerate(passages):
        if number:
            yield ""
        title = "".join(_shade(part, each.largest, color) for part in each.title)
        yield f"{escape_control_characters(each.passage.id)}  {title}".rstrip()
        yield from _wrap(each, width, color)
        if each.top:
            top = "  ".join(f"{word} {figure}" for (word, _), figure in zip(each.top, each.figures(), strict=True))
            yield from textwrap.wrap(escape_control_characters(top), width)


def _wrap(each: WeightedPassage, width: int, color: bool) -> Iterator[str]:
    """Yield the text in lines of at most `width` visible characters, broken at white space."""
    line, room = "", width
    for cluster in _iter_clusters(each.text):
        size = sum(len(text) for text, _ in cluster)
        if line and size + 1 > room:
            yield line
            line, room = "", width
        line += " " * bool(line) + "".join(_shade(part, each.largest, color) for part in cluster)
        room -= size + 1
    if line:
        yield line


def _iter_clusters(parts: Iterable[Word]) -> Iterator[list[Word]]:
    """Yield the words that are not separated by white space."""
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


def _shade(word: Word, largest: float, color: bool) -> str:
    text, weight = escape_control_characters(word[0]), word[1]
    shade = round(weight / largest * (len(_SHADES) - 1))
    return f"\x1b[30;48;5;{_SHADES[shade]}m{text}\x1b[0m" if color and shade else text


def build_page(passages: Iterable[WeightedPassage], *, title: str) -> Iterator[str]:
    """Yield the lines of an HTML page: passages with their words shaded by weight, and their heaviest words."""
    return pages.render_page(title, _page_parts(passages))


def _page_parts(passages: Iterable[WeightedPassage]) -> Iterator[Markup]:
    scale = [(f" {step / 5:.1f} ", step / 5) for step in range(6)]
    yield pages.render_paragraph(
        Markup("Share of the passage's largest weight: ") + pages.render_shaded_words(scale, 1.0), kind="words"
    )
    for each in passages:
        yield pages.render_heading(
            Markup("{} <code>{}</code>").format(pages.render_shaded_words(each.title, each.largest), each.passage.id)
        )
        yield pages.render_paragraph(pages.render_shaded_words(each.text, each.largest), kind="words")
        if each.top:
            rows = zip(each.top, each.figures(), strict=True)
            yield pages.render_bar_table((word, figure, weight / each.largest) for (word, weight), figure in rows)
