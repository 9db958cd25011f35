"""Indexes as sources of candidates: each is asked with a window of queries, as texts or as vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from drtk.errors import DrtkError, MismatchError
from drtk.io.corpus_ids import CorpusIds
from drtk.retrieval.asking import QueryEncoder, StoredQueries, StoredQuery, TextQueries
from drtk.retrieval.collection import Collection
from drtk.retrieval.mining.pool import Asked, Ranked
from drtk.retrieval.searching import Wanted
from drtk.settings.mining import MineSettings


class Indexes:
    """Opened index folders by name; called with queries, it gives what each index finds for them.

    depth: passages searched for; None: all. query_vectors: an embeddings folder that indexes of vectors are asked with; others are asked with texts.
    Raises MismatchError where an index gives a passage that is not in the corpus, DrtkError for a score that is not finite.
    """

    def __init__(
        self,
        folders: Mapping[str, Sequence[str]],
        settings: MineSettings,
        *,
        depth: int | None,
        query_vectors: str | None = None,
        model: str | None = None,
        corpus: CorpusIds | None = None,
    ) -> None:
        searching = settings.searching()
        self._corpus = corpus
        self._asks: dict[str, Any] = {}
        self._depth = depth
        self.encodes = False  # whether some index is asked with texts that are made vectors
        for name, paths in folders.items():
            collection = Collection(paths, searching)
            if collection.reads == "vectors" and query_vectors is not None:
                self._asks[name] = StoredQueries(collection, query_vectors)
            else:
                encode = QueryEncoder(collection, searching, model) if collection.reads == "vectors" else None
                self.encodes |= encode is not None
                self._asks[name] = TextQueries(collection, encode)

    @property
    def needs_text(self) -> bool:
        """Whether some index is asked with texts."""
        return any(isinstance(ask, TextQueries) for ask in self._asks.values())

    @property
    def stored(self) -> StoredQueries | None:
        """The queries of the embeddings folder, where one is used."""
        return next((ask for ask in self._asks.values() if isinstance(ask, StoredQueries)), None)

    def __call__(self, window: Sequence[Asked]) -> Iterator[dict[str, Ranked]]:
        """For each query, what each index finds."""
        found: list[dict[str, Ranked]] = [{} for _ in window]
        for name, ask in self._asks.items():
            asked: Sequence[Any]
            if isinstance(ask, StoredQueries):
                asked = [StoredQuery(one.query_id, *(one.row or (0, 0))) for one in window]
            else:
                asked = [one.query for one in window]
            wanted = Wanted(self._depth or len(ask.collection))
            for place, (query_id, ranking) in zip(found, ask(asked, wanted) if window else (), strict=True):
                place[name] = self._checked(query_id, ranking, ask.collection.folders[0])
        yield from found

    def _checked(self, query_id: str, ranking: Sequence[tuple[str, float]], folder: str) -> Ranked:
        ids, scores = [id for id, _ in ranking], [score for _, score in ranking]
        if not isfinite(sum(scores)):
            raise DrtkError(f"{folder}: gives query '{query_id}' a score that is not finite")
        if self._corpus is not None:
            lacking = [id for id in ids if id not in self._corpus]
            if lacking:
                more = f", and {len(lacking) - 1:,} more of its {len(ids):,} hits" if len(lacking) > 1 else ""
                raise MismatchError(
                    f"{folder}: passage '{lacking[0]}', found for query '{query_id}', is not in the corpus{more}"
                )
        return Ranked(ids, scores)
