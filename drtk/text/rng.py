"""Random numbers that depend on what they are for and on nothing else."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any


def uniform(*key: str | int) -> float:
    """A number in [0, 1) decided by `key` alone: the same in every process, batch and version of Python.

    A key begins with a seed or a purpose and goes on with the id and the slot the draw is for.
    """
    digest = blake2b("\0".join(map(str, key)).encode(errors="surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)  # 53 bits: all of them fit into a float


def between(low: int, high: int, *key: str | int) -> int:
    """A whole number in [low, high], both included, decided by `key` alone."""
    return low + int(uniform(*key) * (high - low + 1))


def generator(*key: str | int) -> Any:
    """A numpy Generator whose draws are decided by `key` alone; a key as for `uniform`."""
    import numpy as np

    digest = blake2b("\0".join(map(str, key)).encode(errors="surrogatepass"), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "big")))
