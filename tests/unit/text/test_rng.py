"""Random numbers by key."""

from __future__ import annotations

from statistics import mean

from drtk.text.rng import sample_integer, sample_uniform


def test_random_numbers_depend_only_on_their_key():
    keys = [(7, "doc", 3), (8, "doc", 3), (7, "dob", 3), (7, "doc", 4), ("ab", "c"), ("a", "bc")]
    assert sample_uniform(*keys[0]) == sample_uniform(*keys[0])
    assert len({sample_uniform(*key) for key in keys}) == len(keys)


def test_random_numbers_are_uniform():
    draws = [sample_uniform("spread", number) for number in range(10_000)]
    assert 0 <= min(draws) < max(draws) < 1
    assert abs(mean(draws) - 0.5) < 0.015  # five standard errors: 5 * 0.2887 / sqrt(10000) = 0.0144


def test_both_ends_of_an_integer_range_are_sampled():
    assert {sample_integer(2, 4, "ends", number) for number in range(100)} == {2, 3, 4}
