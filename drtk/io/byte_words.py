"""Fields of a block of bytes, compared and hashed all at once, 8 letters at a time."""

from __future__ import annotations

import numpy as np

_WORD, _BEFORE = 8, 24  # bytes of a word, and of padding before the data
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: it spreads what is close together
_MASKS = np.array([(1 << (8 * size)) - 1 for size in range(_WORD)] + [(1 << 64) - 1], dtype=np.uint64)


class ByteWords:
    """Bytes as words of 8 that may begin anywhere."""

    def __init__(self, data: bytes) -> None:
        padded = bytes(_BEFORE) + data + bytes(_WORD)
        self._words = np.ndarray(len(padded) - _WORD + 1, dtype="<u8", buffer=padded, strides=(1,))

    def at(self, starts: np.ndarray, lengths: np.ndarray, number: int) -> np.ndarray:
        """The word `number` of each field, bytes beyond its end being 0. (fields,) uint64"""
        left = np.clip(lengths - _WORD * number, 0, _WORD)
        places = np.minimum(starts + (_WORD * number + _BEFORE), len(self._words) - 1)
        found = self._words[places]  # not take(): it would copy words that are not aligned, all of them
        found &= _MASKS[left]
        return found

    def before(self, starts: np.ndarray, ends: np.ndarray, words: int) -> np.ndarray:
        """The last letters of each field as rows of bytes, the last one in the last row, 0 before the field.

        returns: (8 * words, fields) uint8
        """
        found = np.empty((len(ends), words), dtype="<u8")
        for number in range(words):
            over = _WORD * (words - 1 - number)  # letters behind this word
            missing = np.clip(_WORD - (ends - starts - over), 0, _WORD)
            word = self._words[ends + (_BEFORE - _WORD - over)]
            found[:, number] = word & ~_MASKS[missing]
        return np.ascontiguousarray(found.view(np.uint8).T)

    def hashes(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """A hash of each field, which depends on nothing but its letters. (fields,) uint64"""
        lengths = ends - starts
        found = lengths.astype(np.uint64)
        shortest = int(lengths.min()) if len(lengths) else 0
        for number in range(-(-int(lengths.max(initial=0)) // _WORD)):
            mixed = (found ^ self.at(starts, lengths, number)) * MULTIPLIER
            mixed ^= mixed >> np.uint64(29)
            found = mixed if shortest > _WORD * number else np.where(lengths > _WORD * number, mixed, found)
        return found

    def changes(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Rows that differ from the one before. (changes,)"""
        lengths = ends - starts
        differs = lengths[1:] != lengths[:-1]
        for number in range(-(-int(lengths.max(initial=0)) // _WORD)):
            word = self.at(starts, lengths, number)
            differs |= word[1:] != word[:-1]
        return np.flatnonzero(differs) + 1
