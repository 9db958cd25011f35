"""Masking strategies: random, whole words, ROM, keywords, and masks derived from another mask."""

from __future__ import annotations

from typing import Literal

import numpy as np

from drtk.pretraining.masking.base import Other, fitting, grouped, mask_budget, mask_of, weighing, weights_of
from drtk.text.token_dataset import Text


def random_tokens(
    text: Text, rate: float, *, rng: np.random.Generator, counted: int, other: Other | None = None
) -> np.ndarray:
    """Hides exactly `mask_budget` word pieces, or all where there are fewer; every set of them is as likely.

    Those with the largest draws from U(0, 1): what `rom` hides of a text without weights under the same seed.
    """
    hidden = np.zeros(len(text.ids), dtype=bool)
    content = (text.words >= 0).nonzero()[0]
    order = np.argsort(-rng.random(len(content)), kind="stable")
    hidden[content[order[: mask_budget(rate, counted)]]] = True
    return hidden


def bernoulli(
    text: Text, rate: float, *, rng: np.random.Generator, counted: int, other: Other | None = None
) -> np.ndarray:
    """Hides each word piece with the chance `rate`, whatever becomes of the others: a short text may keep all (DiffCSE)."""
    return (rng.random(len(text.ids)) < rate) & (text.words >= 0)


def whole_words(
    text: Text, rate: float, *, rng: np.random.Generator, counted: int, other: Other | None = None
) -> np.ndarray:
    """Hides words in random order, all pieces of each, and passes over those that `mask_budget` has no room for."""
    words = grouped(text.words)
    order = rng.permutation(len(words.sizes))
    return words.hidden(fitting(order, words.sizes, mask_budget(rate, counted)))


def complement(
    text: Text, rate: float, *, rng: np.random.Generator, counted: int, other: Other | None = None
) -> np.ndarray:
    """Hides the word pieces that `other` does not, and no other: nothing is drawn, and the rate decides nothing."""
    return ~mask_of(other, text, "complement").hidden & (text.words >= 0)


def extra_rate(rate: float, inner: float) -> float:
    """(rate - inner) / (1 - inner), the rate of an independent draw whose union with one at `inner` is one at `rate`.

    ValueError where `rate` is smaller than `inner`.
    """
    if rate < inner:
        raise ValueError(f"a mask that extends one of rate {inner:g} cannot have the rate {rate:g}")
    return (rate - inner) / (1 - inner) if inner < 1 else 0.0


def extension(
    text: Text, rate: float, *, rng: np.random.Generator, counted: int, other: Other | None = None
) -> np.ndarray:
    """Hides what `other` hides, and whole words of an independent draw over the full text at `extra_rate`.

    Equal rates: exactly what `other` hides. Both draws may hide the same words, so that only the expected count is that of `rate`.
    """
    inner = mask_of(other, text, "extension")
    return inner.hidden | whole_words(text, extra_rate(rate, inner.rate), rng=rng, counted=counted)


def drawn(weights: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
    """Numbers of words in the order of draws without replacement, each in proportion to the weights of what is left.

    An exponential draw over the weight, the smallest first, is that order (Efraimidis and Spirakis 2006).
    weights: (words,); those without one come last, as chance has it    returns: (words,)
    """
    weightless = ~(weights > 0)
    waits = rng.standard_exponential(len(weights))
    waits[~weightless] /= weights[~weightless]
    return np.lexsort((waits, weightless))


@weighing
def keyword(
    text: Text, rate: float, *, rng: np.random.Generator, counted: int, other: Other | None = None
) -> np.ndarray:
    """Hides words drawn in proportion to their weight until `mask_budget` pieces are covered: the last word may exceed it.

    The weight of a word is the largest of its pieces.
    """
    weights, words = weights_of(text, "keyword"), grouped(text.words)
    order = drawn(words.largest(weights), rng=rng)
    chosen = np.zeros(len(order), dtype=bool)
    budget = mask_budget(rate, counted)
    if budget:
        covered = words.sizes[order].cumsum()
        chosen[order[: int(covered.searchsorted(budget)) + 1]] = True
    return words.hidden(chosen)


Scale = Literal["max", "minmax", "sum"]


def scaled(weights: np.ndarray, how: Scale) -> np.ndarray:
    """Weights of a passage in [0, 1]: by their largest, from smallest to largest, or to a sum of 1; 0 where they are all 0.

    weights: (pieces,), 0 or more. A sum of 1 makes weights of long passages too small to matter beside chance.
    """
    lowest = weights.min(initial=np.inf) if how == "minmax" and len(weights) else 0.0
    span = weights.sum() if how == "sum" else weights.max(initial=0.0) - lowest
    return (weights - lowest) / span if span > 0 else np.zeros_like(weights)


def largest_first(scores: np.ndarray) -> np.ndarray:
    """The places of scores from the largest to the smallest, of equals the first first. scores: (pieces,)"""
    return np.argsort(-scores, kind="stable")


@weighing
def rom(
    text: Text,
    rate: float,
    *,
    rng: np.random.Generator,
    counted: int,
    other: Other | None = None,
    scale: Scale = "max",
    weight_scale: float = 1.0,
    whole_word: bool = False,
) -> np.ndarray:
    """Hides the `mask_budget` word pieces with the largest sum of a draw from U(0, 1) and their weight, the first of equals.

    Without weights above 0 this is `random`.
    scale: what brings the weights of this text's pieces into [0, 1]    weight_scale: times this, against the draw
    whole_word: one draw and one weight, the largest of its pieces, for a word; words without room are passed over
    """
    weights, budget = weights_of(text, "rom"), mask_budget(rate, counted)
    if whole_word:
        words = grouped(text.words)
        values = scaled(words.largest(weights), scale) * weight_scale
        order = largest_first(values + rng.random(len(values)))
        return words.hidden(fitting(order, words.sizes, budget))
    hidden = np.zeros(len(text.ids), dtype=bool)
    content = (text.words >= 0).nonzero()[0]
    values = scaled(weights[content], scale) * weight_scale
    hidden[content[largest_first(values + rng.random(len(values)))[:budget]]] = True
    return hidden
