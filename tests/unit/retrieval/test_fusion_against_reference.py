"""Fusion and re-ranked heads against loops written from the description of the methods alone."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from drtk.data.trec import Ranking
from drtk.retrieval.config import FuseSettings
from drtk.retrieval.fusion import FUSIONS, fuse
from drtk.retrieval.rerank import reorder
from tests.reference import queries as slow

SEEDS = range(20)


def ranking(draw: random.Random, count: int, *, whole: bool) -> Ranking:
    """So many of 25 documents, scores falling; whole numbers are exact, and equal here and there."""
    names = draw.sample([f"d{number}" for number in range(25)], count)
    scores = [float(draw.randint(0, 9)) if whole else draw.gauss(0, 5) for _ in names]
    return [
        (name, score)
        for score, name in sorted(zip(scores, names, strict=True), reverse=True)  # equal ones by descending id
    ]


def ids(found: Ranking) -> list[str]:
    return [name for name, _ in found]


def fused(rankings: list[Ranking], weights: list[float] | None = None, **settings: object) -> Ranking:
    chosen = replace(FuseSettings(), **settings)  # type: ignore[arg-type]
    found = fuse(rankings, weights or [1.0] * len(rankings), chosen, FUSIONS.load(chosen.method))
    assert all(before > after for (_, before), (_, after) in itertools.pairwise(found))
    return found


def by_score(scores: dict[str, float]) -> list[str]:
    return sorted(scores, key=lambda name: (scores[name], name), reverse=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_round_robin_visits_the_lists_as_the_reference_does(seed: int) -> None:
    draw = random.Random(seed)
    lists = [ranking(draw, draw.choice([0, 1, 5, 20]), whole=False) for _ in range(draw.randint(1, 4))]
    top = draw.choice([1, 6, 100])
    found = fused(lists, method="round-robin", top=top)
    assert ids(found) == slow.round_robin([ids(each) for each in lists], top)
    assert dict(found) == pytest.approx(slow.surrogate_scores(ids(found)), rel=1e-6)  # what a reader may sort by
    if len(lists) == 1:
        assert ids(found) == ids(lists[0])[:top]


@pytest.mark.parametrize("seed", SEEDS)
def test_linear_fusion_is_that_of_the_reference(seed: int) -> None:
    draw = random.Random(seed)
    whole = draw.random() < 0.5  # with a whole weight too nothing is rounded, and equal scores are equal
    weight = draw.choice([1.0, 2.0]) if whole else draw.choice([1.1, 0.3])
    sparse, dense = (ranking(draw, draw.choice([1, 2, 10, 20]), whole=whole) for _ in range(2))
    found = fused([sparse, dense], [1.0, weight], method="weighted", normalize="none")
    wanted = slow.linear(dict(sparse), dict(dense), weight=weight)
    assert dict(found) == pytest.approx(wanted, rel=1e-5, abs=1e-5)
    assert ids(found) == by_score(wanted)


@pytest.mark.parametrize("seed", SEEDS)
def test_reciprocal_ranks_add_up_as_in_the_reference(seed: int) -> None:
    draw = random.Random(seed)
    lists = [ranking(draw, draw.choice([0, 1, 5, 20]), whole=False) for _ in range(2)]
    k = draw.choice([60, 1, 0])
    found = fused(lists, method="rrf", rrf_k=k)
    wanted = slow.reciprocal_ranks([ids(each) for each in lists], k=k)
    assert dict(found) == pytest.approx(wanted, rel=1e-5)
    assert ids(found) == by_score(wanted)  # of two summands the order does not matter: equal ones are equal


@pytest.mark.parametrize("seed", SEEDS)
def test_a_re_ranked_head_is_that_of_the_reference(seed: int) -> None:
    draw = random.Random(seed)
    first = ranking(draw, draw.choice([0, 1, 7, 25]), whole=False)
    depth = draw.choice([0, 1, 5, 25, 100])
    scores = {name: draw.choice([float(draw.randint(-2, 2)), draw.gauss(0, 1e3)]) for name, _ in first}
    found = reorder(first, [scores[name] for name, _ in first[:depth]])
    assert ids(found) == slow.reranked(ids(first), scores, depth=depth)
    assert sorted(ids(found)) == sorted(ids(first))
