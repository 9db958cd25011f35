"""The order of results as one integer a hit, and the ids and their ranks that it needs.

A hit's key is its score's bits above the rank of its id among all ids of the index. Comparing keys compares scores
first and ids next, so the k largest keys are the k best hits with every tie decided, however the rows are cut into
blocks, and no two keys are alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np

from drtk.errors import DrtkError, MismatchError
from drtk.io.arrays import read_array
from drtk.retrieval.base import Ranking
from drtk.retrieval.id_table import IdTable, write_ids

IDS, RANKS = "ids.txt", "ranks.npy"


class RankedIds:
    """Ids by row, read from disk as they are asked for; `ranks` (rows,) is each id's place in ascending order."""

    @staticmethod
    def write(ids: Iterable[str], folder: Path) -> None:
        """Write the table of ids, row by row, and their ranks. Raises MismatchError for an id given twice.

        Holds all ids in memory while it works.
        """
        listed = list(ids)
        order = sorted(range(len(listed)), key=listed.__getitem__)
        for before, after in pairwise(order):
            if listed[before] == listed[after]:
                raise MismatchError(f"id '{listed[before]}' is given to two passages")
        ranks = np.empty(len(listed), dtype=np.uint32)
        ranks[order] = np.arange(len(listed), dtype=np.uint32)
        write_ids(folder / IDS, listed)
        np.save(folder / RANKS, ranks)

    def __init__(self, folder: Path) -> None:
        self._folder, self._ids = folder, IdTable(folder / IDS)
        self.ranks = read_array(folder / RANKS)
        if len(self.ranks) != len(self):
            raise DrtkError(f"{folder}: the index is damaged: {len(self.ranks):,} ranks for {len(self):,} ids")
        self._rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._ids)

    def rows(self, ranks: np.ndarray) -> np.ndarray:
        """The rows whose ids have these `ranks`."""
        if self._rows is None:
            self._rows = np.empty(len(self), dtype=np.uint32)
            self._rows[self.ranks] = np.arange(len(self), dtype=np.uint32)
        found: np.ndarray = self._rows[ranks].astype(np.int64)
        return found

    def ranking(self, rows: np.ndarray, scores: np.ndarray, k: int | None = None) -> Ranking:
        """Return the `k` best of `rows` (hits,) by float32 `scores` (hits,), best first; all if `k` is None.

        Raises DrtkError for a score that is NaN or infinite.
        """
        if not (finite := np.isfinite(scores)).all():
            raise self.score_fault(int(rows[int(np.argmin(finite))]))
        keys = keys_of(scores, self.ranks[rows])
        best = np.argsort(-keys)[:k]
        return list(zip(self._ids.take(rows[best].tolist()), scores_of(keys[best]).tolist(), strict=True))

    def score_fault(self, row: int) -> DrtkError:
        """Return the error for a row whose score is NaN or infinite."""
        (id,) = self._ids.take([row])
        return DrtkError(
            f"{self._folder}: the score of '{id}' is NaN or infinite: a vector is damaged or too large; encode and index again"
        )


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
