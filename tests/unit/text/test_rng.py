"""Random numbers and generators that depend on a key."""

from hashlib import blake2b
from statistics import mean

import numpy as np

from drtk.text.rng import create_generator, sample_integer, sample_uniform, sample_uniform_of_ids, seed_generator


def test_a_generator_depends_only_on_its_key():
    key = int.from_bytes(blake2b(b"42\0p1", digest_size=16).digest(), "big")
    expected = np.random.Generator(np.random.Philox(key=key)).random(5).tolist()
    used = create_generator("other")
    assert used.random(5).tolist() != expected
    used.integers(10, size=3, dtype=np.int32)  # leaves half a number in its buffer
    assert create_generator(42, "p1").random(5).tolist() == expected
    assert seed_generator(used, 42, "p1").random(5).tolist() == expected


def test_random_numbers_depend_only_on_their_key_and_are_uniform():
    keys = [(7, "doc", 3), (8, "doc", 3), (7, "dob", 3), (7, "doc", 4), ("ab", "c"), ("a", "bc")]
    assert sample_uniform(*keys[0]) == sample_uniform(*keys[0])
    assert len({sample_uniform(*key) for key in keys}) == len(keys)
    ids = ["a", "é#1"]
    assert sample_uniform_of_ids(map(str.encode, ids), 7, "x").tolist() == [sample_uniform(7, "x", id) for id in ids]
    draws = [sample_uniform("spread", number) for number in range(10_000)]
    assert 0 <= min(draws) < max(draws) < 1
    assert abs(mean(draws) - 0.5) < 0.015  # five standard errors: 5 * 0.2887 / sqrt(10000) = 0.0144
    assert {sample_integer(2, 4, "ends", number) for number in range(100)} == {2, 3, 4}
