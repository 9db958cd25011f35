"""Selection of candidates, by hand and against tests/reference/queries.py."""

import random

import numpy as np
import pytest

from drtk.query_expansion.candidates import select_distinct
from drtk.query_expansion.rerank import order_candidates
from drtk.records import Expansion
from drtk.text.expanded_text import expand_query
from tests.reference import queries as slow
from tests.reference.queries import Candidate


def candidates(*ranks: int | None, texts: str = "") -> list[Expansion]:
    words = texts.split("|") if texts else [f"t{at}" for at in range(len(ranks))]
    return [Expansion(f"e{at}", "q", "answer", words[at], rank=rank) for at, rank in enumerate(ranks)]


def ids(found: list[Expansion]) -> list[str]:
    return [each.id for each in found]


def test_texts_that_differ_in_white_space_alone_are_one_candidate():
    actual = select_distinct(candidates(1, 2, 3, 4, texts="a b| a  b|A b|c"))
    assert ids(actual) == ["e0", "e2", "e3"]
    assert ids(select_distinct(candidates(1, 2, 3, texts="a|a|b"), 2)) == ["e0", "e2"]


TEXTS = [*"Nile|nile|Lake Victoria|the river|Beyonc\u00e9|Beyonce\u0301|1858|\u65e5\u672c|a b c|U.S.".split("|")]


def sample_candidates(draw: random.Random, count: int) -> list[Candidate]:
    """Return candidates, of which some have equal texts, ranks or scores."""
    return [
        Candidate(draw.choice(TEXTS), draw.choice([1, 2, 15, 101]), draw.choice([-1.0, 0.5, 0.25, 3.0]))
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_selections_equal_those_of_the_reference(seed):
    draw = random.Random(seed)
    made = sample_candidates(draw, draw.randint(1, 12))
    most = draw.choice([None, 1, 2, 5])
    expansions = candidates(*(each.rank for each in made), texts="|".join(each.text for each in made))
    left = select_distinct(expansions, most)
    assert [each.text for each in left] == [each.text for each in slow.first_distinct(made, most)]
    estimates = np.array([made[expansions.index(each)].score for each in left], dtype=np.float32)
    choices = {name: order_candidates(name, left) for name in ("first", "oracle")}
    for select, chosen in (choices | {"scorer": order_candidates("scorer", left, estimates)}).items():
        for top in (1, 3, 20):
            expected = slow.select_best(made, select, max_candidates=most, top=top)  # type: ignore[arg-type]
            assert [(each.text, each.rank) for each in chosen[:top]] == [(each.text, each.rank) for each in expected]
    query = expand_query("who?", *(each.text for each in select_distinct(expansions)))
    assert query == slow.expand("who?", slow.concatenate(made))
