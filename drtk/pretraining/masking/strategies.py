"""Masking strategies: random tokens, whole words, ROM, keywords, and masks derived from the mask of another slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from drtk.text.token_dataset import Text

Masking = TypeVar("Masking", bound=Callable[..., np.ndarray])
Scale = Literal["max", "minmax", "sum"]


class OtherMask(NamedTuple):
    """The mask of another slot, (tokens,) bool, and the rate of that slot."""

    hidden: np.ndarray
    rate: float


class MaskInput(NamedTuple):
    """The input of a masking strategy.

    text: a text with its special tokens    rate: share of tokens to mask, in [0, 1]    rng: source of all random numbers
    counted: number of tokens to which the rate refers
    other: mask of the slot that `of` names, for the same text; None without `of`
    """

    text: Text
    rate: float
    rng: np.random.Generator
    counted: int
    other: Any = None

    @property
    def budget(self) -> int:
        """Number of tokens to mask."""
        return compute_mask_budget(self.rate, self.counted)

    @property
    def content(self) -> np.ndarray:
        """Mask of the tokens that are not special tokens, (tokens,) bool."""
        return self.text.words >= 0

    @property
    def weights(self) -> np.ndarray:
        """Weights of the tokens, (tokens,). Raises ValueError for a text without weights."""
        if self.text.weights is None:
            raise ValueError("requires token weights, but the text has none; run `drtk termweight` first")
        return self.text.weights

    def build_mask(self, order: np.ndarray) -> np.ndarray:
        """Return a mask of the first `budget` tokens in `order`, (tokens,) bool. order: indices that exclude special tokens"""
        hidden = np.zeros(len(self.text.ids), dtype=bool)
        hidden[self.content.nonzero()[0][order[: self.budget]]] = True
        return hidden


def uses_weights(strategy: Masking) -> Masking:
    """Declare that a masking strategy needs token weights, so that a corpus without weights is rejected."""
    strategy.needs_weights = True  # type: ignore[attr-defined]
    return strategy


def compute_mask_budget(rate: float, count: int) -> int:
    """Return round(rate * count), at least 1; 0 at rate 0 or for an empty text (docs/methods/masking.md)."""
    return max(1, round(rate * count)) if rate > 0 and count > 0 else 0


def mask_random_tokens(given: MaskInput) -> np.ndarray:
    """Mask `budget` tokens sampled uniformly, as `mask_rom` does if all weights are 0."""
    return given.build_mask(sort_largest_first(given.rng.random(np.count_nonzero(given.content))))


def mask_bernoulli(given: MaskInput) -> np.ndarray:
    """Mask each token independently with probability `rate` (DiffCSE)."""
    return (given.rng.random(len(given.text.ids)) < given.rate) & given.content


def mask_whole_words(given: MaskInput) -> np.ndarray:
    """Mask whole words in random order; skip words that exceed the remaining budget."""
    words = group_words(given.text.words)
    order = given.rng.permutation(len(words.sizes))
    return words.expand(fill_budget(order, words.sizes, given.budget))


def mask_complement(given: MaskInput) -> np.ndarray:
    """Mask the tokens that `other` does not mask (MASTER). The rate has no effect."""
    return ~given.other.hidden & given.content


def compute_added_rate(rate: float, inner: float) -> float:
    """Return the rate of an independent mask whose union with a mask of rate `inner` has rate `rate`."""
    return (rate - inner) / (1 - inner) if inner < 1 else 0.0


def mask_extension(given: MaskInput) -> np.ndarray:
    """Mask the tokens that `other` masks, and more words by an independent `mask_whole_words` (SimLM's decoder)."""
    return given.other.hidden | mask_whole_words(given._replace(rate=compute_added_rate(given.rate, given.other.rate)))


@uses_weights
def mask_keywords(given: MaskInput) -> np.ndarray:
    """Mask words sampled in proportion to their weight until at least `budget` tokens are masked (MASTER).

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
    """Mask the `budget` tokens with the largest sum of weight and U(0, 1); ties keep the order of the text (ROM).

    scale: normalization of the weights (see `scale_weights`)    weight_scale: factor on the normalized weights
    whole_word: mask whole words by the maximum weight of their word pieces; skip words that exceed the remaining budget
    """

    def order(weights: np.ndarray) -> np.ndarray:
        return sort_largest_first(scale_weights(weights, scale) * weight_scale + given.rng.random(len(weights)))

    if whole_word:
        words = group_words(given.text.words)
        return words.expand(fill_budget(order(words.max_weights(given.weights)), words.sizes, given.budget))
    return given.build_mask(order(given.weights[given.content]))


def order_by_weight(weights: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
    """Return all word indices in random order, sampled without replacement in proportion to `weights`, (words,).

    Words of weight 0 come last. The order sorts exponential random numbers divided by the weights (Efraimidis and Spirakis 2006).
    """
    weightless = ~(weights > 0)
    keys = rng.standard_exponential(len(weights))
    keys[~weightless] /= weights[~weightless]
    return np.lexsort((keys, weightless))


def scale_weights(weights: np.ndarray, how: Scale) -> np.ndarray:
    """Divide the token weights of a passage, (tokens,), by their maximum or sum, or scale them to [0, 1] (minmax)."""
    lowest = weights.min(initial=np.inf) if how == "minmax" and len(weights) else 0.0
    span = weights.sum() if how == "sum" else weights.max(initial=0.0) - lowest
    return (weights - lowest) / span if span > 0 else np.zeros_like(weights)


def sort_largest_first(scores: np.ndarray) -> np.ndarray:
    """Return the indices that sort `scores` in descending order; ties keep the order of the text."""
    return np.argsort(-scores, kind="stable")


def fill_budget(order: np.ndarray, sizes: np.ndarray, budget: int) -> np.ndarray:
    """Select words in `order` up to `budget` word pieces; skip words that exceed the remaining budget.

    order: word indices, (words,)    sizes: number of word pieces per word, (words,)    returns: selected words, (words,) bool
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
    """The words of a text: consecutive word pieces with the same word index.

    content: (tokens,) bool, False at special tokens
    begins: (words,), index of the first piece of each word, not counting special tokens
    sizes: (words,), number of word pieces per word
    """

    content: np.ndarray
    begins: np.ndarray
    sizes: np.ndarray

    def expand(self, chosen: np.ndarray) -> np.ndarray:
        """Return the token mask, (tokens,) bool, of a word mask, (words,) bool."""
        hidden = np.zeros(len(self.content), dtype=bool)
        hidden[self.content] = chosen.repeat(self.sizes)
        return hidden

    def max_weights(self, weights: np.ndarray) -> np.ndarray:
        """Return the maximum weight of the word pieces of each word, (words,). weights: (tokens,)"""
        return np.maximum.reduceat(weights[self.content], self.begins)


def group_words(words: np.ndarray) -> WordGroups:
    """Group the tokens of a text by word index (`Text.words`, (tokens,)). A special token ends a word."""
    content = words >= 0
    first = content.copy()
    first[1:] &= words[1:] != words[:-1]
    begins = first[content].nonzero()[0]
    sizes = np.empty_like(begins)
    np.subtract(begins[1:], begins[:-1], out=sizes[:-1])
    sizes[-1:] = np.count_nonzero(content) - begins[-1:]
    return WordGroups(content, begins, sizes)
