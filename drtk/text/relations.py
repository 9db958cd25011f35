"""Which passages of a document belong together (methods: section 1.3): pure functions over passage numbers.

Passages are numbered from 0, as `metadata.position` does; `count` is how many the document has. None: there is no such passage.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

REACH = 100  # passages to either side among which a random one is drawn


def following(position: int, count: int) -> int | None:
    """The next passage; None for the last (MASTER's next passage)."""
    return position + 1 if position + 1 < count else None


def nearby(position: int, count: int, *, rng: np.random.Generator) -> int | None:
    """One of the neighbours, each with the same chance; None in a document of one passage (CoT-MAE)."""
    return _one_of([other for other in (position - 1, position + 1) if 0 <= other < count], rng)


def random_other(position: int, count: int, *, rng: np.random.Generator) -> int | None:
    """Another passage of the document, at most REACH away (CoT-MAE); None in a document of one passage."""
    first, last = max(0, position - REACH), min(count, position + REACH + 1)
    return _one_of([other for other in range(first, last) if other != position], rng)


def span_pair(count: int, *, rng: np.random.Generator) -> tuple[int, int] | None:
    """Two different passages, drawn without replacement (coCondenser); None in a document of one passage."""
    if count < 2:
        return None
    first, second = rng.choice(count, size=2, replace=False)
    return int(first), int(second)


def overlap(
    position: int, lengths: Sequence[Sequence[int]], cap: int, *, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """A passage that shares its first sentences with the last ones of another (CoT-MAE), as (passage, sentence) in reading order.

    lengths: for each passage of the document, the lengths of its sentences, in the units of `cap`.
    It begins r sentences before the end of passage `position`, r from 1 to half of its sentences, and goes on until the next
    sentence would exceed `cap`. For the last passage it goes backwards: its first r sentences, and what stands before them.
    """
    own = len(lengths[position])
    if own == 0:
        return []
    shared = int(rng.integers(1, max(1, own // 2) + 1))
    flat = [(passage, sentence) for passage, inside in enumerate(lengths) for sentence in range(len(inside))]
    if position + 1 < len(lengths):
        order = flat[flat.index((position, own - shared)) :]
    else:
        order = flat[flat.index((position, shared - 1)) :: -1]
    taken: list[tuple[int, int]] = []
    size = 0
    for passage, sentence in order:
        size += lengths[passage][sentence]
        if size > cap and len(taken) >= 1:
            break
        taken.append((passage, sentence))
    return sorted(taken)


def _one_of(choices: list[int], rng: np.random.Generator) -> int | None:
    return choices[int(rng.integers(len(choices)))] if choices else None
