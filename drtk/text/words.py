"""Split texts into words, stem them, and remove stop words."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from drtk.errors import DrtkError, UsageError
from drtk.text.languages import LANGUAGES

# Lucene's English stop words, which are removed for BM25 in the literature (docs/commands/index.md).
_LUCENE_STOPWORDS = """
    a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was
    will with
"""
LUCENE_STOPWORDS = frozenset(_LUCENE_STOPWORDS.split())
_CACHED_STEMS = 1 << 20
_LATIN = re.compile(r"[a-z0-9]+")
_ANY_SCRIPT = re.compile(r"[^\W_]+")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def split_words(text: str, *, latin: bool = True) -> list[str]:
    """Return the lower-case runs of letters and digits of a text.

    latin: only a-z and 0-9; otherwise letters and digits of every script
    """
    return (_LATIN if latin else _ANY_SCRIPT).findall(text.lower())


def extract_words(text: str) -> list[str]:
    """Return the lower-case words of a text in any script. Apostrophes within words are kept, normalized to '."""
    return [word.replace("’", "'") for word in _WORD.findall(text.lower())]


@cache
def load_stop_words() -> frozenset[str]:
    """Return drtk's English stop words, from stopwords.txt in this folder."""
    text = (resources.files("drtk") / "text" / "stopwords.txt").read_text(encoding="utf-8")
    return frozenset(word for line in text.splitlines() if not line.startswith("#") for word in line.split())


def read_stopwords(path: str) -> list[str]:
    """Read a stop-word file with one word per line; return the words sorted and in lower case. `#` begins a comment line.

    Raises DrtkError for a file that cannot be read.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise DrtkError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DrtkError(f"{path}: not UTF-8; save the file as UTF-8") from error
    return sorted({line.strip().lower() for line in lines if line.strip() and not line.startswith("#")})


def extract_content_words(text: str) -> list[str]:
    """Return the words of a text without stop words and single characters."""
    return [word for word in extract_words(text) if len(word) > 1 and word not in load_stop_words()]


def make_stemmer(name: str, *, language: str = "en") -> Callable[[str], str]:
    """Return a cached function that stems a word.

    name: porter (English), snowball (15 languages) or none

    Raises UsageError if there is no such stemmer for the language.
    """
    if name == "none":
        return lambda word: word
    if name == "porter":
        if language != "en":
            raise UsageError(f"`stemmer` porter supports English only, not '{language}'; use snowball or none")
        from nltk.stem.porter import PorterStemmer

        return lru_cache(_CACHED_STEMS)(PorterStemmer().stem)
    if name == "snowball":
        from nltk.stem.snowball import SnowballStemmer

        known = {code: name for code, name in LANGUAGES.items() if name in SnowballStemmer.languages}
        if language not in known:
            raise UsageError(f"`stemmer` snowball has no rules for '{language}'; choose from {', '.join(known)}")
        return lru_cache(_CACHED_STEMS)(SnowballStemmer(known[language]).stem)
    raise UsageError(f"`stemmer` '{name}' is not one of porter, snowball, none")


class Word(NamedTuple):
    """A word in lower case without accents, and its span in the text, in characters."""

    text: str
    begin: int
    end: int


def split_basic_words(text: str) -> list[Word]:
    """Split a text into words with BERT's basic tokenizer, without punctuation. Each Chinese character is a word."""
    from tokenizers import PreTokenizedString

    normalizer, parts = _load_basic_tokenizer()
    split = PreTokenizedString(text)
    split.normalize(normalizer.normalize)
    parts.pre_tokenize(split)
    splits = split.get_splits(offset_referential="original", offset_type="char")
    return [Word(word, *span) for word, span, _ in splits if any(map(str.isalnum, word))]


def extract_question_words(text: str, *, stop_words: frozenset[str] | None = None) -> list[str]:
    """Return the distinct words of a question in order, without stop words.

    stop_words: words to exclude; by default `load_stop_words_with_parts`
    """
    excluded = load_stop_words_with_parts() if stop_words is None else stop_words
    return [word for word in dict.fromkeys(word.text for word in split_basic_words(text)) if word not in excluded]


@lru_cache(1 << 20)
def normalize_word(word: str) -> str:
    """Return a word in lower case and without accents, as `split_basic_words` returns it."""
    return str(_load_basic_tokenizer()[0].normalize_str(word)).strip()


@cache
def load_stop_words_with_parts() -> frozenset[str]:
    """Return the English stop words and their parts after apostrophes, such as t, since "don't" is split into don and t."""
    return load_stop_words() | {word.split("'")[1] for word in load_stop_words() if "'" in word}


@cache
def _load_basic_tokenizer() -> tuple[Any, Any]:
    from tokenizers import normalizers, pre_tokenizers

    return normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
