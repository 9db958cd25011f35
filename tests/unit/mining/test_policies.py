"""Policies: parameters of the published recipes, and sampling."""

from random import Random

import pytest

from drtk.mining import MINING
from drtk.mining.candidates import Candidate
from drtk.mining.policies import (
    MSMARCO,
    NQ,
    SBERT,
    TEVATRON,
    Policy,
    sample_random_ids,
    sample_shuffled,
    take_top_per_source,
)


def test_the_numbers_of_the_recipes():
    assert (MSMARCO.depth, MSMARCO.negatives, MSMARCO.min_negatives) == (200, 200, 210)
    assert (TEVATRON.depth, TEVATRON.negatives, TEVATRON.min_negatives) == (200, 128, 0)
    assert (NQ.depth, NQ.negatives, NQ.answers) == (100, None, True)
    assert (SBERT.depth, SBERT.negatives, SBERT.ce_margin) == (None, 5, 3.0)
    assert all(isinstance(MINING.load(name), Policy) for name in MINING)


def candidates(source: str, *ids: str) -> list[Candidate]:
    return [Candidate(id, source, rank, None) for rank, id in enumerate(ids, start=1)]


def test_each_system_gives_its_top_passages_without_those_of_earlier_systems():
    by_source = {"a": candidates("a", "1", "2", "3"), "b": candidates("b", "2", "4", "1", "5")}
    taken = take_top_per_source(by_source, 2, Random(0))
    assert [(one.id, one.source) for one in taken] == [("1", "a"), ("2", "a"), ("4", "b"), ("5", "b")]


def test_the_shuffle_favors_no_rank():
    # each of 20 candidates has a chance of 1/2 to be among the 10 kept: over 400 queries about 200 times (sd 10)
    found = {"run": candidates("run", *(f"d{at}" for at in range(20)))}
    kept = [one.id for query in range(400) for one in sample_shuffled(found, 10, Random(f"1\0q{query}"))]
    assert all(150 < kept.count(f"d{at}") < 250 for at in range(20))


@pytest.mark.parametrize("number", [15, 60])
def test_random_ids_of_a_small_part_of_the_corpus(number):
    # 20 of 1,020 ids are allowed, one of them is excluded: 19 are free
    ids = [*(f"book#{at}" for at in range(1000)), *(f"other#{at}" for at in range(20))]
    free = {*ids[1000:]} - {"other#1"}
    limits = {"excluded": {"other#1"}, "is_allowed": lambda one: one[0] == "o"}
    runs = [sample_random_ids(len(ids), ids.__getitem__, number, Random(seed), **limits) for seed in range(40)]
    assert all(set(sampled) <= free and len(set(sampled)) == len(sampled) == min(number, 19) for sampled in runs)
    # of 15, each of the 19 has a chance of 15/19: over 40 runs about 32 times (sd 2.6)
    assert all(16 < sum(id in sampled for sampled in runs) <= 40 for id in free)
