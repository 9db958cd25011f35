"""The query side written a second time, from the description of the methods alone: lists, loops, floats.

Lower is better wherever a scorer speaks: it estimates a rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.reference.answers import has_answer

PairWeight = Literal["offset", "sum"]


@dataclass(frozen=True)
class Found:
    """A passage that a search found."""

    name: str
    text: str
    title: str = ""


@dataclass(frozen=True)
class Candidate:
    """An expansion of a question, the rank it leads to, and what a scorer thinks that rank is."""

    text: str
    rank: int
    score: float


# -- what a generator learns to write (7.2) --------------------------------------------------------------------------


def right_passages(found: Sequence[Found], answers: Sequence[str]) -> list[Found]:
    """Those with an answer in their text, in the order of the ranks."""
    return [passage for passage in found if has_answer(answers, passage.text)]


def sentence_target(
    found: Sequence[Found], answers: Sequence[str], *, split: Callable[[str], Sequence[str]]
) -> str | None:
    """The sentence with an answer in the first passage with an answer; nothing where there is no such passage."""
    for passage in right_passages(found, answers)[:1]:
        for sentence in split(passage.text):
            if has_answer(answers, sentence):
                return sentence
    return None


def title_targets(found: Sequence[Found], answers: Sequence[str], *, every: bool) -> list[str]:
    """Titles of passages with an answer, by rank and each once: all of them, or the first one's only."""
    titles: list[str] = []
    for passage in right_passages(found, answers):
        if passage.title not in titles:
            titles.append(passage.title)
    return titles if every else titles[:1]


# -- expanded questions and their labels (7.2 to 7.4) ------------------------------------------------------------------


def without_mark(question: str) -> str:
    """The question without blanks around it and without a question mark at its end."""
    bare = question.strip()
    if bare.endswith("?"):
        bare = bare[:-1]
    return bare


def expanded(question: str, expansion: str) -> str:
    """What BM25 is asked with an expansion."""
    return without_mark(question) + " ? " + expansion


def distinct(texts: Sequence[str]) -> list[str]:
    """Every text once, where it first stands."""
    kept: list[str] = []
    for text in texts:
        if text not in kept:
            kept.append(text)
    return kept


# -- how a scorer learns (7.5, 7.7) --------------------------------------------------------------------------------------


def question_loss(
    scores: Sequence[float],
    ranks: Sequence[int],
    *,
    alpha: float = 0.01,
    weight: PairWeight = "offset",
    skip_ties: bool = True,
) -> float:
    """Hinges over pairs of one question's candidates: the printed sum, or the mean over offsets of their means.

    A question without any pair that counts costs nothing. The printed sum has no ties; who does not skip them adds those
    of the order in which the candidates come, as for the offsets.
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
    """Mean over the questions of a batch, those with nothing to learn from among them."""
    total = 0.0
    for scores, ranks in questions:
        total += question_loss(scores, ranks, **options)  # type: ignore[arg-type]
    return total / len(questions)


def learning_rate(step: int, *, max_lr: float, warmup: int = 10_000) -> float:
    """Rate of step 1, 2, …; max_lr is never reached, the highest is max_lr / sqrt(warmup)."""
    return max_lr * min(1 / math.sqrt(step), step / warmup**1.5)


def first_lowest(numbers: Sequence[float]) -> int:
    """Place of the lowest number, the first of several."""
    best = 0
    for place in range(len(numbers)):
        if numbers[place] < numbers[best]:
            best = place
    return best


def mean_chosen_rank(questions: Sequence[tuple[Sequence[float], Sequence[int]]]) -> float:
    """By it a checkpoint is selected, the lower the better: ranks of what the scorer chooses, averaged."""
    total = 0
    for scores, ranks in questions:
        total += ranks[first_lowest(scores)]
    return total / len(questions)


def scorer_input(parts: Sequence[Sequence[int]], *, first: int, last: int, longest: int) -> list[int]:
    """[CLS] part [SEP] part [SEP] …: what a part leaves of the room is the next one's, the separators have theirs."""
    room = longest - 1 - len(parts)
    pieces = [first]
    for part in parts:
        taken = list(part[: max(room, 0)])
        room -= len(taken)
        pieces += [*taken, last]
    return pieces


# -- what is asked in the end (7.8, 7.9) -----------------------------------------------------------------------------------


def first_distinct(candidates: Sequence[Candidate], count: int | None) -> list[Candidate]:
    """The first `count` whose texts are not yet there; all of these without a count."""
    kept: list[Candidate] = []
    for candidate in candidates:
        if all(candidate.text != other.text for other in kept):
            kept.append(candidate)
    return kept if count is None else kept[:count]


def chosen(
    candidates: Sequence[Candidate],
    select: Literal["scorer", "oracle", "first", "greedy"],
    *,
    max_candidates: int | None = None,
    top: int = 1,
) -> list[Candidate]:
    """The best `top` of the first distinct candidates, by score, by rank or as they come; the first among equals."""
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


def joined(candidates: Sequence[Candidate]) -> str:
    """All expansions of a question as one."""
    text = ""
    for candidate in first_distinct(candidates, None):
        text += (" " if text else "") + candidate.text
    return text
