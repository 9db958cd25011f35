"""Search indexes for candidates."""

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
    """Searcher of several indexes.

    folders: index folders by source name; folders of the same name are searched together
    depth: hits per query; None returns all passages
    encodes_texts: whether query texts are encoded for a dense index
    stored: the queries of the embeddings folder, if one is used
    Raises UsageError if an index requires query texts and none are given, MismatchError for a hit that is not in the
    corpus, DrtkError for a score that is NaN or infinite.
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
        self.stored: StoredQueries | None = None
        for name, paths in folders.items():
            indexes = IndexGroup(paths, settings.search_settings())
            is_dense = indexes.reads == "vectors"
            if is_dense and inputs.query_vectors is not None:
                self._searchers[name] = self.stored = StoredQueries(indexes, inputs.query_vectors)
                continue
            if inputs.queries is None:
                raise UsageError(f"{paths[0]}: `queries` is required (or `query_vectors`, for a dense index)")
            self.encodes_texts |= is_dense
            encoder = QueryEncoder(indexes, settings.search_settings(), inputs.model) if is_dense else None
            self._searchers[name] = TextQueries(indexes, encoder)
        self.needs_text = any(isinstance(searcher, TextQueries) for searcher in self._searchers.values())

    def search(self, window: Sequence[MiningQuery], names: Sequence[str]) -> list[MiningQuery]:
        """Search each index for a batch of queries; return the queries with the hits added, in the order of `names`."""
        hits: list[dict[str, Hits]] = [{} for _ in window]
        for name, searcher in self._searchers.items() if window else ():
            options = RankingOptions(self._depth or len(searcher.indexes))
            if isinstance(searcher, StoredQueries):
                rankings = searcher([StoredQuery(query.query_id, *(query.row or (0, 0))) for query in window], options)
            else:
                rankings = searcher([query.query for query in window if query.query is not None], options)
            for hits_by_name, (query_id, ranking) in zip(hits, rankings, strict=True):
                hits_by_name[name] = self._make_hits(query_id, ranking, searcher.indexes.folders[0])
        queries = []
        for query, hits_by_name in zip(window, hits, strict=True):
            merged = hits_by_name | query.hits
            in_order = {name: merged[name] for name in names if name in merged}
            queries.append(replace(query, hits=in_order | merged))
        return queries

    def _make_hits(self, query_id: str, ranking: Sequence[tuple[str, float]], folder: str) -> Hits:
        ids, scores = [id for id, _ in ranking], [score for _, score in ranking]
        if not isfinite(sum(scores)):
            raise DrtkError(f"{folder}: query '{query_id}' has a score that is NaN or infinite; rebuild the index")
        if self._corpus is not None:
            unknown = [id for id in ids if id not in self._corpus]
            if unknown:
                more = f", and {len(unknown) - 1:,} more of its {len(ids):,} hits" if len(unknown) > 1 else ""
                raise MismatchError(
                    f"{folder}: passage '{unknown[0]}', retrieved for query '{query_id}', is not in the corpus{more}"
                )
        return Hits(ids, scores)
