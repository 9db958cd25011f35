"""Masking strategies, which select tokens to mask, and corruptions, which replace, insert or delete tokens.

A masking strategy is a function (MaskInput, **options) -> (tokens,) bool, True at masked tokens. Special tokens are never masked.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from drtk.pretraining.config import needs_fields
from drtk.registry import Registry
from drtk.text.token_dataset import TokenizedText

Scale = Literal["max", "minmax", "sum"]
_MASKED, _RANDOM = 0.8, 0.1  # shares in BERT; the remaining tokens stay unchanged but are predicted too

MASKING = Registry(
    "masking strategy",
    {
        "random": (f"{__name__}:mask_random_tokens", "tokens sampled uniformly"),
        "bernoulli": (f"{__name__}:mask_bernoulli", "each token independently with the same probability (DiffCSE)"),
        "whole-word": (f"{__name__}:mask_whole_words", "whole words"),
        "rom": (f"{__name__}:mask_rom", "tokens with the largest sum of weight and uniform random number (ROM)"),
        "keyword": (f"{__name__}:mask_keywords", "words sampled in proportion to their weight (MASTER)"),
        "extension": (
            f"{__name__}:mask_extension",
            "the tokens that another slot masks, and more words (SimLM's decoder)",
        ),
        "complement": (f"{__name__}:mask_complement", "the tokens that another slot does not mask (MASTER)"),
    },
)


class MaskInput(NamedTuple):
    """The input of a masking strategy.

    text: a text with its special tokens    words: the word pieces of the text grouped by word
    rate: share of tokens to mask, in [0, 1]    rng: random number generator
    counted: number of tokens that `rate` refers to, with or without special tokens
    other: mask of the same text in another encoder input (the slot that `of` names), (tokens,) bool; None without `of`
    other_rate: share of tokens to mask in that input
    """

    text: TokenizedText
    words: WordGroups
    rate: float
    rng: np.random.Generator
    counted: int
    other: Any = None
    other_rate: float = 0.0

    @property
    def budget(self) -> int:
        """Number of tokens to mask."""
        return compute_mask_budget(self.rate, self.counted)

    @property
    def content(self) -> np.ndarray:
        """(tokens,) bool, False at special tokens."""
        return self.words.content

    @property
    def weights(self) -> np.ndarray:
        """Weights of the tokens, (tokens,). Raises ValueError for a text without weights."""
        if self.text.weights is None:
            raise ValueError("requires token weights, but the text has none; run `drtk termweight` first")
        return self.text.weights

    def build_mask(self, order: np.ndarray) -> np.ndarray:
        """Return a mask of the first `budget` tokens in `order`, (tokens,) bool.

        order: indices of the tokens, not counting special tokens
        """
        masked = np.zeros(len(self.text.ids), dtype=bool)
        masked[self.content.nonzero()[0][order[: self.budget]]] = True
        return masked


def compute_mask_budget(rate: float, count: int) -> int:
    """Return the number of tokens to mask, round(rate * count), at least 1 (docs/methods/masking.md).

    rate: share of tokens to mask    count: number of tokens; the result is 0 if `rate` or `count` is 0
    """
    return max(1, round(rate * count)) if rate > 0 and count > 0 else 0


def mask_random_tokens(inputs: MaskInput) -> np.ndarray:
    """Mask `inputs.budget` tokens sampled uniformly; return (tokens,) bool. Equals `mask_rom` with all weights 0."""
    return inputs.build_mask(sort_largest_first(inputs.rng.random(np.count_nonzero(inputs.content))))


def mask_bernoulli(inputs: MaskInput) -> np.ndarray:
    """Mask each token independently with probability `inputs.rate` (DiffCSE); return (tokens,) bool."""
    return (inputs.rng.random(len(inputs.text.ids)) < inputs.rate) & inputs.content


def mask_whole_words(inputs: MaskInput) -> np.ndarray:
    """Mask whole words in random order up to `inputs.budget` tokens, and skip words that do not fit; return (tokens,) bool."""
    words = inputs.words
    order = inputs.rng.permutation(len(words.sizes))
    return words.expand_to_tokens(fill_budget(order, words.sizes, inputs.budget))


def mask_complement(inputs: MaskInput) -> np.ndarray:
    """Mask the tokens that `inputs.other`, the mask of another input, leaves unmasked (MASTER); return (tokens,) bool.

    `inputs.rate` has no effect.
    """
    return ~inputs.other & inputs.content


def compute_added_rate(rate: float, inner: float) -> float:
    """Return the share of tokens that an independent second mask must mask, so that both masks together mask `rate`.

    rate: share masked by either mask    inner: share masked by the first mask
    """
    return (rate - inner) / (1 - inner) if inner < 1 else 0.0


def mask_extension(inputs: MaskInput) -> np.ndarray:
    """Mask the tokens of `inputs.other`, the encoder's mask, and further random whole words (SimLM's decoder).

    Returns (tokens,) bool. Both together mask about `inputs.rate` of the tokens.
    """
    added_rate = compute_added_rate(inputs.rate, inputs.other_rate)
    return inputs.other | mask_whole_words(inputs._replace(rate=added_rate))


@needs_fields("weights")
def mask_keywords(inputs: MaskInput) -> np.ndarray:
    """Mask whole words, sampled in proportion to their weight, until at least `inputs.budget` tokens are masked (MASTER).

    Returns (tokens,) bool. The weight of a word is the maximum weight of its word pieces.
    """
    words = inputs.words
    order = order_by_weight(words.compute_max_weights(inputs.weights), rng=inputs.rng)
    chosen = np.zeros(len(order), dtype=bool)
    if inputs.budget:
        covered = words.sizes[order].cumsum()
        chosen[order[: int(covered.searchsorted(inputs.budget)) + 1]] = True
    return words.expand_to_tokens(chosen)


@needs_fields("weights")
def mask_rom(
    inputs: MaskInput, *, scale: Scale = "max", weight_scale: float = 1.0, whole_word: bool = False
) -> np.ndarray:
    """Mask the `inputs.budget` tokens with the largest sum of weight and a random number from U(0, 1) (ROM).

    Returns (tokens,) bool. Of equal sums, the token that comes first in the text is masked.

    scale: normalization of the weights (see `scale_weights`)    weight_scale: factor on the normalized weights
    whole_word: mask whole words by the maximum weight of their word pieces; skip words that do not fit into the budget
    """

    def order(weights: np.ndarray) -> np.ndarray:
        return sort_largest_first(scale_weights(weights, scale) * weight_scale + inputs.rng.random(len(weights)))

    if whole_word:
        words = inputs.words
        return words.expand_to_tokens(
            fill_budget(order(words.compute_max_weights(inputs.weights)), words.sizes, inputs.budget)
        )
    return inputs.build_mask(order(inputs.weights[inputs.content]))


def order_by_weight(weights: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
    """Sample all words without replacement in proportion to `weights`, (words,); return their indices in this order, (words,).

    Words of weight 0 come last. The order sorts exponential random numbers divided by the weights (Efraimidis and Spirakis 2006).
    """
    has_weight = weights > 0
    keys = rng.standard_exponential(len(weights))
    np.divide(keys, weights, out=keys, where=has_weight)
    return np.lexsort((keys, ~has_weight))


def scale_weights(weights: np.ndarray, scale: Scale) -> np.ndarray:
    """Return the normalized weights of a text, (tokens,) or (words,).

    scale: divide by their maximum ("max") or sum ("sum"), or scale to [0, 1] ("minmax"); zeros if the divisor is 0
    """
    lowest = weights.min(initial=np.inf) if scale == "minmax" and len(weights) else 0.0
    span = weights.sum() if scale == "sum" else weights.max(initial=0.0) - lowest
    return (weights - lowest) / span if span > 0 else np.zeros_like(weights)


def sort_largest_first(scores: np.ndarray) -> np.ndarray:
    """Return the indices that sort `scores` in descending order; equal scores keep their order. scores, result: (n,)"""
    return np.argsort(-scores, kind="stable")


def fill_budget(order: np.ndarray, sizes: np.ndarray, budget: int) -> np.ndarray:
    """Select words in the given order up to a total of `budget` word pieces, and skip words that do not fit.

    order: (words,), word indices    sizes: (words,), number of word pieces of each word
    returns: (words,) bool, True for selected words
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

    def expand_to_tokens(self, chosen: np.ndarray) -> np.ndarray:
        """Convert a mask of words, (words,) bool, to a mask of their tokens, (tokens,) bool."""
        masked = np.zeros(len(self.content), dtype=bool)
        masked[self.content] = chosen.repeat(self.sizes)
        return masked

    def compute_max_weights(self, weights: np.ndarray) -> np.ndarray:
        """Return the maximum weight of the word pieces of each word, (words,). weights: (tokens,)"""
        return np.maximum.reduceat(weights[self.content], self.begins)


