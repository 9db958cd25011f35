"""Evaluate an encoder or reranker during training: ranking of a small collection, or correlation with human ratings."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nsmallest
from pathlib import Path
from typing import Any, Literal

import numpy as np

from drtk.data.beir import find_qrels, require_file
from drtk.data.jsonl import read_passages, read_queries
from drtk.data.trec import Judgements, load_qrels, load_run
from drtk.errors import DrtkError, MismatchError
from drtk.evaluation.evaluate import Evaluator
from drtk.evaluation.measures import parse_measures
from drtk.evaluation.sentence_data import read_pairs
from drtk.evaluation.sentences import pair_cosines, spearman
from drtk.records import Passage, Query
from drtk.runtime.inputs import InputTracker
from drtk.runtime.sharding import sample_evenly

DEPTH = 10
Encode = Callable[
    [Sequence[Any], Literal["query", "passage"]], np.ndarray
]  # records or texts of a role -> (n, d) float32


class RankingProbe:
    """nDCG@10 by inner products over a collection in BEIR's layout.

    queries: largest number of judged queries. pool: largest number of passages, all relevant ones included.
    lot: random number of an id; those with the smallest are sampled.
    Raises MismatchError if no judged query is among the queries, DrtkError for missing files.
    """

    name = f"nDCG@{DEPTH}"

    def __init__(
        self,
        folder: Path,
        *,
        split: str,
        tracker: InputTracker,
        queries: int | None = None,
        pool: int | None = None,
        lot: Callable[[str], float] | None = None,
    ) -> None:
        judgements = load_qrels(str(find_qrels(folder, split)), tracker=tracker)
        corpus = require_file(folder, "corpus.jsonl")
        found = [q for q in read_queries(require_file(folder, "queries.jsonl"), tracker=tracker) if q.id in judgements]
        if queries is not None and lot is not None and queries < len(found):
            chosen = set(sorted((query.id for query in found), key=lambda each: (lot(each), each))[:queries])
            found = [query for query in found if query.id in chosen]
        self._queries = found
        if not self._queries:
            raise MismatchError(f"{folder}: no query of {split} has a judgement")
        relevant = {id for query in found for id, grade in judgements[query.id].items() if grade > 0}
        passages = read_passages(corpus, tracker=tracker)
        self._passages = (
            list(passages) if pool is None or lot is None else sample_passages(passages, relevant, count=pool, lot=lot)
        )
        self._relevant = {query.id: _best_document(judgements[query.id]) for query in found}
        kept = {query.id: judgements[query.id] for query in self._queries}
        self._evaluator = Evaluator(kept, parse_measures(self.name))

    @property
    def queries(self) -> list[Query]:
        """The queries that are ranked for."""
        return self._queries

    def __call__(self, encode: Encode) -> float:
        """Return mean nDCG@10."""
        return self._compute_ndcg(encode(self._passages, "passage"), encode(self._queries, "query"))

    def figures(self, encode: Encode, *, batch: int) -> dict[str, float]:
        """Return nDCG@10 and accuracy: the share of queries whose positive beats those of the other queries of a batch."""
        passages, queries = encode(self._passages, "passage"), encode(self._queries, "query")
        rows = {passage.id: row for row, passage in enumerate(self._passages)}
        asked = [
            (at, rows[self._relevant[query.id]])
            for at, query in enumerate(self._queries)
            if self._relevant[query.id] in rows
        ]
        right = 0
        for start in range(0, len(asked), batch):
            ours, theirs = (np.array(part) for part in zip(*asked[start : start + batch], strict=True))
            scores = queries[ours] @ passages[theirs].T  # (b, b)
            own = scores.diagonal()
            # A tie is no win, so that equal vectors have accuracy 0. A passage that is the positive of two queries does not
            # compete with itself.
            wins = (scores < own[:, None]) | (theirs[:, None] == theirs)
            right += int((wins.all(axis=1) & np.isfinite(own)).sum())
        return {self.name: self._compute_ndcg(passages, queries), "accuracy": right / len(asked) if asked else 0.0}

    def _compute_ndcg(self, passages: np.ndarray, queries: np.ndarray) -> float:
        scores = queries @ passages.T  # (queries, passages)
        count = min(DEPTH, scores.shape[1])
        rankings = {}
        for query, row in zip(self._queries, scores, strict=True):
            best = np.argpartition(-row, count - 1)[:count]
            ranked = sorted(((float(row[at]), self._passages[at].id) for at in best), reverse=True)
            rankings[query.id] = [id for _, id in ranked]
        return float(self._evaluator("probe", rankings).overall[self.name])


class RerankingProbe:
    """RR@10 and nDCG@10 of a run whose first documents are reranked by scores.

    candidates: id of each evaluated query with the ids of its first documents, in the order of the run
    limit: number of evaluated queries, spread evenly over the judged queries of the run
    Raises MismatchError if no query is judged.
    """

    names = ("RR@10", "nDCG@10")

    def __init__(self, run: str, judgements: Judgements, *, depth: int, limit: int, tracker: InputTracker) -> None:
        found = [item for item in load_run(run, tracker=tracker).items() if item[0] in judgements]
        if not found:
            raise MismatchError(f"{run}: no query of it has a judgement")
        chosen = list(sample_evenly(found, limit, of=len(found)))
        self.candidates = [(query, [id for id, _ in ranking[:depth]]) for query, ranking in chosen]
        kept = {query: judgements[query] for query, _ in chosen}
        self._evaluator = Evaluator(kept, parse_measures(" ".join(self.names)))

    def __call__(self, scores: np.ndarray) -> dict[str, float]:
        """Return the means over queries. scores: of all candidates, query by query, (candidates,)"""
        rankings, at = {}, 0
        for query, ids in self.candidates:
            own = scores[at : at + len(ids)].tolist()
            at += len(ids)
            rankings[query] = [id for _, id in sorted(zip(own, ids, strict=True), reverse=True)]
        overall = self._evaluator("probe", rankings).overall
        return {name: float(overall[name]) for name in self.names}


class RatingProbe:
    """Spearman's correlation of cosines with the ratings of sentence pairs, such as STS-B's dev set."""

    name = "Spearman"

    def __init__(self, source: str, *, tracker: InputTracker) -> None:
        self._source, self._pairs = source, read_pairs(source, tracker).pairs
        if len(self._pairs) < 2:
            raise DrtkError(f"{source}: fewer than two rated pairs")

    def __call__(self, encode: Encode) -> float:
        """Return the correlation."""
        first = encode([pair.first for pair in self._pairs], "passage")
        second = encode([pair.second for pair in self._pairs], "passage")
        try:
            return float(spearman(pair_cosines(first, second), [pair.score for pair in self._pairs]))
        except DrtkError as error:
            raise DrtkError(f"{self._source}: the encoder cannot be measured on it: {error}") from error


def sample_passages(
    passages: Iterable[Passage], wanted: set[str], *, count: int, lot: Callable[[str], float]
) -> list[Passage]:
    """Return all wanted passages and a sample of the others, `count` in all, in their order.

    Only the result is held in memory.
    """
    kept: dict[int, Passage] = {}

    def iter_others() -> Iterator[tuple[float, str, int, Passage]]:
        for place, passage in enumerate(passages):
            if passage.id in wanted:
                kept[place] = passage
            else:
                yield lot(passage.id), passage.id, place, passage

    others = iter_others()
    sample = nsmallest(max(0, count - len(wanted)), others)
    deque(others, maxlen=0)  # reads on where the sample is empty
    kept |= {place: passage for _, _, place, passage in sample}
    return [kept[place] for place in sorted(kept)]


def _best_document(judged: dict[str, int]) -> str:
    """Return the first id with the highest grade; "" if none is relevant."""
    grade = max(judged.values(), default=0)
    return next((id for id, value in judged.items() if value == grade), "") if grade > 0 else ""
