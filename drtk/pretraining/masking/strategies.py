"""Masking strategies: random, whole words, ROM, keywords, and masks derived from another slot's mask."""

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
    """What a strategy reads.

    text: one text with its special tokens    rate: in [0, 1]    rng: for all samples
    counted: number of tokens the rate is a share of
    other: a mask of the same text, for strategies that refer to one; None if the slot names none with `of`
    """

    text: Text
    rate: float
    rng: np.random.Generator
    counted: int
    other: Any = None

    @property
    def budget(self) -> int:
        """The number of word pieces to hide."""
        return compute_mask_budget(self.rate, self.counted)

    @property
    def content(self) -> np.ndarray:
        """(tokens,) bool, False at special tokens, which are never hidden."""
        return self.text.words >= 0

    @property
    def weights(self) -> np.ndarray:
        """The weights of the word pieces, (tokens,). Raises ValueError if the text has none."""
        if self.text.weights is None:
            raise ValueError("needs weights of word pieces, and the text has none; drtk termweight adds them")
        return self.text.weights

    def hide(self, order: np.ndarray) -> np.ndarray:
        """Return a mask of the first `budget` pieces in `order`, indices among those that are not special."""
        hidden = np.zeros(len(self.text.ids), dtype=bool)
        hidden[self.content.nonzero()[0][order[: self.budget]]] = True
        return hidden


def uses_weights(strategy: Masking) -> Masking:
    """Mark a strategy that needs token weights, so that a corpus without them is rejected."""
    strategy.needs_weights = True  # type: ignore[attr-defined]
    return strategy


def compute_mask_budget(rate: float, count: int) -> int:
    """Return round(rate * count), at least 1; 0 at rate 0 or for an empty text (docs/methods/masking.md)."""
    return max(1, round(rate * count)) if rate > 0 and count > 0 else 0


def mask_random_tokens(given: MaskInput) -> np.ndarray:
    """Hide `budget` word pieces sampled uniformly: those that `mask_rom` hides if all weights are 0."""
    return given.hide(sort_largest_first(given.rng.random(np.count_nonzero(given.content))))


def mask_bernoulli(given: MaskInput) -> np.ndarray:
    """Hide each word piece independently with probability `rate` (DiffCSE)."""
    return (given.rng.random(len(given.text.ids)) < given.rate) & given.content


def mask_whole_words(given: MaskInput) -> np.ndarray:
    """Hide words in random order, all pieces of each; skip a word that exceeds what is left of the budget."""
    words = group_words(given.text.words)
    order = given.rng.permutation(len(words.sizes))
    return words.expand(fill_budget(order, words.sizes, given.budget))


def mask_complement(given: MaskInput) -> np.ndarray:
    """Hide exactly the word pieces that `other` leaves visible; the rate is not used (MASTER)."""
    return ~given.other.hidden & given.content


def compute_extra_rate(rate: float, inner: float) -> float:
    """Return the rate of an independent mask whose union with a mask of rate `inner` has the rate `rate`."""
    return (rate - inner) / (1 - inner) if inner < 1 else 0.0


def mask_extension(given: MaskInput) -> np.ndarray:
    """Hide what `other` hides, and an independent `mask_whole_words` mask at `compute_extra_rate` (SimLM's decoder)."""
    return given.other.hidden | mask_whole_words(given._replace(rate=compute_extra_rate(given.rate, given.other.rate)))


@uses_weights
def mask_keywords(given: MaskInput) -> np.ndarray:
    """Hide words sampled in proportion to their weight until the budget is covered; the last may exceed it (MASTER).

    The weight of a word is the maximum of its pieces.
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
    """Hide the `budget` word pieces with the largest U(0, 1) + weight (ROM); the first of equal ones.

    scale: normalization of the weights (`scale_weights`)    weight_scale: factor on the normalized weights
    whole_word: draw once per word, whose weight is the maximum of its pieces; skip words that exceed the budget
    """

    def order(weights: np.ndarray) -> np.ndarray:
        return sort_largest_first(scale_weights(weights, scale) * weight_scale + given.rng.random(len(weights)))

    if whole_word:
        words = group_words(given.text.words)
        return words.expand(fill_budget(order(words.max_weights(given.weights)), words.sizes, given.budget))
    return given.hide(order(given.weights[given.content]))


def order_by_weight(weights: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
    """Return indices in the order of sampling without replacement in proportion to `weights`, (words,); zeros come last.

    Sorting exponential draws divided by the weights gives that order (Efraimidis and Spirakis 2006).
    """
    weightless = ~(weights > 0)
    waits = rng.standard_exponential(len(weights))
    waits[~weightless] /= weights[~weightless]
    return np.lexsort((waits, weightless))


def scale_weights(weights: np.ndarray, how: Scale) -> np.ndarray:
    """Normalize the weights of a passage, (pieces,), by their maximum, from minimum to maximum, or to a sum of 1."""
    lowest = weights.min(initial=np.inf) if how == "minmax" and len(weights) else 0.0
    span = weights.sum() if how == "sum" else weights.max(initial=0.0) - lowest
    return (weights - lowest) / span if span > 0 else np.zeros_like(weights)


def sort_largest_first(scores: np.ndarray) -> np.ndarray:
    """Return the indices that sort `scores` in descending order; ties keep their order."""
    return np.argsort(-scores, kind="stable")


def fill_budget(order: np.ndarray, sizes: np.ndarray, budget: int) -> np.ndarray:
    """Take words in `order` until `budget` pieces are spent, (words,) bool; skip a word larger than what is left.

    order: (words,) indices    sizes: (words,) pieces of each word
    """
    taken = np.zeros(len(sizes), dtype=bool)
    ordered = sizes[order]
    together = ordered.cumsum()
    cut = int(together.searchsorted(budget, side="right"))  # all words before the first that does not fit
    taken[order[:cut]] = True
    left = budget - int(together[cut - 1]) if cut else budget
    if left:
        for place, size in enumerate(ordered[cut:].tolist(), start=cut):
            if size <= left:
                taken[order[place]] = True
                left -= size
                if not left:
                    break
    return taken


class WordGroups(NamedTuple):
    """The words of a text: runs of pieces with the same number.

    content: (tokens,) bool, False at special tokens
    begins, sizes: (words,), index of the first piece (special tokens not counted) and number of pieces of each word
    """

    content: np.ndarray
    begins: np.ndarray
    sizes: np.ndarray

    def expand(self, chosen: np.ndarray) -> np.ndarray:
        """Turn a choice of words, (words,) bool, into one of pieces, (tokens,) bool."""
        hidden = np.zeros(len(self.content), dtype=bool)
        hidden[self.content] = chosen.repeat(self.sizes)
        return hidden

    def max_weights(self, weights: np.ndarray) -> np.ndarray:
        """Return the largest weight of each word, (words,), from weights of pieces, (tokens,)."""
        return np.maximum.reduceat(weights[self.content], self.begins)


def group_words(words: np.ndarray) -> WordGroups:
    """Group `Text.words`, (tokens,); equal numbers on both sides of a special token are two words."""
    content = words >= 0
    first = content.copy()
    first[1:] &= words[1:] != words[:-1]
    begins = first[content].nonzero()[0]
    sizes = np.empty_like(begins)
    np.subtract(begins[1:], begins[:-1], out=sizes[:-1])
    sizes[-1:] = np.count_nonzero(content) - begins[-1:]
    return WordGroups(content, begins, sizes)
