"""Words of a text, their stems, and the words that say nothing about it."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Any

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


def words(text: str) -> list[str]:
    """The words of a text in lower case: runs of letters and digits, an apostrophe within a word kept (as ')."""
    return [word.replace("’", "'") for word in _WORD.findall(text.lower())]


@cache
def stop_words() -> frozenset[str]:
    """English function words: the file stopwords.txt beside this module."""
    text = (resources.files("drtk") / "text" / "stopwords.txt").read_text(encoding="utf-8")
    return frozenset(word for line in text.splitlines() if not line.startswith("#") for word in line.split())


def content_words(text: str) -> list[str]:
    """The words of a text without stop words and single characters."""
    return [word for word in words(text) if len(word) > 1 and word not in stop_words()]


def stem(word: str) -> str:
    """The Porter stem of a word, as nltk's own extension of the algorithm gives it."""
    return _stemmer().stem(word)


@cache
def _stemmer() -> Any:
    from nltk.stem.porter import PorterStemmer

    return PorterStemmer()
