"""Does a passage contain an answer (DPR's matching), and does a prediction equal one (SQuAD's)."""

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


def answer_tokens(text: str) -> list[str]:
    """The tokens of a text in lower case, decomposed (NFD), as DPR matches them (Karpukhin 2020, its released code)."""
    return [token.lower() for token in _TOKEN.findall(unicodedata.normalize("NFD", text))]


class TokenMatch:
    """Whether a text contains one of the answers as a sequence of whole tokens.

    Answers without tokens match nothing here, where DPR's code lets an empty one match everything.
    """

    def __init__(self, answers: Iterable[str]) -> None:
        self._answers = [tokens for tokens in map(answer_tokens, answers) if tokens]
        self._needles = [[_folded(token) for token in sorted(set(answer), key=len)[::-1]] for answer in self._answers]

    def __bool__(self) -> bool:
        return bool(self._answers)

    def __call__(self, text: str) -> bool:
        # Most texts lack some token of the answer even as letters within a word: only the others are worth tokenising.
        plain = _folded(unicodedata.normalize("NFD", text))
        likely = [
            answer
            for answer, needles in zip(self._answers, self._needles, strict=True)
            if all(needle in plain for needle in needles)
        ]
        if not likely:
            return False
        tokens = answer_tokens(text)
        return any(_stands_in(answer, tokens) for answer in likely)


def _folded(text: str) -> str:
    """Lower case that a part of a text has as the whole has it: sigma alone looks at what follows."""
    return text.lower().replace("ς", "σ")


def _stands_in(answer: Sequence[str], tokens: Sequence[str]) -> bool:
    size, first = len(answer), answer[0]
    at = -1
    try:
        while True:
            at = tokens.index(first, at + 1)
            if tokens[at : at + size] == answer:
                return True
    except ValueError:
        return False


class PatternMatch:
    """Whether one of the answers, as a regular expression, is found in a text (CuratedTREC).

    Searched in the decomposed text (NFD), upper and lower case alike, ^ and $ at line ends.
    invalid: the answers that are no regular expressions; they match nothing
    """

    def __init__(self, answers: Iterable[str]) -> None:
        self._patterns: list[re.Pattern[str]] = []
        self.invalid: list[str] = []
        for answer in filter(str.strip, answers):  # a blank one would be found between any two words
            pattern = unicodedata.normalize("NFD", answer)
            try:
                with warnings.catch_warnings(action="ignore", category=FutureWarning):  # what "[[" may mean one day
                    self._patterns.append(re.compile(pattern, re.IGNORECASE | re.MULTILINE))
            except re.error:
                self.invalid.append(answer)

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def __call__(self, text: str) -> bool:
        plain = unicodedata.normalize("NFD", text)
        return any(pattern.search(plain) for pattern in self._patterns)


MATCHES: dict[str, Callable[[Iterable[str]], TokenMatch | PatternMatch]] = {
    "tokens": TokenMatch,
    "regex": PatternMatch,
}


def normalised_answer(text: str) -> str:
    """Lower case, without ASCII punctuation, without articles, white space collapsed: in this order (SQuAD)."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Iterable[str]) -> bool:
    """Whether the prediction equals one of the answers, both normalised."""
    wanted = normalised_answer(prediction)
    return any(normalised_answer(answer) == wanted for answer in answers)


def token_f1(prediction: str, answers: Iterable[str]) -> float:
    """The best F1 of the words that the prediction shares with an answer, both normalised (SQuAD); two empty ones: 1."""
    return max((_f1(normalised_answer(prediction).split(), normalised_answer(a).split()) for a in answers), default=0.0)


def _f1(predicted: Sequence[str], wanted: Sequence[str]) -> float:
    if not predicted or not wanted:
        return float(predicted == wanted)
    shared = sum((Counter(predicted) & Counter(wanted)).values())
    return 2 * shared / (len(predicted) + len(wanted))
