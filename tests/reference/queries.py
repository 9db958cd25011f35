"""Reference implementation of query expansion and reranking (GAR, EAR), written from the method descriptions.

Scores are estimated ranks: lower is better.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

PairWeight = Literal["offset", "sum"]


@dataclass(frozen=True)
class Candidate:
    """An expansion of a question, its label (the rank of the first answer), and the rank estimated by the model."""

    text: str
    rank: int
    score: float


def strip_question_mark(question: str) -> str:
    """Return the question without surrounding white space and final question mark."""
    bare = question.strip()
    if bare.endswith("?"):
        bare = bare[:-1]
    return bare


def expand(question: str, expansion: str) -> str:
    """Return the expanded query."""
    return strip_question_mark(question) + " ? " + expansion


def question_loss(
    scores: Sequence[float],
    ranks: Sequence[int],
    *,
    alpha: float = 0.01,
    weight: PairWeight = "offset",
    skip_ties: bool = True,
) -> float:
    """Return the hinge loss over pairs of candidates of one question: the sum, or the mean over offsets of their means.

    The loss is 0 without pairs. The sum in the paper excludes ties; with skip_ties=False, tied candidates are paired in
    input order, as for offsets.
    """
    order = sorted(range(len(ranks)), key=lambda place: (ranks[place], place))

    def hinge(better: int, worse: int) -> float:
        return max(0.0, scores[better] - scores[worse] + (ranks[worse] - ranks[better]) * alpha)

    if weight == "sum":
        total = 0.0
        for place, better in enumerate(order):
            for worse in order[place + 1 :]:
                if ranks[better] < ranks[worse] or not skip_ties:
                    total += hinge(better, worse)
        return total
    offsets = []
    for offset in range(1, len(order)):
        hinges = []
        for place in range(len(order) - offset):
            better, worse = order[place], order[place + offset]
            if skip_ties and ranks[better] == ranks[worse]:
                continue
            hinges.append(hinge(better, worse))
        if hinges:
            offsets.append(math.fsum(hinges) / len(hinges))
    return math.fsum(offsets) / len(offsets) if offsets else 0.0


def batch_loss(questions: Sequence[tuple[Sequence[float], Sequence[int]]], **options: object) -> float:
    """Return the mean loss over all questions of a batch, including those without pairs."""
    total = 0.0
    for scores, ranks in questions:
        total += question_loss(scores, ranks, **options)  # type: ignore[arg-type]
    return total / len(questions)


def learning_rate(step: int, *, max_lr: float, warmup: int = 10_000) -> float:
    """Return the learning rate of a step, counted from 1; the peak is max_lr / sqrt(warmup)."""
    return max_lr * min(1 / math.sqrt(step), step / warmup**1.5)


def scorer_input(parts: Sequence[Sequence[int]], *, first: int, last: int, longest: int) -> list[int]:
    """Return [CLS] part [SEP] part [SEP] …; the parts are truncated at the end, so that all separators fit."""
    room = longest - 1 - len(parts)
    pieces = [first]
    for part in parts:
        taken = list(part[: max(room, 0)])
        room -= len(taken)
        pieces += [*taken, last]
    return pieces


def first_lowest(numbers: Sequence[float]) -> int:
    """Return the index of the lowest number; of ties, the first."""
    best = 0
    for place in range(len(numbers)):
        if numbers[place] < numbers[best]:
            best = place
    return best


def first_distinct(candidates: Sequence[Candidate], count: int | None) -> list[Candidate]:
    """Return the first `count` candidates with distinct texts; all if `count` is None."""
    kept: list[Candidate] = []
    for candidate in candidates:
        if all(candidate.text != other.text for other in kept):
            kept.append(candidate)
    return kept if count is None else kept[:count]


def select_best(
    candidates: Sequence[Candidate],
    select: Literal["scorer", "oracle", "first", "greedy"],
    *,
    max_candidates: int | None = None,
    top: int = 1,
) -> list[Candidate]:
    """Return the best `top` distinct candidates by score, rank or input order; ties keep the input order."""
    left = first_distinct(candidates, max_candidates)
    best: list[Candidate] = []
    while left and len(best) < top:
        if select == "scorer":
            place = first_lowest([candidate.score for candidate in left])
        elif select == "oracle":
            place = first_lowest([candidate.rank for candidate in left])
        else:
            place = 0
        best.append(left.pop(place))
    return best


def concatenate(candidates: Sequence[Candidate]) -> str:
    """Concatenate the distinct expansions of a question."""
    text = ""
    for candidate in first_distinct(candidates, None):
        text += (" " if text else "") + candidate.text
    return text
