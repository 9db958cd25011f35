"""Small evaluations of an encoder or reranker on dev data during training: probes on rankings or human ratings."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import nsmallest
from pathlib import Path
from typing import Any, Literal

import numpy as np

from drtk.data.beir import find_qrels, require_file
from drtk.data.readers import load_qrels, read_passages, read_queries
from drtk.data.trec import Judgments, load_run
from drtk.errors import DrtkError, MismatchError
from drtk.evaluation.evaluate import Evaluator
from drtk.evaluation.measures import parse_measures
from drtk.evaluation.sentence_data import read_pairs
from drtk.evaluation.sentences import compute_pair_cosines, compute_spearman
from drtk.evaluation.significance import compute_interval
from drtk.models.checkpoint import TextEncoder, embed_for_dot_product
from drtk.records import Passage, Query
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import log
from drtk.runtime.sharding import sample_evenly
from drtk.text.rng import sample_uniform
from drtk.training.best_checkpoint import Metrics

DEPTH = 10
# Records of a role -> (n, d) float32
EncodeRecords = Callable[[Sequence[Any], Literal["query", "passage"]], np.ndarray]
SampleKey = Callable[[str], float]  # hash of an id; the ids with the smallest hashes are sampled


class RetrievalEvaluator:
    """Evaluator of an encoder: nDCG@10 of exact search by inner product on a collection in BEIR format.

    max_queries: maximum number of judged queries; None: all
    max_passages: maximum number of passages, but all relevant ones are included; None: all
    seed: seed of the samples
    Raises MismatchError if queries.jsonl has no judged query, DrtkError for missing files.
    """

    name = f"nDCG@{DEPTH}"

    def __init__(
        self,
        folder: Path,
        *,
        split: str,
        tracker: InputTracker,
        max_queries: int | None = None,
        max_passages: int | None = None,
        seed: int = 0,
    ) -> None:
        judgments = load_qrels(str(find_qrels(folder, split)), tracker=tracker)
        corpus = require_file(folder, "corpus.jsonl")
        judged = [q for q in read_queries(require_file(folder, "queries.jsonl"), tracker=tracker) if q.id in judgments]
        sample_key = partial(sample_uniform, seed, "dev")
        if max_queries is not None:
            sample = set(nsmallest(max_queries, ((sample_key(query.id), query.id) for query in judged)))
            judged = [query for query in judged if (sample_key(query.id), query.id) in sample]
        if not judged:
            raise MismatchError(f"{folder}: no query of {split} has a judgment; check queries.jsonl and qrels")
        self.queries: list[Query] = judged
        relevant = {id for query in judged for id, grade in judgments[query.id].items() if grade > 0}
        passages = read_passages(corpus, tracker=tracker)
        self._passages = (
            list(passages)
            if max_passages is None
            else sample_passages(passages, relevant, count=max_passages, sample_key=sample_key)
        )
        self._judgments = {query.id: judgments[query.id] for query in judged}
        self._evaluator = Evaluator(self._judgments, parse_measures(self.name))

    def __len__(self) -> int:
        """Return the total number of passages and queries."""
        return len(self._passages) + len(self.queries)

    def __call__(self, encode: EncodeRecords) -> float:
        """Encode the collection and return the mean nDCG@10 of its queries."""
        return self._compute_ndcg(encode(self._passages, "passage"), encode(self.queries, "query"))[self.name]

    def compute_metrics(self, encode: EncodeRecords, *, batch_size: int) -> Metrics:
        """Return nDCG@10 with its confidence interval, and in-batch accuracy.

        Accuracy is the share of queries whose positive scores higher than the other positives in the batch.
        """
        passages, queries = encode(self._passages, "passage"), encode(self.queries, "query")
        rows = {passage.id: row for row, passage in enumerate(self._passages)}
        pairs = []
        for at, query in enumerate(self.queries):
            id, grade = max(self._judgments[query.id].items(), key=lambda item: item[1])  # the first of equal grades
            if grade > 0 and id in rows:
                pairs.append((at, rows[id]))
        num_correct = 0
        for start in range(0, len(pairs), batch_size):
            query_rows, positives = (np.array(part) for part in zip(*pairs[start : start + batch_size], strict=True))
            scores = queries[query_rows] @ passages[positives].T  # (b, b)
            positive_scores = scores.diagonal()
            # A tie does not win, so that equal vectors have accuracy 0. A passage that is the positive of two queries does
            # not compete with itself.
            wins = (scores < positive_scores[:, None]) | (positives[:, None] == positives)
            num_correct += int((wins.all(axis=1) & np.isfinite(positive_scores)).sum())
        metrics = self._compute_ndcg(passages, queries)
        metrics["accuracy"] = num_correct / max(1, len(pairs))
        return metrics

    def _compute_ndcg(self, passages: np.ndarray, queries: np.ndarray) -> Metrics:
        scores = queries @ passages.T  # (queries, passages)
        count = min(DEPTH, scores.shape[1])
        rankings = {}
        for query, row in zip(self.queries, scores, strict=True):
            top = np.argpartition(-row, count - 1)[:count]
            rankings[query.id] = [
                id for _, id in sorted(((float(row[at]), self._passages[at].id) for at in top), reverse=True)
            ]
        return _evaluate(self._evaluator, rankings)


def compare_encoders(
    encoders: Mapping[str, TextEncoder], folder: Path, *, split: str, queries: int, pool: int, tracker: InputTracker
) -> dict[str, Any]:
    """Evaluate encoders on a collection in BEIR format; return {encoder name: {"nDCG@10", "interval", "seconds"}}.

    interval: 95% confidence interval of nDCG@10 over queries; None for a single query
    queries: maximum number of queries, sampled at random
    pool: maximum number of passages, sampled at random, but all relevant ones are included
    """
    probe = RetrievalEvaluator(folder, split=split, tracker=tracker, max_queries=queries, max_passages=pool)
    metrics_by_encoder = {}
    for name, encoder in encoders.items():
        start = time.perf_counter()
        metrics = probe.compute_metrics(partial(embed_for_dot_product, {"passage": encoder}), batch_size=1)
        seconds = round(time.perf_counter() - start, 1)
        interval = metrics.intervals.get(probe.name)
        ends = "" if interval is None else " ({:.4f} … {:.4f})".format(*interval)
        log(f"{name}: {probe.name} {metrics[probe.name]:.4f}{ends}, {seconds:g} s for {len(probe)} texts")
        metrics_by_encoder[name] = {probe.name: metrics[probe.name], "interval": interval, "seconds": seconds}
    return metrics_by_encoder


class RerankingEvaluator:
    """Evaluator of a reranker: RR@10 and nDCG@10 after reranking the top documents of a run.

    candidates: (query id, top-ranked document ids, best first) for each evaluated query
    limit: maximum number of queries, sampled at even intervals from the judged queries of the run
    Raises MismatchError if no query of the run is judged.
    """

    names = ("RR@10", "nDCG@10")

    def __init__(self, run: str, judgments: Judgments, *, depth: int, limit: int, tracker: InputTracker) -> None:
        judged = [item for item in load_run(run, tracker=tracker).items() if item[0] in judgments]
        if not judged:
            raise MismatchError(f"{run}: no query has a judgment; pass the judgments of these queries")
        sample = sample_evenly(judged, limit, total=len(judged))
        self.candidates = [(query, [id for id, _ in ranking[:depth]]) for query, ranking in sample]
        measures = parse_measures(" ".join(self.names))
        self._evaluator = Evaluator({query: judgments[query] for query, _ in self.candidates}, measures)

    def __call__(self, scores: np.ndarray) -> Metrics:
        """Rerank the candidates of each query by `scores`; return the mean and confidence interval of each measure.

        scores: (pairs,), the score of each query-document pair, in the order of `candidates`
        """
        rankings, at = {}, 0
        for query, ids in self.candidates:
            pairs = zip(scores[at : at + len(ids)].tolist(), ids, strict=True)
            rankings[query] = [id for _, id in sorted(pairs, reverse=True)]
            at += len(ids)
        return _evaluate(self._evaluator, rankings)


def _evaluate(evaluator: Evaluator, rankings: dict[str, list[str]]) -> Metrics:
    """Return the mean of each measure over queries, and its 95% confidence interval if there are several queries."""
    result = evaluator("probe", rankings)
    intervals = {}
    for name in result.overall:
        values = np.array([row[name] for row in result.per_query.values()], dtype=np.float64)
        if interval := compute_interval(values, confidence=0.95):
            intervals[name] = interval
    return Metrics({name: float(value) for name, value in result.overall.items()}, intervals)


class RatingProbe:
    """Probe of an encoder: Spearman's correlation of cosines with human ratings of sentence pairs."""

    name = "Spearman"

    def __init__(self, source: str, *, tracker: InputTracker) -> None:
        self._source, self._pairs = source, read_pairs(source, tracker).pairs
        if len(self._pairs) < 2:
            raise DrtkError(f"{source}: a correlation requires at least two rated pairs; add pairs")

    def __call__(self, encode: EncodeRecords) -> float:
        """Encode the sentences; return the Spearman correlation of cosine similarities and gold scores."""
        first = encode([pair.first for pair in self._pairs], "passage")
        second = encode([pair.second for pair in self._pairs], "passage")
        try:
            return float(compute_spearman(compute_pair_cosines(first, second), [pair.score for pair in self._pairs]))
        except DrtkError as error:
            raise DrtkError(f"{self._source}: {error}") from error


def sample_passages(
    passages: Iterable[Passage], relevant: set[str], *, count: int, sample_key: SampleKey
) -> list[Passage]:
    """Return all relevant passages, and a sample of the others up to `count` passages in total, in file order.

    If more than `count` are relevant, no others are sampled. Only the returned passages are kept in memory.
    """
    selected: dict[int, Passage] = {}

    def iter_other_passages() -> Iterator[tuple[float, str, int, Passage]]:
        for number, passage in enumerate(passages):
            if passage.id in relevant:
                selected[number] = passage
            else:
                yield sample_key(passage.id), passage.id, number, passage

    others = iter_other_passages()
    sample = nsmallest(max(0, count - len(relevant)), others)
    deque(others, maxlen=0)  # nsmallest(0, …) reads nothing, but the relevant passages must be found
    selected |= {number: passage for _, _, number, passage in sample}
    return [selected[number] for number in sorted(selected)]
