"""Find answers in passages (DPR's matching), and compare predictions with answers (SQuAD's exact match and F1)."""

from __future__ import annotations

import re
import string
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import regex

# A run of letters, digits and marks, or any other single character that is neither a separator nor a control.
_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)

Contains = Callable[[str], bool]


def tokenize_for_matching(text: str) -> list[str]:
    """Return the lower-case tokens of a text, decomposed (NFD), as in DPR's released code (Karpukhin 2020)."""
    return [token.lower() for token in _TOKEN.findall(unicodedata.normalize("NFD", text))]


class TokenMatcher:
    """Matcher of texts that contain one of the answers as a sequence of whole tokens.

    An answer without tokens matches nothing. In DPR's code an empty answer matches every text.
    """

    def __init__(self, answers: Iterable[str]) -> None:
        self._answers = [tokens for tokens in map(tokenize_for_matching, answers) if tokens]
        self._needles = [
            [_fold_case(token) for token in sorted(set(answer), key=len, reverse=True)] for answer in self._answers
        ]

    def __bool__(self) -> bool:
        return bool(self._answers)

    def __call__(self, text: str) -> bool:
        # Tokenize only texts that contain every token of an answer as a substring.
        plain = _fold_case(unicodedata.normalize("NFD", text))
        likely = [
            answer
            for answer, needles in zip(self._answers, self._needles, strict=True)
            if all(needle in plain for needle in needles)
        ]
        if not likely:
            return False
        tokens = tokenize_for_matching(text)
        return any(_contains_tokens(tokens, answer) for answer in likely)


def _fold_case(text: str) -> str:
    """Return `text` in lower case, with σ for the final sigma ς."""
    return text.lower().replace("ς", "σ")


def _contains_tokens(tokens: Sequence[str], answer: Sequence[str]) -> bool:
    starts = (start for start, token in enumerate(tokens) if token == answer[0])
    return any(tokens[start : start + len(answer)] == answer for start in starts)


class PatternMatcher:
    """Matcher of texts that contain a match of one of the regular expressions in `answers` (CuratedTREC).

    Text and expressions are decomposed (NFD), and case is ignored. ^ and $ also match at the start and end of lines.
    Blank answers match nothing.
    invalid: answers that are not regular expressions; they match nothing
    """

    def __init__(self, answers: Iterable[str]) -> None:
        self._patterns: list[re.Pattern[str]] = []
        self.invalid: list[str] = []
        for answer in filter(str.strip, answers):  # a blank pattern would match between any two words
            pattern = unicodedata.normalize("NFD", answer)
            try:
                with warnings.catch_warnings(action="ignore", category=FutureWarning):  # "[[" may change its meaning
                    self._patterns.append(re.compile(pattern, re.IGNORECASE | re.MULTILINE))
            except re.error:
                self.invalid.append(answer)

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def __call__(self, text: str) -> bool:
        plain = unicodedata.normalize("NFD", text)
        return any(pattern.search(plain) for pattern in self._patterns)


MATCHERS: dict[str, Callable[[Iterable[str]], TokenMatcher | PatternMatcher]] = {
    "tokens": TokenMatcher,
    "regex": PatternMatcher,
}


def normalize_answer(text: str) -> str:
    """Convert to lower case, then remove ASCII punctuation and articles, then collapse white space (SQuAD)."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def is_exact_match(prediction: str, answers: Iterable[str]) -> bool:
    """Return whether the prediction equals one of the answers after normalization."""
    return normalize_answer(prediction) in map(normalize_answer, answers)


def compute_token_f1(prediction: str, answers: Iterable[str]) -> float:
    """Return the best word F1 over the answers, after normalization (SQuAD); 1 if both are empty, 0 without answers."""
    predicted = Counter(normalize_answer(prediction).split())
    golds = [Counter(normalize_answer(answer).split()) for answer in answers]
    return max(
        (
            2 * (predicted & gold).total() / (predicted.total() + gold.total()) if predicted or gold else 1.0
            for gold in golds
        ),
        default=0.0,
    )
