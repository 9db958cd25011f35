"""Small texts to mask, and chance that says what it is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from drtk.text.token_dataset import Text


def text_of(sizes: Sequence[int], weights: Sequence[float] | None = None) -> Text:
    """[CLS] words [SEP]. sizes: pieces of each word    weights: of each piece"""
    words = np.array([-1, *np.arange(len(sizes)).repeat(np.array(sizes, dtype=int)), -1], dtype=np.int32)
    ids = np.arange(len(words), dtype=np.int32) + 10
    return Text(ids, words, None if weights is None else np.array([0, *weights, 0], dtype=np.float32))


class Told:
    """In place of a numpy Generator: draws from U(0, 1) that were written down before."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = np.array(numbers)

    def random(self, size: int) -> np.ndarray:
        assert size == len(self.numbers)
        return self.numbers


def told(*numbers: float) -> Any:
    """`Told`, for a parameter that wants a Generator."""
    return Told(*numbers)


def places(hidden: np.ndarray) -> list[int]:
    """Where a mask hides."""
    assert hidden.dtype == bool
    return np.flatnonzero(hidden).tolist()