def group_words(words: np.ndarray) -> WordGroups:
    """Group the tokens of a text into words. A special token ends a word.

    words: (tokens,), word index of each token; -1 at special tokens
    """
    content = words >= 0
    first = content.copy()
    first[1:] &= words[1:] != words[:-1]
    begins = first[content].nonzero()[0]
    sizes = np.empty_like(begins)
    np.subtract(begins[1:], begins[:-1], out=sizes[:-1])
    sizes[-1:] = np.count_nonzero(content) - begins[-1:]
    return WordGroups(content, begins, sizes)


class Vocabulary(NamedTuple):
    """The number of tokens in a vocabulary (`size`), the id of [MASK] (`mask`) and the ids of all special tokens."""

    size: int
    mask: int
    special: frozenset[int]


class EditedText(NamedTuple):
    """A text after tokens were inserted or deleted.

    masked: (tokens,) bool, True at inserted [MASK] tokens, which a generator replaces
    edited: (tokens,) int64, 1 at inserted tokens and at tokens that follow a deletion
    """

    text: TokenizedText
    masked: np.ndarray
    edited: np.ndarray


def corrupt_tokens(
    ids: np.ndarray,
    masked: np.ndarray,
    corruption: Literal["none", "mask", "bert", "replaced"],
    rng: np.random.Generator,
    vocabulary: Vocabulary,
) -> np.ndarray:
    """Return a copy of the token ids with the masked tokens corrupted, (tokens,).

    ids: (tokens,), token ids
    masked: (tokens,) bool, True at masked tokens
    corruption: "none": unchanged; "mask": [MASK]; "replaced": [MASK], which a generator replaces later; "bert": 80% [MASK],
        10% a random token, 10% unchanged
    """
    corrupted = ids.copy()
    if corruption in ("mask", "replaced"):
        corrupted[masked] = vocabulary.mask
    elif corruption == "bert":
        places = masked.nonzero()[0]
        chance = rng.random(len(places))
        corrupted[places[chance < _MASKED]] = vocabulary.mask
        swapped = places[(chance >= _MASKED) & (chance < _MASKED + _RANDOM)]
        corrupted[swapped] = rng.integers(vocabulary.size, size=len(swapped))
    return corrupted


