"""Candidates straight from indexes: search them for windows of queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite

from drtk.data.ids import CorpusIds
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.mining.candidates import Hits, MiningQuery
from drtk.mining.config import MineSettings, MiningInputs
from drtk.retrieval.search import IndexGroup, QueryEncoder, RankingOptions, StoredQueries, StoredQuery, TextQueries


class IndexSearch:
    """Search opened indexes for windows of queries.

    depth: hits of a query; None: all.
    Raises UsageError if an index needs texts and there are no queries, MismatchError for a hit that is not in the corpus,
    DrtkError for a score that is not finite.
    """

    def __init__(
        self,
        folders: Mapping[str, Sequence[str]],
        settings: MineSettings,
        inputs: MiningInputs,
        *,
        depth: int | None,
        corpus: CorpusIds | None = None,
    ) -> None:
        self._corpus, self._depth = corpus, depth
        self._searchers: dict[str, TextQueries | StoredQueries] = {}
        self.encodes_texts = False
        self.stored: StoredQueries | None = None  # the queries of the embeddings folder, if one is used
        for name, paths in folders.items():
            collection = IndexGroup(paths, settings.search_settings())
            is_dense = collection.reads == "vectors"
            if is_dense and inputs.query_vectors is not None:
                self._searchers[name] = self.stored = StoredQueries(collection, inputs.query_vectors)
                continue
            if inputs.queries is None:
                raise UsageError(f"{paths[0]}: `queries` is required (or `query_vectors`, for a dense index)")
            self.encodes_texts |= is_dense
            encoder = QueryEncoder(collection, settings.search_settings(), inputs.model) if is_dense else None
            self._searchers[name] = TextQueries(collection, encoder)
        self.needs_text = any(isinstance(one, TextQueries) for one in self._searchers.values())

    def search(self, window: Sequence[MiningQuery], names: Sequence[str]) -> list[MiningQuery]:
        """Return the queries with the hits of each index, sources in the order of `names`."""
        hits: list[dict[str, Hits]] = [{} for _ in window]
        for name, searcher in self._searchers.items() if window else ():
            options = RankingOptions(self._depth or len(searcher.collection))
            if isinstance(searcher, StoredQueries):
                rankings = searcher([StoredQuery(one.query_id, *(one.row or (0, 0))) for one in window], options)
            else:
                rankings = searcher([one.query for one in window if one.query is not None], options)
            for found, (query_id, ranking) in zip(hits, rankings, strict=True):
                found[name] = self._check(query_id, ranking, searcher.collection.folders[0])
        queries = []
        for query, found in zip(window, hits, strict=True):
            merged = found | query.hits
            in_order = {name: merged[name] for name in names if name in merged}
            queries.append(replace(query, hits=in_order | merged))
        return queries

    def _check(self, query_id: str, ranking: Sequence[tuple[str, float]], folder: str) -> Hits:
        ids, scores = [id for id, _ in ranking], [score for _, score in ranking]
        if not isfinite(sum(scores)):
            raise DrtkError(f"{folder}: query '{query_id}' has a score that is not finite")
        if self._corpus is not None:
            unknown = [id for id in ids if id not in self._corpus]
            if unknown:
                more = f", and {len(unknown) - 1:,} more of its {len(ids):,} hits" if len(unknown) > 1 else ""
                raise MismatchError(
                    f"{folder}: passage '{unknown[0]}', retrieved for query '{query_id}', is not in the corpus{more}"
                )
        return Hits(ids, scores)
