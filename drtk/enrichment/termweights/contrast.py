"""B-PROP's contrastive term distribution (methods: section 3.1, steps C to H), as functions of what words weigh.

A distribution is a mapping of words; all of them are of one passage unless the name says collection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp, log2, sqrt
from typing import Literal

Saturation = Literal["ratio", "sqrt", "sigmoid"]
Contrast = Literal["cross-entropy", "difference"]
_LARGEST = 100.0  # the released code's ceiling of a score
FEWEST_WORDS = 10  # of a passage with fewer alphabetic ones, attention tells too little: its words weigh the same


def gathered(words: Iterable[tuple[str, float]], *, by: Literal["sum", "max"] = "sum") -> dict[str, float]:
    """Attention of each word from that of its occurrences (step C)."""
    found: dict[str, float] = {}
    for word, attention in words:
        known = found.get(word)
        found[word] = attention if known is None else known + attention if by == "sum" else max(known, attention)
    return found


def saturated(attention: float, kind: Saturation) -> float:
    """Step D: v / (v + .01), the square root of v, or a sigmoid around .02."""
    if kind == "ratio":
        return attention / (attention + 0.01)
    if kind == "sqrt":
        return sqrt(attention)
    return 1 / (1 + exp(-200 * (attention - 0.02)))


def normalised(values: Mapping[str, float]) -> dict[str, float]:
    """Brought to a sum of 1 (step E, and of the collection step F); all 0 where they are."""
    total = sum(values.values())
    return {word: value / total if total > 0 else 0.0 for word, value in values.items()}


def contrasted(
    document: Mapping[str, float], collection: Mapping[str, float], kind: Contrast, *, unseen: float
) -> dict[str, float]:
    """Step G: P(w|d) * -log2 P(w|C), at most 100, or max(P(w|d) - P(w|C), 0); 0 for words that are not letters alone.

    unseen: P(w|C) of a word the collection does not have: the smallest it has
    """
    found = {}
    for word, here in document.items():
        if not word.isalpha():
            found[word] = 0.0
            continue
        there = collection.get(word) or unseen
        found[word] = min(here * -log2(there), _LARGEST) if kind == "cross-entropy" else max(here - there, 0.0)
    return found


def softmax(scores: Mapping[str, float], *, temperature: float) -> dict[str, float]:
    """Step H: a distribution over the words of letters; 0 for the others, uniform where there are few of them."""
    chosen = {word: value for word, value in scores.items() if word.isalpha()}
    if not chosen:
        return dict.fromkeys(scores, 0.0)
    highest = max(chosen.values())
    powers = {word: exp((value - highest) / temperature) for word, value in chosen.items()}
    total = sum(powers.values())
    return {word: powers.get(word, 0.0) / total for word in scores}
