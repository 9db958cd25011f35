"""ROUGE: how much of what should have been written was written."""

from __future__ import annotations

import re
from collections.abc import Sequence

from drtk.errors import MissingDependency, pip_install

MEASURES = ("rouge1", "rouge2", "rougeL")
_WORD = re.compile(r"[^\W_]+")


class _Words:
    """Runs of letters and digits of every script in lower case: on ASCII the words of rouge-score, which drops all others."""

    def tokenize(self, text: str) -> list[str]:
        return _WORD.findall(text.lower())


def need_rouge() -> None:
    """Raises MissingDependency where the library is not installed."""
    try:
        import rouge_score.rouge_scorer  # noqa: F401
    except ImportError as error:
        raise MissingDependency("rouge-score", "ROUGE", pip_install("rouge-score")) from error


def rouge(written: Sequence[str], wanted: Sequence[str]) -> dict[str, float]:
    """F1 over words, over pairs of words, and of the longest common subsequence (Lin 2004), in [0, 1], averaged over the texts.

    written, wanted: a text each, in the same order; without stemming. No texts: all are 0.
    Raises MissingDependency where the library is not installed.
    """
    need_rouge()
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(MEASURES), tokenizer=_Words())
    found = [scorer.score(target, text) for text, target in zip(written, wanted, strict=True)]
    return {name: sum(float(each[name].fmeasure) for each in found) / max(1, len(found)) for name in MEASURES}