def insert_masks(text: TokenizedText, rate: float, rng: np.random.Generator, vocabulary: Vocabulary) -> EditedText:
    """Insert round(rate * T) [MASK] tokens into a text of T word pieces, at random positions before or after word pieces.

    At most one token is inserted at each position. rate: share in [0, 1]
    """
    beside = np.zeros(len(text.ids) + 1, dtype=bool)
    content = text.words >= 0
    beside[:-1] |= content
    beside[1:] |= content
    gaps = rng.permutation(beside.nonzero()[0])[: _count_edits(rate, text)]
    return insert_masks_at(text, np.sort(gaps), vocabulary.mask)


def insert_masks_at(text: TokenizedText, gaps: np.ndarray, mask: int) -> EditedText:
    """Insert [MASK] before the tokens at the given indices. A word that is split becomes two words.

    An inserted token is a separate word and has the token type of the next token.
    gaps: (n,), token indices in ascending order    mask: id of [MASK]
    """
    ids, words = np.insert(text.ids, gaps, mask), np.insert(text.words, gaps, np.iinfo(np.int32).max)
    masked = np.zeros(len(ids), dtype=bool)
    masked[gaps + np.arange(len(gaps))] = True
    types = None
    if text.types is not None:
        types = np.insert(text.types, gaps, text.types[np.minimum(gaps, len(text.types) - 1)])
    return EditedText(TokenizedText(ids, _renumber(words), None, types), masked, masked.astype(np.int64))


def delete_tokens(text: TokenizedText, rate: float, rng: np.random.Generator) -> EditedText:
    """Delete round(rate * T) random word pieces from a text of T word pieces. rate: share in [0, 1]"""
    removed = np.zeros(len(text.ids), dtype=bool)
    removed[rng.permutation((text.words >= 0).nonzero()[0])[: _count_edits(rate, text)]] = True
    return delete_tokens_at(text, removed)


def delete_tokens_at(text: TokenizedText, removed: np.ndarray) -> EditedText:
    """Delete tokens, and set `edited` to 1 at the token after each deleted token.

    removed: (tokens,) bool, True at tokens to delete
    """
    kept = ~removed
    after = np.zeros(len(removed), dtype=np.int64)
    after[1:] = removed[:-1]
    types = None if text.types is None else text.types[kept]
    edited = TokenizedText(text.ids[kept], _renumber(text.words[kept]), None, types)
    return EditedText(edited, np.zeros(len(edited.ids), dtype=bool), after[kept])


def _count_edits(rate: float, text: TokenizedText) -> int:
    return round(rate * int(np.count_nonzero(text.words >= 0)))


def _renumber(words: np.ndarray) -> np.ndarray:
    """Renumber word indices consecutively from 0; special tokens keep -1. words: (tokens,)"""
    numbers = np.full(len(words), -1, dtype=np.int32)
    groups = group_words(words)
    numbers[groups.content] = np.arange(len(groups.sizes), dtype=np.int32).repeat(groups.sizes)
    return numbers
