"""Choices among candidates that need no model: order, ties, the oracle's invariant, one query of all."""

from __future__ import annotations

import random

import numpy as np
import pytest

from drtk.errors import MismatchError
from drtk.query_expansion.candidates import distinct
from drtk.query_expansion.rerank import CHOICES, as_given, by_estimate, by_label, concatenated
from drtk.records import Expansion


def candidates(*ranks: int | None, texts: str = "") -> list[Expansion]:
    words = texts.split("|") if texts else [f"t{at}" for at in range(len(ranks))]
    return [Expansion(f"e{at}", "q", "answer", words[at], rank=rank) for at, rank in enumerate(ranks)]


def ids(found: list[Expansion]) -> list[str]:
    return [each.id for each in found]


def test_the_lowest_estimate_is_the_best_and_ties_keep_their_order() -> None:
    found = by_estimate(candidates(None, None, None, None), np.array([0.5, -1.0, 0.5, -1.0], dtype=np.float32))
    assert ids(found) == ["e1", "e3", "e0", "e2"]


def test_the_oracle_takes_the_lowest_label_and_ties_keep_their_order() -> None:
    assert ids(by_label(candidates(101, 7, 101, 7))) == ["e1", "e3", "e0", "e2"]
    with pytest.raises(MismatchError, match="'e1' has no rank; drtk rerank-queries label"):
        by_label(candidates(1, None))


@pytest.mark.parametrize("seed", range(30))
def test_nothing_that_is_chosen_is_better_than_the_oracles(seed: int) -> None:
    draw = random.Random(seed)
    made = [(draw.choice((1, 2, 15, 101)), draw.choice((-1.0, 0.5, 3.0))) for _ in range(draw.randint(1, 20))]
    most = draw.randint(1, 20)
    found = candidates(*(rank for rank, _ in made))
    best = by_label(found)[0].rank
    assert best is not None
    others = [as_given(found)[0], by_estimate(found, np.array([score for _, score in made]))[0]]
    others.append(by_label(distinct(found, most))[0])
    assert all(best <= (other.rank or 0) for other in others)
    # and estimates that are the labels choose as the oracle does
    assert by_estimate(found, np.array([rank for rank, _ in made], dtype=float)) == by_label(found)


def test_texts_that_differ_in_white_space_alone_are_one_candidate() -> None:
    found = distinct(candidates(1, 2, 3, 4, texts="a b| a  b|A b|c"))
    assert ids(found) == ["e0", "e2", "e3"]
    assert ids(distinct(candidates(1, 2, 3, texts="a|a|b"), 2)) == ["e0", "e2"]


def test_all_candidates_make_one_query_cut_where_it_has_too_many_words() -> None:
    found = candidates(1, 2, texts="red Red|blue green")
    assert concatenated("which?", found) == ("which ? red Red blue green", False)
    assert concatenated("which?", found, clauses=3) == ("which ? red Red blue", True)  # which red blue
    assert concatenated("which?", found, clauses=4) == ("which ? red Red blue green", False)


def test_every_choice_keeps_the_candidates_it_is_given() -> None:
    for name, choose in CHOICES.items():
        if name != "greedy":
            assert sorted(ids(choose(candidates(3, 1, 2)))) == ["e0", "e1", "e2"]
