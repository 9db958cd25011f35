"""Answers in texts, written a second time from the description of the methods alone.

No regular expression but those that are answers themselves: every character is asked what it is.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence


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
