"""Corrupt tokenized texts: replace, insert and delete tokens."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from drtk.pretraining.masking.strategies import group_words
from drtk.text.token_dataset import Text

_MASKED, _RANDOM = 0.8, 0.1  # shares in BERT; the remaining tokens stay unchanged but are predicted too


class Vocabulary(NamedTuple):
    """The size of a vocabulary, the id of [MASK] and the ids of all special tokens."""

    size: int
    mask: int
    special: frozenset[int]


class EditedText(NamedTuple):
    """A text with inserted or deleted tokens.

    hidden: (tokens,) bool, True at inserted [MASK] tokens, which a generator replaces
    edited: (tokens,) int64, 1 at inserted tokens and at tokens that follow a deletion
    """

    text: Text
    hidden: np.ndarray
    edited: np.ndarray


def corrupt_tokens(
    ids: np.ndarray,
    hidden: np.ndarray,
    how: Literal["none", "mask", "bert", "replaced"],
    rng: np.random.Generator,
    vocabulary: Vocabulary,
) -> np.ndarray:
    """Return a copy of `ids` with the masked tokens corrupted, (tokens,).

    hidden: (tokens,) bool, True at masked tokens
    how: "none": unchanged; "mask": [MASK]; "replaced": [MASK], which a generator replaces later; "bert": 80% [MASK],
        10% a random token, 10% unchanged
    """
    corrupted = ids.copy()
    if how in ("mask", "replaced"):
        corrupted[hidden] = vocabulary.mask
    elif how == "bert":
        places = hidden.nonzero()[0]
        chance = rng.random(len(places))
        corrupted[places[chance < _MASKED]] = vocabulary.mask
        swapped = places[(chance >= _MASKED) & (chance < _MASKED + _RANDOM)]
        corrupted[swapped] = rng.integers(vocabulary.size, size=len(swapped))
    return corrupted


def insert_masks(text: Text, rate: float, rng: np.random.Generator, vocabulary: Vocabulary) -> EditedText:
    """Insert [MASK] at round(rate * T) random positions next to the T word pieces, at most once per position."""
    beside = np.zeros(len(text.ids) + 1, dtype=bool)
    content = text.words >= 0
    beside[:-1] |= content
    beside[1:] |= content
    gaps = rng.permutation(beside.nonzero()[0])[: _num_edits(rate, text)]
    return insert_masks_at(text, np.sort(gaps), vocabulary.mask)


def insert_masks_at(text: Text, gaps: np.ndarray, mask: int) -> EditedText:
    """Insert [MASK] before each token index in `gaps`, which is sorted. A word that is split becomes two words.

    An inserted token is a separate word and has the token type of the token after it.
    """
    ids, words = np.insert(text.ids, gaps, mask), np.insert(text.words, gaps, np.iinfo(np.int32).max)
    hidden = np.zeros(len(ids), dtype=bool)
    hidden[gaps + np.arange(len(gaps))] = True
    types = None
    if text.types is not None:
        types = np.insert(text.types, gaps, text.types[np.minimum(gaps, len(text.types) - 1)])
    return EditedText(Text(ids, _renumber(words), None, types), hidden, hidden.astype(np.int64))


def delete_tokens(text: Text, rate: float, rng: np.random.Generator) -> EditedText:
    """Delete round(rate * T) of the T word pieces at random."""
    removed = np.zeros(len(text.ids), dtype=bool)
    removed[rng.permutation((text.words >= 0).nonzero()[0])[: _num_edits(rate, text)]] = True
    return delete_tokens_at(text, removed)


def delete_tokens_at(text: Text, removed: np.ndarray) -> EditedText:
    """Delete tokens, and label the token after each deleted token with 1. removed: (tokens,) bool, True at deleted tokens"""
    kept = ~removed
    after = np.zeros(len(removed), dtype=np.int64)
    after[1:] = removed[:-1]
    types = None if text.types is None else text.types[kept]
    edited = Text(text.ids[kept], _renumber(text.words[kept]), None, types)
    return EditedText(edited, np.zeros(len(edited.ids), dtype=bool), after[kept])


def _num_edits(rate: float, text: Text) -> int:
    return round(rate * int(np.count_nonzero(text.words >= 0)))


def _renumber(words: np.ndarray) -> np.ndarray:
    """Renumber word indices consecutively from 0; special tokens keep -1. words: (tokens,)"""
    numbers = np.full(len(words), -1, dtype=np.int32)
    groups = group_words(words)
    numbers[groups.content] = np.arange(len(groups.sizes), dtype=np.int32).repeat(groups.sizes)
    return numbers
