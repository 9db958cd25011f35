"""What of a run is scored: the order of its lines, whole documents instead of passages, its first so many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from drtk.io.trec import Order, QueryHits

SourceOf = Callable[[str], str]


@dataclass(frozen=True)
class View:
    """How rankings are looked at before they are scored.

    order: what decides, scores or the rank column. by: a passage's document, where documents are scored by their best
    passage (MaxP). drop_same_id: a query's own document goes, before the cut. depth: only so many are scored.
    """

    order: Order = "score"
    by: SourceOf | None = None
    drop_same_id: bool = False
    depth: int | None = None

    def __call__(self, hits: QueryHits) -> list[str]:
        """Ids of one query's ranking, best first."""
        if self.by is None:
            ids = hits.ranked_ids(self.order)
        else:
            best: dict[str, float] = {}
            for id, score in hits.ranking(self.order):
                best.setdefault(self.by(id), score)
            ids = list(best)
            if self.order == "score":  # among equal scores it is now the document's id that decides
                ids = QueryHits(hits.query_id, ids, list(best.values())).ranked_ids()
        if self.drop_same_id:
            ids = [id for id in ids if id != hits.query_id]
        return ids[: self.depth]

    def length(self, hits: QueryHits) -> int:
        """How many documents one query's ranking holds, before any is left out or the ranking is cut."""
        return len(hits.doc_ids) if self.by is None else len({self.by(id) for id in hits.doc_ids})

    def top(self, hits: QueryHits) -> str:
        """The passage that put the first of `self(hits)` where it is. ValueError where nothing is left of the ranking."""
        for id in hits.ranked_ids(self.order):
            if not self.drop_same_id or (self.by(id) if self.by else id) != hits.query_id:
                return id
        raise ValueError(f"the ranking of query '{hits.query_id}' is empty")

    def all(self, hits: Mapping[str, QueryHits]) -> dict[str, list[str]]:
        """The rankings of every query."""
        return {query: self(found) for query, found in hits.items()}
