"""Replace, insert and delete tokens."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from drtk.pretraining.masking.base import renumbered
from drtk.text.token_dataset import Text

Corruption = Literal["none", "mask", "bert", "replaced"]  # those that leave a text as long as it is
_MASKED, _RANDOM = 0.8, 0.1  # BERT's shares; the rest stays as it is, and is predicted all the same


class Vocabulary(NamedTuple):
    """The numbers of a tokenizer's tokens: how many, that of [MASK], those of all special tokens."""

    size: int
    mask: int
    special: frozenset[int]


class Edited(NamedTuple):
    """A text after insertion or deletion; every array has the shape (tokens,).

    ids: int32    hidden: bool, True at inserted [MASK]s, which a generator fills
    edited: int64, the label: 1 at an inserted token, or at one right after tokens that were taken out
    words: int32, as in `Text`; an inserted token is a word of its own
    types: as in `Text`; an inserted token has the type of the token after it
    """

    ids: np.ndarray
    hidden: np.ndarray
    edited: np.ndarray
    words: np.ndarray
    types: np.ndarray | None = None


def corrupted(
    ids: np.ndarray, hidden: np.ndarray, how: Corruption, *, rng: np.random.Generator, vocabulary: Vocabulary
) -> np.ndarray:
    """The ids that a model reads, (tokens,); `ids` stays as it is. Special tokens are safe where `hidden` spares them.

    none: all visible. mask: [MASK] wherever hidden. bert: of the hidden, each by itself, 80% [MASK], 10% any token of the
    vocabulary, special ones not excepted, 10% as it was. replaced: [MASK], for a generator to fill.
    ValueError for another `how`.
    """
    found = ids.copy()
    if how == "none":
        return found
    if how in ("mask", "replaced"):
        found[hidden] = vocabulary.mask
        return found
    if how != "bert":
        raise ValueError(f"unknown corruption '{how}'; choose from none, mask, bert, replaced")
    places = hidden.nonzero()[0]
    chance = rng.random(len(places))
    found[places[chance < _MASKED]] = vocabulary.mask
    swapped = places[(chance >= _MASKED) & (chance < _MASKED + _RANDOM)]
    found[swapped] = rng.integers(vocabulary.size, size=len(swapped))
    return found


def inserted(text: Text, rate: float, *, rng: np.random.Generator, vocabulary: Vocabulary) -> Edited:
    """[MASK]s at round(rate * T) of the gaps beside word pieces, at most one in each; T counts pieces, special tokens apart.

    The result is that much longer than `text`: the caller leaves room.
    """
    beside = np.zeros(len(text.ids) + 1, dtype=bool)
    content = text.words >= 0
    beside[:-1] |= content
    beside[1:] |= content
    gaps = rng.permutation(beside.nonzero()[0])[: _share(rate, text)]
    return with_masks(text, np.sort(gaps), mask=vocabulary.mask)


def with_masks(text: Text, gaps: np.ndarray, *, mask: int) -> Edited:
    """[MASK] put before each of the places `gaps`, which rise; a word that is parted by one becomes two."""
    ids, old = np.insert(text.ids, gaps, mask), np.insert(text.words, gaps, np.iinfo(np.int32).max)
    hidden = np.zeros(len(ids), dtype=bool)
    hidden[gaps + np.arange(len(gaps))] = True
    types = None
    if text.types is not None:
        types = np.insert(text.types, gaps, text.types[np.minimum(gaps, len(text.types) - 1)])
    return Edited(ids, hidden, hidden.astype(np.int64), renumbered(old), types)


def deleted(text: Text, rate: float, *, rng: np.random.Generator) -> Edited:
    """Without round(rate * T) of the T word pieces; special tokens stay."""
    removed = np.zeros(len(text.ids), dtype=bool)
    removed[rng.permutation((text.words >= 0).nonzero()[0])[: _share(rate, text)]] = True
    return without(text, removed)


def without(text: Text, removed: np.ndarray) -> Edited:
    """What is left of a text, labelled 1 where a token right before it was removed. removed: (tokens,) bool"""
    kept = ~removed
    after = np.zeros(len(removed), dtype=np.int64)
    after[1:] = removed[:-1]
    ids = text.ids[kept]
    types = None if text.types is None else text.types[kept]
    return Edited(ids, np.zeros(len(ids), dtype=bool), after[kept], renumbered(text.words[kept]), types)


def _share(rate: float, text: Text) -> int:
    return round(rate * int(np.count_nonzero(text.words >= 0)))
