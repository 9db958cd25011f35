"""Show the term weights of passages in a terminal or as an HTML page."""

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
from drtk.text.word_pieces import RecordedTokenizers, WordPieceTokenizer, get_weights_tokenizer_name, split_by_pieces

Word = tuple[str, float]


class WeightedPassage(NamedTuple):
    """Title and text of a passage, split into (string, weight) segments; text between words has weight 0.

    top: distinct lowercase words with the largest weights, without punctuation
    """

    passage: Passage
    title: list[Word]
    text: list[Word]
    top: list[Word]

    @property
    def largest(self) -> float:
        """Largest weight in the passage; 1 if all weights are 0."""
        return max((weight for _, weight in self.title + self.text), default=0.0) or 1.0

    def format_top_weights(self) -> list[str]:
        """Format the weights of `top` with equally many decimals; the largest has at least three significant digits."""
        decimals = max(0, 2 - floor(log10(self.top[0][1]))) if self.top else 0
        return [f"{weight:.{decimals}f}" for _, weight in self.top]


def iter_weighted_passages(passages: Iterable[Passage], *, top: int, tokenizer: str = "") -> Iterator[WeightedPassage]:
    """Yield passages with their weights, and the `top` words with the largest weights.

    tokenizer: replaces the recorded tokenizer
    Raises MismatchError for a passage with missing weights or a wrong number of weights, and the errors of
    `RecordedTokenizers`.
    """
    tokenizers = RecordedTokenizers(tokenizer)
    for passage in passages:
        name = get_weights_tokenizer_name(passage)
        weights = passage.extra.get("weights")
        if not isinstance(weights, list) or not (name or tokenizers.replacement):
            raise MismatchError(f"passage '{passage.id}' has no weights or tokenizer name; run `drtk termweight` first")
        pieces_of = tokenizers(name)
        title: list[Word] = [(passage.title, 0.0)] if passage.title else []
        if "title_weights" in passage.extra:
            title = split_weighted_text(passage.title, passage.extra["title_weights"], pieces_of, passage.id)
        text = split_weighted_text(passage.text, weights, pieces_of, passage.id)
        yield WeightedPassage(passage, title, text, _find_heaviest(title + text, top))


def split_weighted_text(text: str, weights: Any, tokenizer: WordPieceTokenizer, id: str) -> list[Word]:
    """Split the text into (string, weight) segments; a word has the largest weight of its word pieces."""
    if not isinstance(weights, list) or not all(type(weight) in (int, float) for weight in weights):
        raise MismatchError(f"passage '{id}': weights must be a list of numbers; run `drtk termweight` again")
    pieces = tokenizer([text])[0]
    if len(weights) != len(pieces.ids):
        raise MismatchError(
            f"passage '{id}': has {len(weights)} weights, but {tokenizer.name} returns {len(pieces.ids)} word pieces; give the "
            "tokenizer of the weights as `tokenizer`"
        )
    words: list[Word] = []
    position = 0
    for begin, end in split_by_pieces(text, pieces):
        piece_weights = [
            float(weight)
            for (start, stop), weight in zip(pieces.offsets, weights, strict=True)
            if start < end and stop > begin
        ]
        words += [(text[position:begin], 0.0)] * (position < begin)
        words.append((text[begin:end], max(piece_weights, default=0.0)))
        position = end
    return words + [(text[position:], 0.0)] * (position < len(text))


def _find_heaviest(words: Iterable[Word], count: int) -> list[Word]:
    largest: dict[str, float] = {}
    for word, weight in words:
        if weight > 0 and any(map(str.isalnum, word)):
            key = word.lower()
            largest[key] = max(weight, largest.get(key, 0.0))
    return sorted(largest.items(), key=lambda item: -item[1])[:count]


_SHADES = (0, 230, 229, 221, 214, 208)  # xterm's 256 colors, from pale to strong; black text is legible on each
_WHITE = re.compile(r"\s+")


def format_for_terminal(passages: Iterable[WeightedPassage], *, color: bool) -> Iterator[str]:
    """Yield the lines for each passage: id and title, the text with words shaded by weight, and the top words."""
    width = max(40, shutil.get_terminal_size().columns)
    for number, weighted in enumerate(passages):
        if number:
            yield ""
        title = "".join(_shade(part, weighted.largest, color) for part in weighted.title)
        yield f"{escape_control_characters(weighted.passage.id)}  {title}".rstrip()
        yield from _wrap(weighted, width, color)
        if weighted.top:
            figures = zip(weighted.top, weighted.format_top_weights(), strict=True)
            top = "  ".join(f"{word} {figure}" for (word, _), figure in figures)
            yield from textwrap.wrap(escape_control_characters(top), width)


def _wrap(weighted: WeightedPassage, width: int, color: bool) -> Iterator[str]:
    """Yield the text in lines of at most `width` visible characters, broken at white space; longer words exceed it."""
    line, room = "", width
    for cluster in _iter_clusters(weighted.text):
        size = sum(len(text) for text, _ in cluster)
        if line and size + 1 > room:
            yield line
            line, room = "", width
        line += " " * bool(line) + "".join(_shade(part, weighted.largest, color) for part in cluster)
        room -= size + 1
    if line:
        yield line


def _iter_clusters(parts: Iterable[Word]) -> Iterator[list[Word]]:
    """Yield the lists of segments that are not separated by white space; split segments at white space."""
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
    """Yield the lines of an HTML page of passages, with words shaded by weight and a table of the top words."""
    return pages.render_page(title, _iter_page_parts(passages))


def _iter_page_parts(passages: Iterable[WeightedPassage]) -> Iterator[Markup]:
    scale = [(f" {step / 5:.1f} ", step / 5) for step in range(6)]
    yield pages.render_paragraph(
        Markup("Share of the passage's largest weight: ") + pages.render_shaded_words(scale, 1.0), kind="words"
    )
    for weighted in passages:
        yield pages.render_heading(
            Markup("{} <code>{}</code>").format(
                pages.render_shaded_words(weighted.title, weighted.largest), weighted.passage.id
            )
        )
        yield pages.render_paragraph(pages.render_shaded_words(weighted.text, weighted.largest), kind="words")
        if weighted.top:
            rows = zip(weighted.top, weighted.format_top_weights(), strict=True)
            yield pages.render_bar_table((word, figure, weight / weighted.largest) for (word, weight), figure in rows)
