"""Passage ids of an index by row, and the order of results as one integer a hit.

A hit's key is its score's bits above the rank of its id among all ids of the index. Comparing keys compares scores
first and ids next, so the k largest keys are the k best hits with every tie decided, however the rows are cut into
blocks, and no two keys are alike.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np

from drtk.errors import DrtkError, MismatchError
from drtk.retrieval.base import Ranking

IDS, OFFSETS, RANKS = "ids.txt", "ids.offsets.npy", "ids.ranks.npy"


def write_ids(ids: Iterable[str], folder: Path) -> int:
    """Write the table of ids, row by row, and the rank of each in ascending order; the number of ids.

    Raises MismatchError for an id given twice. Holds all ids in memory while it works.
    """
    encoded = [id.encode() for id in ids]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum([len(id) + 1 for id in encoded], out=offsets[1:])
    order = sorted(range(len(encoded)), key=encoded.__getitem__)
    for before, after in pairwise(order):
        if encoded[before] == encoded[after]:
            raise MismatchError(f"id '{encoded[before].decode()}' is given to two vectors")
    ranks = np.empty(len(encoded), dtype=np.uint32)
    ranks[order] = np.arange(len(encoded), dtype=np.uint32)
    with open(folder / IDS, "wb") as file:
        file.writelines(id + b"\n" for id in encoded)
    np.save(folder / OFFSETS, offsets)
    np.save(folder / RANKS, ranks)
    return len(encoded)


class IdTable:
    """Ids by row, read from disk as they are asked for; `ranks` (rows,) is each id's place in ascending order."""

    def __init__(self, folder: Path) -> None:
        try:
            self._offsets = np.load(folder / OFFSETS, mmap_mode="r", allow_pickle=False)
            self.ranks: np.ndarray = np.load(folder / RANKS, allow_pickle=False)
            with open(folder / IDS, "rb") as file:
                self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if len(self) else b""
        except (OSError, ValueError) as error:
            raise DrtkError(f"{folder}: the index is damaged: {error}") from error
        if len(self._text) != self._offsets[-1] or len(self.ranks) != len(self):
            raise DrtkError(f"{folder}: the index is damaged: its table of ids is not whole")
        self._rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def take(self, rows: np.ndarray) -> list[str]:
        """The ids of `rows`."""
        starts, ends = self._offsets[rows].tolist(), self._offsets[rows + 1].tolist()
        return [self._text[start : end - 1].decode() for start, end in zip(starts, ends, strict=True)]

    def rows(self, ranks: np.ndarray) -> np.ndarray:
        """The rows whose ids have these `ranks`."""
        if self._rows is None:
            self._rows = np.empty(len(self), dtype=np.uint32)
            self._rows[self.ranks] = np.arange(len(self), dtype=np.uint32)
        found: np.ndarray = self._rows[ranks].astype(np.int64)
        return found

    def ranking(self, rows: np.ndarray, scores: np.ndarray, k: int) -> Ranking:
        """The `k` best of `rows` (hits,) with float32 `scores` (hits,), in the order of results."""
        keys = keys_of(scores, self.ranks[rows])
        best = np.argsort(-keys)[:k]
        return list(zip(self.take(rows[best]), scores_of(keys[best]).tolist(), strict=True))


def keys_of(scores: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """int64 keys of float32 `scores` and `ranks` below 2**32, of one shape: larger is better."""
    bits = (scores.astype(np.float32) + np.float32(0)).view(np.int32)  # adding zero makes -0.0 equal 0.0
    sortable = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))  # negative floats run backwards in two's complement
    keys: np.ndarray = (sortable.astype(np.int64) << 32) | ranks.astype(np.int64)
    return keys


def scores_of(keys: np.ndarray) -> np.ndarray:
    """The float32 scores within keys."""
    sortable = (keys >> 32).astype(np.int32)
    scores: np.ndarray = (sortable ^ ((sortable >> 31) & np.int32(0x7FFFFFFF))).view(np.float32)
    return scores


def ranks_of(keys: np.ndarray) -> np.ndarray:
    """The ranks within keys."""
    ranks: np.ndarray = keys & np.int64(0xFFFFFFFF)
    return ranks
