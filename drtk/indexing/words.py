"""Words as BM25 without Lucene counts them: runs of letters and digits, their stems, and the words it leaves out."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from drtk.errors import DrtkError, UsageError

_STOPWORDS = """
a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was
will with
"""
LUCENE_STOPWORDS = frozenset(_STOPWORDS.split())  # Lucene's for English (methods: section 8.1)
_LATIN = re.compile(r"[a-z0-9]+")
_ANY = re.compile(r"[^\W_]+")
_SNOWBALL = {
    "ar": "arabic", "da": "danish", "de": "german", "en": "english", "es": "spanish", "fi": "finnish", "fr": "french",
    "hu": "hungarian", "it": "italian", "nl": "dutch", "no": "norwegian", "pt": "portuguese", "ro": "romanian",
    "ru": "russian", "sv": "swedish",
}  # fmt: skip


def split_words(text: str, *, latin: bool = True) -> list[str]:
    """Lower-cased words: runs of a-z and 0-9, or, where `latin` is false, runs of any alphabet's letters and digits."""
    return (_LATIN if latin else _ANY).findall(text.lower())


def stem_with(name: str, *, language: str = "en") -> Callable[[str], str]:
    """A function from a lower-cased word to its stem: "porter" (English), "snowball" (15 languages), or "none".

    It remembers what it has seen. Raises UsageError for a stemmer that does not exist, or not for this language.
    """
    if name == "none":
        return str
    if name == "porter" and language == "en":
        from nltk.stem.porter import PorterStemmer

        porter = PorterStemmer(mode=PorterStemmer.MARTIN_EXTENSIONS)  # the author's own program, which Lucene has too
        return cache(porter.stem)
    if name == "snowball" and language in _SNOWBALL:
        from nltk.stem.snowball import SnowballStemmer

        return cache(SnowballStemmer(_SNOWBALL[language]).stem)
    known = f"none; porter for en; snowball for {', '.join(_SNOWBALL)}"
    raise UsageError(f"--stemmer: there is no '{name}' for the language '{language}'; choose from {known}")


def read_stopwords(path: str) -> list[str]:
    """The words of a file, one a line, lower-cased. Raises DrtkError where it cannot be read."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DrtkError(f"--stopwords: 'lucene', 'none' or a file; {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DrtkError(f"{path}: not UTF-8") from error
    return [word.strip().lower() for word in lines if word.strip()]
