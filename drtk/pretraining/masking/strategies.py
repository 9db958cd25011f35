"""Masking strategies: random tokens, whole words, ROM, keywords, and masks based on another slot's mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from drtk.text.token_dataset import Text

Masking = TypeVar("Masking", bound=Callable[..., np.ndarray])
Scale = Literal["max", "minmax", "sum"]


class OtherMask(NamedTuple):
    """The mask of another slot, (tokens,) bool, and its rate."""

    hidden: np.ndarray
    rate: float


class MaskInput(NamedTuple):
    """The input of a masking strategy.

    text: a text with its special tokens    rate: share of tokens to mask, in [0, 1]    rng: for all random numbers
    counted: number of tokens to which the rate refers
    other: mask of the slot named by `of`, for the same text; None if there is none
    """

    text: Text
    rate: float
    rng: np.random.Generator
    counted: int
    other: Any = None

    @property
    def budget(self) -> int:
        """The number of tokens to mask."""
        return compute_mask_budget(self.rate, self.counted)

    @property
    def content(self) -> np.ndarray:
        """(tokens,) bool, False at special tokens."""
        return self.text.words >= 0

    @property
    def weights(self) -> np.ndarray:
        """The weights of the tokens, (tokens,). Raises ValueError if the text has none."""
        if self.text.weights is None:
            raise ValueError("needs token weights, and the text has none; add them with `drtk termweight`")
        return self.text.weights

    def hide(self, order: np.ndarray) -> np.ndarray:
        """Return a mask of the first `budget` tokens in `order`, (tokens,) bool. order: indices of tokens that are not special"""
        hidden = np.zeros(len(self.text.ids), dtype=bool)
        hidden[self.content.nonzero()[0][order[: self.budget]]] = True
        return hidden


def uses_weights(strategy: Masking) -> Masking:
    """Declare that a masking strategy needs token weights, so that a corpus without them is rejected."""
    strategy.needs_weights = True  # type: ignore[attr-defined]
    return strategy


def compute_mask_budget(rate: float, count: int) -> int:
    """Return round(rate * count), at least 1; 0 at rate 0 or for an empty text (docs/methods/masking.md)."""
    return max(1, round(rate * count)) if rate > 0 and count > 0 else 0


def mask_random_tokens(given: MaskInput) -> np.ndarray:
    """Mask `budget` tokens sampled uniformly. The same as `mask_rom` with weights of 0."""
    return given.hide(sort_largest_first(given.rng.random(np.count_nonzero(given.content))))


def mask_bernoulli(given: MaskInput) -> np.ndarray:
    """Mask each token independently with probability `rate` (DiffCSE)."""
    return (given.rng.random(len(given.text.ids)) < given.rate) & given.content


def mask_whole_words(given: MaskInput) -> np.ndarray:
    """Mask whole words in random order; skip words that exceed the remaining budget."""
    words = group_words(given.text.words)
    order = given.rng.permutation(len(words.sizes))
    return words.expand(fill_budget(order, words.sizes, given.budget))


def mask_complement(given: MaskInput) -> np.ndarray:
    """Mask the tokens that `other` does not mask; the rate is not used (MASTER)."""
    return ~given.other.hidden & given.content


def compute_extra_rate(rate: float, inner: float) -> float:
    """Return the rate of an independent mask whose union with a mask of rate `inner` has rate `rate`."""
    return (rate - inner) / (1 - inner) if inner < 1 else 0.0


def mask_extension(given: MaskInput) -> np.ndarray:
    """Mask what `other` masks, and further words by an independent `mask_whole_words` (SimLM's decoder)."""
    return given.other.hidden | mask_whole_words(given._replace(rate=compute_extra_rate(given.rate, given.other.rate)))


@uses_weights
def mask_keywords(given: MaskInput) -> np.ndarray:
    """Mask words sampled in proportion to their weight until the budget is reached; the last may exceed it (MASTER).

    The weight of a word is the maximum weight of its word pieces.
    """
    words = group_words(given.text.words)
    order = order_by_weight(words.max_weights(given.weights), rng=given.rng)
    chosen = np.zeros(len(order), dtype=bool)
    if given.budget:
        covered = words.sizes[order].cumsum()
        chosen[order[: int(covered.searchsorted(given.budget)) + 1]] = True
    return words.expand(chosen)


@uses_weights
def mask_rom(
    given: MaskInput, *, scale: Scale = "max", weight_scale: float = 1.0, whole_word: bool = False
) -> np.ndarray:
    """Mask the `budget` tokens with the largest U(0, 1) + weight; of equal ones, the first (ROM).

    scale: normalization of the weights (`scale_weights`)    weight_scale: factor on the normalized weights
    whole_word: mask whole words by the maximum weight of their word pieces; skip words that exceed the remaining budget
    """

    def order(weights: np.ndarray) -> np.ndarray:
        return sort_largest_first(scale_weights(weights, scale) * weight_scale + given.rng.random(len(weights)))

    if whole_word:
        words = group_words(given.text.words)
        return words.expand(fill_budget(order(words.max_weights(given.weights)), words.sizes, given.budget))
    return given.hide(order(given.weights[given.content]))


def order_by_weight(weights: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
    """Sample all indices without replacement in proportion to `weights`, (words,); weights of 0 come last.

    Sorts exponential random numbers divided by the weights (Efraimidis and Spirakis 2006).
    """
    weightless = ~(weights > 0)
    keys = rng.standard_exponential(len(weights))
    keys[~weightless] /= weights[~weightless]
    return np.lexsort((keys, weightless))


def scale_weights(weights: np.ndarray, how: Scale) -> np.ndarray:
    """Normalize the token weights of a passage, (tokens,): by their maximum, to [0, 1] (minmax), or to a sum of 1."""
    lowest = weights.min(initial=np.inf) if how == "minmax" and len(weights) else 0.0
    span = weights.sum() if how == "sum" else weights.max(initial=0.0) - lowest
    return (weights - lowest) / span if span > 0 else np.zeros_like(weights)


def sort_largest_first(scores: np.ndarray) -> np.ndarray:
    """Return the indices that sort `scores` in descending order; ties keep their order."""
    return np.argsort(-scores, kind="stable")


def fill_budget(order: np.ndarray, sizes: np.ndarray, budget: int) -> np.ndarray:
    """Select words in `order` up to `budget` word pieces, (words,) bool; skip words that exceed the remaining budget.

    order: (words,) indices    sizes: (words,) word pieces of each word
    """
    selected = np.zeros(len(sizes), dtype=bool)
    ordered = sizes[order]
    cumulative = ordered.cumsum()
    cut = int(cumulative.searchsorted(budget, side="right"))  # the first word that does not fit
    selected[order[:cut]] = True
    left = budget - int(cumulative[cut - 1]) if cut else budget
    if left:
        for rank, size in enumerate(ordered[cut:].tolist(), start=cut):
            if size <= left:
                selected[order[rank]] = True
                left -= size
                if not left:
                    break
    return selected


class WordGroups(NamedTuple):
    """The words of a text: runs of word pieces with the same word number.

    content: (tokens,) bool, False at special tokens
    begins: (words,), index of each word's first piece, not counting special tokens
    sizes: (words,), number of word pieces
    """

    content: np.ndarray
    begins: np.ndarray
    sizes: np.ndarray

    def expand(self, chosen: np.ndarray) -> np.ndarray:
        """Expand a mask of words, (words,) bool, to a mask of tokens, (tokens,) bool."""
        hidden = np.zeros(len(self.content), dtype=bool)
        hidden[self.content] = chosen.repeat(self.sizes)
        return hidden

    def max_weights(self, weights: np.ndarray) -> np.ndarray:
        """Return the maximum weight of each word's pieces, (words,). weights: (tokens,)"""
        return np.maximum.reduceat(weights[self.content], self.begins)


def group_words(words: np.ndarray) -> WordGroups:
    """Group tokens by their word numbers (`Text.words`, (tokens,)); special tokens separate words."""
    content = words >= 0
    first = content.copy()
    first[1:] &= words[1:] != words[:-1]
    begins = first[content].nonzero()[0]
    sizes = np.empty_like(begins)
    np.subtract(begins[1:], begins[:-1], out=sizes[:-1])
    sizes[-1:] = np.count_nonzero(content) - begins[-1:]
    return WordGroups(content, begins, sizes)
