"""Words as BERT's basic tokenizer parts them: what impacts are keyed by, of passages and of questions alike."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

from drtk.text.words import stop_words


class Word(NamedTuple):
    """A word in lower case and without accents, and where it lies in the text, in characters."""

    text: str
    begin: int
    end: int


def basic_words(text: str) -> list[Word]:
    """The words of a text in order: parted at white space and punctuation, a Chinese character by itself.

    Punctuation marks are left out.
    """
    from tokenizers import PreTokenizedString

    normalizer, parts = _splitter()
    split = PreTokenizedString(text)
    split.normalize(normalizer.normalize)
    parts.pre_tokenize(split)
    found = split.get_splits(offset_referential="original", offset_type="char")
    return [Word(word, *place) for word, place, _ in found if any(map(str.isalnum, word))]


def question_words(text: str, *, stopped: frozenset[str] | None = None) -> list[str]:
    """The different words of a question in order of their first occurrence, without those of `stopped`.

    stopped: None for drtk's list of English function words and the ends of their contractions
    """
    left_out = function_words() if stopped is None else stopped
    return [word for word in dict.fromkeys(word.text for word in basic_words(text)) if word not in left_out]


@lru_cache(1 << 20)
def basic_form(word: str) -> str:
    """A word in lower case and without accents, as `basic_words` gives it."""
    found: str = _splitter()[0].normalize_str(word)
    return found.strip()


@cache
def function_words() -> frozenset[str]:
    """drtk's English stop words, and what follows the apostrophe in them: "don't" is parted into don and t."""
    return stop_words() | {word.split("'")[1] for word in stop_words() if "'" in word}


@cache
def _splitter() -> tuple[Any, Any]:
    from tokenizers import normalizers, pre_tokenizers

    return normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
