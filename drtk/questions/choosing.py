"""Which candidate of a question becomes its query, without a model: first, greedy, oracle; and all of them as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from drtk.errors import MismatchError
from drtk.records import Expansion
from drtk.retrieval.bm25_words import split_words
from drtk.text.expanded_query import expanded_query

Choice = Callable[[Sequence[Expansion]], list[Expansion]]  # the candidates, best first
GREEDY = "greedy"  # "decode" of a candidate that was written so


class Group(NamedTuple):
    """A question and its candidates of one kind."""

    question: str
    kind: str
    expansions: Sequence[Expansion]


def by_estimate(expansions: Sequence[Expansion], estimates: np.ndarray) -> list[Expansion]:
    """The candidates by estimated rank, LOWEST first, equal ones in their order (methods, section 7.8).

    estimates: (candidates,)
    """
    return [expansions[place] for place in np.argsort(estimates, kind="stable")]


def as_given(expansions: Sequence[Expansion]) -> list[Expansion]:
    """The candidates in their order: what "first" takes."""
    return [*expansions]


def by_label(expansions: Sequence[Expansion]) -> list[Expansion]:
    """The candidates by the rank of their first answer-bearing passage: the oracle, EAR's upper bound (methods, 7.9).

    Raises MismatchError where one has no label.
    """
    for each in expansions:
        if problem := unlabelled(each):
            raise MismatchError(problem)
    return sorted(expansions, key=lambda each: each.rank or 0)


def unlabelled(expansion: Expansion) -> str | None:
    """What a candidate lacks for the oracle; None where it lacks nothing."""
    missing = expansion.rank is None
    return f"'{expansion.id}' has no rank; drtk rerank-queries label gives it one" if missing else None


def greedy_ones(expansions: Sequence[Expansion]) -> list[Expansion]:
    """The candidates that were generated greedily (GAR's baseline); none where the generator wrote nothing then."""
    return [each for each in expansions if each.extra.get("decode") == GREEDY]


CHOICES: dict[str, Choice] = {"first": as_given, "oracle": by_label, "greedy": greedy_ones}


def concatenated(question: str, expansions: Sequence[Expansion], *, clauses: int | None = None) -> tuple[str, bool]:
    """One query of a question and all its candidates (GAR's concat), and whether words were cut off its end.

    clauses: the most different words it may have. Words here are runs of letters and digits: an analyzer that leaves out
             stop words or finds stems has no more of them.
    """
    text = expanded_query(question, *(each.text for each in expansions))
    if clauses is None:
        return text, False
    seen: set[str] = set()
    kept: list[str] = []
    for word in text.split():
        seen.update(split_words(word, latin=False))
        if len(seen) > clauses:
            return " ".join(kept), True
        kept.append(word)
    return text, False
