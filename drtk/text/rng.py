"""Random numbers that depend only on a key, such as a seed, a purpose and an id."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def _digest_key(key: tuple[str | int, ...], size: int) -> int:
    return int.from_bytes(
        blake2b("\0".join(map(str, key)).encode(errors="surrogatepass"), digest_size=size).digest(), "big"
    )


def sample_uniform(*key: str | int) -> float:
    """Return a random number in [0, 1) that depends only on `key`, not on the process, batch or version of Python."""
    return (_digest_key(key, 8) >> 11) / (1 << 53)  # a float holds 53 bits


def sample_uniform_of_ids(ids: Iterable[bytes | memoryview], *key: str | int) -> np.ndarray:
    """Return `sample_uniform(*key, id)` of each UTF-8 id, (ids,) float64, in a fifth of the time of separate calls."""
    import numpy as np

    start = blake2b("\0".join(map(str, (*key, ""))).encode(), digest_size=8)
    digests = bytearray()
    for id in ids:
        state = start.copy()
        state.update(id)
        digests += state.digest()
    uniform: np.ndarray = (np.frombuffer(digests, ">u8") >> np.uint64(11)) / (1 << 53)
    return uniform


def sample_integer(low: int, high: int, *key: str | int) -> int:
    """Return a random integer in [low, high], both included, that depends only on `key`."""
    return low + int(sample_uniform(*key) * (high - low + 1))


def create_generator(*key: str | int) -> Any:
    """Return a numpy random generator whose state depends only on `key`."""
    import numpy as np

    return np.random.Generator(np.random.Philox(_get_philox_key_class()(_digest_key(key, 16))))


@cache
def _get_philox_key_class() -> Any:
    """Return the class of a key for Philox; `Philox(key=...)` also reads entropy from the system, which takes longer."""
    import numpy as np

    class PhiloxKey(np.random.bit_generator.ISeedSequence):
        def __init__(self, key: int) -> None:
            self._key = key

        def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
            return np.frombuffer(self._key.to_bytes(16, "little"), "<u8")

    return PhiloxKey
