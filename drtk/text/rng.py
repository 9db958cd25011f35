"""Random numbers that depend only on a key, such as a seed, a purpose and an id."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any


def _digest_key(key: tuple[str | int, ...], size: int) -> int:
    return int.from_bytes(
        blake2b("\0".join(map(str, key)).encode(errors="surrogatepass"), digest_size=size).digest(), "big"
    )


def sample_uniform(*key: str | int) -> float:
    """Return a random number in [0, 1) that depends only on `key`, not on the process, batch or version of Python."""
    return (_digest_key(key, 8) >> 11) / (1 << 53)  # a float holds 53 bits


def sample_integer(low: int, high: int, *key: str | int) -> int:
    """Return a random integer in [low, high], both included, that depends only on `key`."""
    return low + int(sample_uniform(*key) * (high - low + 1))


def create_generator(*key: str | int) -> Any:
    """Return a numpy random generator whose state depends only on `key`."""
    import numpy as np

    return np.random.Generator(np.random.Philox(key=_digest_key(key, 16)))
