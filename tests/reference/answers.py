"""Answers in texts and answers of readers, written a second time from the description of the methods alone.

No regular expression but those that are answers themselves: every character is asked what it is.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence

ARTICLES = ("a", "an", "the")


def tokens(text: str) -> list[str]:
    """Runs of letters, digits and marks, and every other character by itself that is no separator and no control."""
    found: list[str] = []
    word = ""
    for character in unicodedata.normalize("NFD", text):
        group = unicodedata.category(character)[0]
        if group in "LNM":
            word += character
            continue
        if word:
            found.append(word.lower())
        word = ""
        if group not in "ZC":
            found.append(character.lower())
    if word:
        found.append(word.lower())
    return found


def stands_in(answer: str, text: str) -> bool:
    """Whether the answer's tokens come one after the other in the text; those of an empty answer always do."""
    wanted, given = tokens(answer), tokens(text)
    return any(given[start : start + len(wanted)] == wanted for start in range(len(given) + 1))


def is_found(pattern: str, text: str) -> bool:
    """Whether a regular expression that is an answer hits somewhere; one that is none hits nowhere."""
    try:
        compiled = re.compile(unicodedata.normalize("NFD", pattern), re.IGNORECASE | re.MULTILINE)
    except re.error:
        return False
    return compiled.search(unicodedata.normalize("NFD", text)) is not None


def has_answer(answers: Sequence[str], text: str, *, regex: bool = False) -> bool:
    """Whether one of the answers is in the text; empty ones were dropped before anybody looked."""
    for answer in answers:
        if not answer.strip():
            continue
        if is_found(answer, text) if regex else stands_in(answer, text):
            return True
    return False


def top_k_accuracy(ranks: Sequence[int | None], k: int) -> float:
    """Share of the questions whose first right passage is among the first k; no rank: there is none at all."""
    right = 0
    for rank in ranks:
        if rank is not None and rank <= k:
            right += 1
    return right / len(ranks)


def normal(answer: str) -> str:
    """Lower case, then no ASCII punctuation, then no articles, then single spaces."""
    plain = ""
    for character in answer.lower():
        if character not in string.punctuation:
            plain += character
    kept = ""
    word = ""
    for character in [*plain, " "]:
        if character.isalnum() or character == "_":
            word += character
            continue
        kept += (" " if word in ARTICLES else word) + character
        word = ""
    return " ".join(kept.split())


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """1 where the prediction is one of the gold answers, both normalized."""
    best = 0.0
    for gold in golds:
        if normal(prediction) == normal(gold):
            best = 1.0
    return best
