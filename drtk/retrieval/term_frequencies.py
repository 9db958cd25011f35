"""Learned weights of words as term frequencies, which any BM25 engine can index (DeepCT; methods: section 3.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from math import isfinite, sqrt
from typing import Any, Literal

from drtk.records import Passage
from drtk.text.recorded_tokenizers import RecordedTokenizers, recorded_name
from drtk.text.word_pieces import Pieces

Scale = Literal["linear", "sqrt"]
# What BM25 must be searched with on such frequencies, which reach 100 where those of texts seldom reach 5.
PARAMETERS: dict[Scale, dict[str, float]] = {"linear": {"k1": 10.0, "b": 0.9}, "sqrt": {"k1": 18.0, "b": 0.7}}
LARGEST = 65_535
_AT_ONCE = 256
Located = tuple[Passage, int]  # a passage and the line it stood on, 0 where it has none


def frequency(weight: float, scale: Scale = "linear") -> int:
    """round(100 max(weight, 0)), or with the square root of it; 0 where the word is not indexed."""
    positive = max(weight, 0.0)
    return round(100 * (sqrt(positive) if scale == "sqrt" else positive))


def word_frequencies(text: str, pieces: Pieces, weights: Sequence[float], *, scale: Scale = "linear") -> dict[str, int]:
    """Words of a text, in lower case as they are spelled there, with their frequencies; those below 1 are left out.

    weights: one a piece. A word's weight is its first piece's; of several occurrences the largest counts.
    """
    found: dict[str, int] = {}
    begin = 0
    while begin < len(pieces.ids):
        end = begin + 1
        while end < len(pieces.ids) and pieces.words[end] == pieces.words[begin]:
            end += 1
        word = text[pieces.offsets[begin][0] : pieces.offsets[end - 1][1]].strip().lower()
        count = frequency(weights[begin], scale)
        if count > found.get(word, 0) and any(map(str.isalnum, word)):
            found[word] = count
        begin = end
    return found


def weighted_passages(
    located: Iterable[Located], scale: Scale, *, forgive: Callable[[Located, str], None], tokenizer: str = ""
) -> Iterator[Passage]:
    """Passages whose text is every word as often as its frequency, and who have no title.

    Title and text are read with the tokenizer that `metadata.weights_tokenizer` names, or `tokenizer`; a word's largest
    frequency of both counts, and a title without `title_weights` is left out. `forgive` takes the passages that cannot be
    read, and what is wrong with them. Raises what `RecordedTokenizers` raises.
    """
    stream = iter(located)
    tokenizers = RecordedTokenizers(tokenizer)
    while batch := list(islice(stream, _AT_ONCE)):
        yield from _weighted(batch, scale, tokenizers, forgive)


def _weighted(
    batch: list[Located], scale: Scale, tokenizers: RecordedTokenizers, forgive: Callable[[Located, str], None]
) -> Iterator[Passage]:
    sound: list[tuple[Located, str]] = []
    for item in batch:
        try:
            sound.append((item, _tokenizer_of(item[0], known=tokenizers.named is not None)))
        except ValueError as error:
            forgive(item, str(error))
    begin = 0
    while begin < len(sound):
        name, end = sound[begin][1], begin + 1
        while end < len(sound) and sound[end][1] == name:
            end += 1
        part = [item for item, _ in sound[begin:end]]
        texts = tokenizers(name)([passage.text for passage, _ in part])
        titles = tokenizers(name)([passage.title for passage, _ in part])
        for item, text, title in zip(part, texts, titles, strict=True):
            try:
                yield _repeated(item[0], text, title, scale)
            except ValueError as error:
                forgive(item, str(error))
        begin = end


def _tokenizer_of(passage: Passage, *, known: bool) -> str:
    if "weights" not in passage.extra:
        raise ValueError("has no 'weights'; drtk termweight makes them")
    name = recorded_name(passage)
    if not name and not known:
        raise ValueError("does not say in 'metadata.weights_tokenizer' which tokenizer its weights are for")
    return name


def _repeated(passage: Passage, text: Pieces, title: Pieces, scale: Scale) -> Passage:
    weights = _numbers(passage, "weights", text)
    found = word_frequencies(passage.text, text, weights, scale=scale)
    if "title_weights" in passage.extra:
        weights = _numbers(passage, "title_weights", title)
        for word, count in word_frequencies(passage.title, title, weights, scale=scale).items():
            found[word] = max(count, found.get(word, 0))
    for word, count in found.items():
        if count > LARGEST:
            raise ValueError(f"the weight of '{word}' would be a frequency of {count:,}; weights lie around 0 to 1")
    return Passage(passage.id, " ".join(" ".join([word] * count) for word, count in found.items()))


def _numbers(passage: Passage, field: str, pieces: Pieces) -> list[float]:
    values: Any = passage.extra[field]
    if not isinstance(values, list) or not all(_is_number(value) for value in values):
        raise ValueError(f"'{field}' must be a list of numbers")
    if len(values) != len(pieces.ids):
        raise ValueError(f"has {len(values):,} '{field}' for {len(pieces.ids):,} word pieces of its tokenizer")
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
