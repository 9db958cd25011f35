"""What of a run is scored: the order of its lines, whole documents instead of passages, its first so many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from drtk.io.intake import Intake
from drtk.io.trec import Order, QueryHits
from drtk.records import Passage

SourceOf = Callable[[str], str]


def source_of(passage_id: str) -> str:
    """The document of a chunk: what stands before the last '#'; a passage without one is its own document."""
    return passage_id.rpartition("#")[0] or passage_id


class Sources:
    """The documents of a corpus's passages: by `metadata.source_id`, otherwise by the form of their ids.

    `documents` and `passages` are all ids there are.
    """

    def __init__(self, passages: Iterable[Passage]) -> None:
        self.passages: set[str] = set()
        self.documents: set[str] = set()
        self._other: dict[str, str] = {}  # only what the form of the id does not tell: corpora are large
        for passage in passages:
            named = (passage.metadata or {}).get("source_id")
            document = source_of(passage.id) if named is None else str(named)
            if document != source_of(passage.id):
                self._other[passage.id] = document
            self.passages.add(passage.id)
            self.documents.add(document)

    @classmethod
    def read(cls, corpus: str, intake: Intake) -> Sources:
        """Those of a corpus file."""
        from drtk.io.jsonl import read_passages

        return cls(read_passages(corpus, intake=intake))

    def __call__(self, passage_id: str) -> str:
        return self._other.get(passage_id) or source_of(passage_id)


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

    def all(self, hits: Mapping[str, QueryHits]) -> dict[str, list[str]]:
        """The rankings of every query."""
        return {query: self(found) for query, found in hits.items()}
