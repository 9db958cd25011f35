"""Word pieces grouped into words (methods: section 4.1, step 1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Words(NamedTuple):
    """The words of a text: runs of pieces with the same number. Special tokens belong to none.

    content: (tokens,), True but at special tokens
    begins: (words,), the place of each word's first piece among the content, special tokens apart
    sizes: (words,), how many pieces each has
    """

    content: np.ndarray
    begins: np.ndarray
    sizes: np.ndarray

    def hidden(self, chosen: np.ndarray) -> np.ndarray:
        """All pieces of the chosen words. chosen: (words,) bool    returns: (tokens,) bool"""
        hidden = np.zeros(len(self.content), dtype=bool)
        hidden[self.content] = chosen.repeat(self.sizes)
        return hidden

    def largest(self, weights: np.ndarray) -> np.ndarray:
        """The weight of each word, the largest of its pieces. weights: (tokens,)    returns: (words,)"""
        return np.maximum.reduceat(weights[self.content], self.begins)


def grouped(words: np.ndarray) -> Words:
    """The words of `Text.words`. Equal numbers on both sides of a special token are two words."""
    content = words >= 0
    first = content.copy()
    first[1:] &= words[1:] != words[:-1]
    begins = first[content].nonzero()[0]
    sizes = np.empty_like(begins)
    np.subtract(begins[1:], begins[:-1], out=sizes[:-1])
    sizes[-1:] = np.count_nonzero(content) - begins[-1:]
    return Words(content, begins, sizes)


def renumbered(words: np.ndarray) -> np.ndarray:
    """The same words with numbers that rise by 1, from 0 on; -1 where it was. words: (tokens,)"""
    found = np.full(len(words), -1, dtype=np.int32)
    every = grouped(words)
    found[every.content] = np.arange(len(every.sizes), dtype=np.int32).repeat(every.sizes)
    return found
