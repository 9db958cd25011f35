"""Random numbers that depend only on a key, such as a seed, a purpose and an id."""

from __future__ import annotations

from collections.abc import Iterable
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
    return (np.frombuffer(digests, ">u8") >> np.uint64(11)) / (1 << 53)


def sample_integer(low: int, high: int, *key: str | int) -> int:
    """Return a random integer in [low, high], both included, that depends only on `key`."""
    return low + int(sample_uniform(*key) * (high - low + 1))


def create_generator(*key: str | int) -> Any:
    """Return a numpy random generator (Philox) whose state depends only on `key`."""
    import numpy as np

    return seed_generator(np.random.Generator(np.random.Philox(0)), *key)


def seed_generator(generator: Any, *key: str | int) -> Any:
    """Set a generator to the state of `create_generator(*key)`, which is faster than a new generator; return it."""
    high, low = divmod(_digest_key(key, 16), 1 << 64)
    generator.bit_generator.state = {
        "bit_generator": "Philox",
        "state": {"counter": (0, 0, 0, 0), "key": (low, high)},
        "buffer": (0, 0, 0, 0),
        "buffer_pos": 4,  # the buffer is empty
        "has_uint32": 0,
        "uinteger": 0,
    }
    return generator
