"""Random generators that are set to the state of a key."""

from hashlib import blake2b

import numpy as np

from drtk.text.rng import create_generator, seed_generator


def test_a_generator_depends_only_on_its_key():
    key = int.from_bytes(blake2b(b"42\0p1", digest_size=16).digest(), "big")
    expected = np.random.Generator(np.random.Philox(key=key)).random(5).tolist()
    used = create_generator("other")
    assert used.random(5).tolist() != expected
    used.integers(10, size=3, dtype=np.int32)  # leaves half a number in its buffer
    assert create_generator(42, "p1").random(5).tolist() == expected
    assert seed_generator(used, 42, "p1").random(5).tolist() == expected
