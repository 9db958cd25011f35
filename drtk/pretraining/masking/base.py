"""What masking strategies share: inputs, rates, word grouping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from drtk.text.token_dataset import Text

GIVEN = ("text", "rate", "rng", "counted", "other")  # what a strategy gets from its slot; the rest are options
Masking = TypeVar("Masking", bound=Callable[..., np.ndarray])


def weighing(strategy: Masking) -> Masking:
    """Marks a strategy that needs weights, so that the corpus is asked for them."""
    strategy.needs_weights = True  # type: ignore[attr-defined]
    return strategy


def needs_weights(strategy: Any) -> bool:
    """Whether a strategy was marked by `weighing`."""
    return bool(getattr(strategy, "needs_weights", False))


class Other(NamedTuple):
    """The mask of the slot that an `extension` or `complement` refers to: hidden, (tokens,) bool, and the rate it was drawn at."""

    hidden: np.ndarray
    rate: float


class Strategy(Protocol):
    """Chooses what a model must predict; what stands there instead is the matter of drtk/pretraining/corruption.py.

    text: with its special tokens, which are never hidden    rate: in [0, 1]
    rng: the only source of chance    counted: how many tokens the rate is a share of (with or without specials)
    other: a mask of the same text, for the strategies that refer to one
    returns: (tokens,), True where hidden. Raises ValueError where weights or `other` are missing.
    """

    def __call__(
        self, text: Text, rate: float, *, rng: np.random.Generator, counted: int, other: Other | None = None
    ) -> np.ndarray: ...


def weights_of(text: Text, strategy: str) -> np.ndarray:
    """The weights of a text, (tokens,); ValueError where it has none."""
    if text.weights is None:
        raise ValueError(
            f"masking by '{strategy}' needs weights of word pieces, and the text has none; drtk termweight adds them"
        )
    if len(text.weights) != len(text.ids):
        raise ValueError(f"masking by '{strategy}': {len(text.weights)} weights for {len(text.ids)} word pieces")
    return text.weights


def mask_of(other: Other | None, text: Text, strategy: str) -> Other:
    """The mask referred to; ValueError where there is none, or one of another text."""
    if other is None:
        raise ValueError(f"masking by '{strategy}' refers to the mask of another slot, and none was given")
    if len(other.hidden) != len(text.ids):
        raise ValueError(f"masking by '{strategy}': a mask of {len(other.hidden)} tokens for a text of {len(text.ids)}")
    return other


def mask_budget(rate: float, count: int) -> int:
    """round(rate * count), halves to even, but at least 1; 0 at rate 0 and where there is nothing (methods: section 4.1)."""
    return max(1, round(rate * count)) if rate > 0 and count > 0 else 0


def fitting(order: np.ndarray, sizes: np.ndarray, budget: int) -> np.ndarray:
    """Takes words in an order until the budget is spent; a word larger than what is left is passed over.

    order: (words,), their numbers, the first to be taken first    sizes: (words,), pieces of each
    returns: (words,), True where taken; together they have at most `budget` pieces
    """
    taken = np.zeros(len(sizes), dtype=bool)
    ordered = sizes[order]
    together = ordered.cumsum()
    cut = int(together.searchsorted(budget, side="right"))  # all words before the first that does not fit
    taken[order[:cut]] = True
    left = budget - int(together[cut - 1]) if cut else budget
    if left:  # few words are left to look at before the rest is spent
        for place, size in enumerate(ordered[cut:].tolist(), start=cut):
            if size <= left:
                taken[order[place]] = True
                left -= size
                if not left:
                    break
    return taken


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
