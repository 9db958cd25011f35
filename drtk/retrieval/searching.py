"""Rankings as they are asked for: of passages or of whole documents, without the query's own document, k of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from drtk.errors import DrtkError
from drtk.retrieval.base import Ranking, best_first
from drtk.retrieval.collection import Collection

GROWTH = 4  # how much deeper a search goes that did not find enough


@dataclass(frozen=True)
class Wanted:
    """What a ranking shall hold.

    by: a passage's document; a document's score is then that of its best passage (MaxP).
    drop_same_id: leave out the document (or passage) that is called what the query is called.
    """

    k: int
    by: Callable[[str], str] | None = None
    drop_same_id: bool = False

    def of(self, query_id: str, found: Ranking) -> Ranking:
        """All of `found`, grouped and freed of the query's own document, best first; not yet cut."""
        if self.by is not None:
            best: dict[str, float] = {}
            for id, score in found:
                best.setdefault(self.by(id), score)
            found = best_first(list(best), list(best.values()))
        return [hit for hit in found if hit[0] != query_id] if self.drop_same_id else found


def search(
    collection: Collection, query_ids: Sequence[str], batch: Sequence[str] | np.ndarray, wanted: Wanted
) -> list[Ranking]:
    """Rankings of `wanted.k` for each query, fewer only where the indexes give no more.

    batch: texts, or vectors (queries, dimension). Raises DrtkError for a vector with NaN or infinite numbers.
    Documents have several passages, so k passages rarely give k documents: queries that are short of them are searched
    again, deeper, until k documents are found whose scores no passage further down could reach.
    """
    if isinstance(batch, np.ndarray) and not (finite := np.isfinite(batch).all(axis=1)).all():
        raise DrtkError(
            f"query '{query_ids[int(np.argmin(finite))]}': its vector has NaN or infinite numbers; encode it again"
        )
    found: list[Ranking] = [[] for _ in query_ids]
    waiting = list(range(len(query_ids)))
    depth = wanted.k + wanted.drop_same_id
    while waiting:
        part = batch[waiting] if isinstance(batch, np.ndarray) else [batch[place] for place in waiting]
        unsettled = []
        for place, ranking in zip(waiting, collection.search(part, depth), strict=True):
            found[place] = wanted.of(query_ids[place], ranking)
            exhausted = len(ranking) < depth or depth >= len(collection)
            if not exhausted and not _settled(found[place], ranking, wanted):
                unsettled.append(place)
        waiting, depth = unsettled, min(depth * GROWTH, len(collection))
    return [ranking[: wanted.k] for ranking in found]


def _settled(kept: Ranking, ranking: Ranking, wanted: Wanted) -> bool:
    if wanted.by is None:
        return True  # one passage more was asked for where one might go
    return len(kept) >= wanted.k and ranking[-1][1] < kept[wanted.k - 1][1]
