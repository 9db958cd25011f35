"""What an index is: built from passages or from vectors, opened from its folder, searched in batches.

The order of results is stated once, here: by score, higher first, and among equal scores by *descending* id (code
points, which is also the byte order of UTF-8). trec_eval sorts so, hence printed ranks are the ranks that are scored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from drtk.records import Passage

if TYPE_CHECKING:
    import numpy as np

    from drtk.io.progress import Progress
    from drtk.retrieval.vectors import Vectors

Ranking = list[tuple[str, float]]  # (passage id, score), best first; ids are unique


class SparseIndex(Protocol):
    """An index over the words of passages. An index type's class; `drtk index` and `drtk search` use nothing else."""

    reads: ClassVar[Literal["passages"]]
    tunable: ClassVar[bool]  # whether k1 and b have a part in its scores

    @classmethod
    def build(
        cls, passages: Iterable[Passage], folder: Path, settings: Any, *, progress: Progress | None = None
    ) -> int:
        """Write the engine's files into `folder` (which exists); the number of passages indexed."""

    @classmethod
    def open(cls, folder: Path, settings: Any) -> SparseIndex:
        """The index in `folder`, ready to be searched with `settings`."""

    def search(self, texts: Sequence[str], k: int) -> list[Ranking]:
        """Up to `k` passages for each text, in the order of this module; an empty text finds nothing."""

    def __len__(self) -> int:
        """How many passages are indexed."""


class DenseIndex(Protocol):
    """An index over vectors; scores are inner products."""

    reads: ClassVar[Literal["vectors"]]
    dimension: int

    @classmethod
    def check(cls, vectors: Vectors, settings: Any, *, kind: str) -> None:
        """Raise UsageError for an index type `kind` that cannot be made of these vectors, before anything is written."""

    @classmethod
    def build(
        cls, vectors: Vectors, folder: Path, settings: Any, *, kind: str, progress: Progress | None = None
    ) -> dict[str, Any]:
        """Write the engine's files into `folder` (which exists) for the index type `kind`; facts for its meta.json.

        Raises DrtkError for a vector that is not finite, MismatchError for duplicate ids.
        """

    @classmethod
    def open(cls, folder: Path, settings: Any) -> DenseIndex:
        """The index in `folder`, ready to be searched with `settings`."""

    def search(self, vectors: np.ndarray, k: int) -> list[Ranking]:
        """Up to `k` passages for each row of (queries, dimension) float32, in the order of this module."""

    def __len__(self) -> int:
        """How many passages are indexed."""


def best_first(ids: Sequence[str], scores: Sequence[float], k: int | None = None) -> Ranking:
    """The `k` best (id, score) pairs, all of them where `k` is None: by score, then by descending id."""
    pairs = sorted(zip(map(float, scores), ids, strict=True), reverse=True)
    return [(id, score) for score, id in pairs[:k]]
