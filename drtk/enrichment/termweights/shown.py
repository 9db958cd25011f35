"""Weighted passages as words with their weights, for people to look at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from drtk.errors import MismatchError
from drtk.records import Passage
from drtk.text.recorded_tokenizers import RecordedTokenizers, recorded_name
from drtk.text.word_pieces import WordPieceTokenizer
from drtk.text.word_spans import of_pieces

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
        name = recorded_name(passage)
        weights = passage.extra.get("weights")
        if not isinstance(weights, list) or not (name or tokenizers.named):
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
    for begin, end in of_pieces(text, pieces):
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
