"""Reference implementation of answer matching, written independently from the description of the method.

Texts are tokenized character by character, without regular expressions.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence


def tokens(text: str) -> list[str]:
    """Return runs of letters, digits and marks, and other characters, except separators and control characters."""
    results: list[str] = []
    word = ""
    for character in unicodedata.normalize("NFD", text):
        group = unicodedata.category(character)[0]
        if group in "LNM":
            word += character
            continue
        if word:
            results.append(word.lower())
        word = ""
        if group not in "ZC":
            results.append(character.lower())
    if word:
        results.append(word.lower())
    return results


def contains_tokens(answer: str, text: str) -> bool:
    """Return whether the text contains the tokens of the answer as a sequence; always true for an empty answer."""
    answer_tokens, text_tokens = tokens(answer), tokens(text)
    size = len(answer_tokens)
    return any(text_tokens[start : start + size] == answer_tokens for start in range(len(text_tokens) + 1))


def matches_pattern(pattern: str, text: str) -> bool:
    """Return whether a regular expression matches the text; an invalid one matches nothing."""
    try:
        compiled = re.compile(unicodedata.normalize("NFD", pattern), re.IGNORECASE | re.MULTILINE)
    except re.error:
        return False
    return compiled.search(unicodedata.normalize("NFD", text)) is not None


def has_answer(answers: Sequence[str], text: str, *, regex: bool = False) -> bool:
    """Return whether the text contains one of the answers; empty answers are ignored."""
    for answer in answers:
        if not answer.strip():
            continue
        if matches_pattern(answer, text) if regex else contains_tokens(answer, text):
            return True
    return False


def top_k_accuracy(ranks: Sequence[int | None], k: int) -> float:
    """Return the share of questions whose first relevant passage has a rank of at most k; None: no relevant passage."""
    right = 0
    for rank in ranks:
        if rank is not None and rank <= k:
            right += 1
    return right / len(ranks)
