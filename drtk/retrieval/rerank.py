"""Rerank runs and score training examples with cross-encoders; rerank runs with list rerankers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from drtk.data.checks import count_texts, iter_known_hits
from drtk.data.corpus_store import CorpusStore
from drtk.data.embeddings import PairVectors, make_pair_id
from drtk.data.rows import dump
from drtk.data.trec import Ranking, format_run_lines, iter_grouped_hits
from drtk.errors import DrtkError, MismatchError
from drtk.indexing.vectors import find_encoder_differences
from drtk.models.config import CrossEncoderSettings
from drtk.models.cross_encoder import CrossEncoderScorer, TokenizedPairs
from drtk.models.device import choose_device
from drtk.models.generator_input import format_passage
from drtk.models.list_reranker import load_list_reranker
from drtk.records import Example
from drtk.retrieval.fusion import append_unscored, break_ties
from drtk.runtime.filter_job import BatchResult
from drtk.runtime.inputs import InputTracker
from drtk.runtime.runners import BatchFunction


@dataclass(frozen=True, slots=True)
class RankingTexts:
    """A query with its ranking, and the texts of the top-ranked documents to rerank."""

    query_id: str
    query: str
    ranking: Ranking
    texts: list[str]


@dataclass(frozen=True, slots=True)
class ExampleTexts:
    """A training example with its query, and the texts of positives and then negatives."""

    example: Example
    query: str
    texts: list[str]


def read_ranking_texts(
    run: str, *, queries: Mapping[str, str], corpus: CorpusStore, depth: int, title: str, tracker: InputTracker
) -> Iterator[RankingTexts]:
    """Yield the rankings of a run with the texts of their top `depth` documents.

    queries: texts by id
    title: title format, as in `format_passage`
    Raises RecordError (file:line) for unknown ids, unless `tracker` skips them.
    """
    for hits in iter_known_hits(run, queries=queries, corpus=corpus, depth=depth, tracker=tracker):
        ranking = hits.to_ranking()
        texts = [format_passage(passage, title) for passage in corpus.get_many([id for id, _ in ranking[:depth]])]
        yield RankingTexts(hits.query_id, queries[hits.query_id], ranking, texts)


def read_example_texts(
    examples: Iterable[Example],
    source: str,
    *,
    queries: Mapping[str, str],
    corpus: CorpusStore,
    title: str,
    tracker: InputTracker,
) -> Iterator[ExampleTexts]:
    """Yield examples with the texts of query and passages.

    queries: texts by id
    title: title format, as in `format_passage`
    Raises RecordError (file:line) for unknown ids, unless `tracker` skips them.
    """
    for example in examples:
        line = tracker.line
        has_query = example.query_id in queries
        if not has_query:
            tracker.skip_line(source, line, f"the queries have no '{example.query_id}'")
        missing = list(corpus.find_missing((*example.positives, *example.negatives)))
        for id in missing:
            tracker.skip_line(source, line, f"the corpus has no '{id}'")
        if has_query and not missing:
            passages = corpus.get_many([*example.positives, *example.negatives])
            texts = [format_passage(passage, title) for passage in passages]
            yield ExampleTexts(example, queries[example.query_id], texts)


def reorder_ranking(ranking: Ranking, scores: Sequence[float]) -> Ranking:
    """Sort the top documents of a ranking by new scores; append the other documents in their previous order.

    scores: new scores of the first `len(scores)` documents; the scores of the others are
        the lowest new score minus 1, 2, …
    Ties are broken as in `break_ties`.
    """
    head = break_ties([(id, score) for (id, _), score in zip(ranking, scores, strict=False)])
    return append_unscored(head, (id for id, _ in ranking[len(scores) :]))


class RerankedBatch(NamedTuple):
    """Run lines of a batch of queries, with the ids and vectors of the scored pairs.

    ids: ids of the (query, document) pairs (see `make_pair_id`); vectors: (pairs, dimension)
    """

    result: BatchResult
    ids: list[str]
    vectors: np.ndarray


class _CrossEncoderFunction(BatchFunction):
    """Base class of batch functions that score the query of each record with each text of the record."""

    def __init__(self, model: str, settings: CrossEncoderSettings, device: str, logits: bool) -> None:
        self._scorer = CrossEncoderScorer(model, device=device, settings=settings, logits=logits)

    def prepare(self, records: list[Any]) -> tuple[list[Any], TokenizedPairs]:
        return records, self._scorer.tokenize([(record.query, text) for record in records for text in record.texts])


class RunReranker(_CrossEncoderFunction):
    """Batch function that reranks `RankingTexts` by a cross-encoder; results are the lines of a run.

    logits: rank by logits, without the activation function; tag: run tag
    vectors: also compute the pair vectors, and return `RerankedBatch` instead of `BatchResult`
    """

    def __init__(
        self, model: str, settings: CrossEncoderSettings, device: str, logits: bool, tag: str, vectors: bool
    ) -> None:
        super().__init__(model, settings, device, logits)
        self._tag, self._vectors = tag, vectors

    def __call__(self, batch: tuple[list[RankingTexts], TokenizedPairs]) -> BatchResult | RerankedBatch:
        records, pairs = batch
        vectors = np.empty((0, 0), dtype=np.float32)
        if self._vectors:
            scores, vectors = self._scorer.compute_scores_and_vectors(pairs)
        else:
            scores = self._scorer.compute_scores(pairs)
        lines: list[bytes] = []
        start = 0
        for record in records:
            end = start + len(record.texts)
            ranking = reorder_ranking(record.ranking, _to_decimals(scores[start:end]))
            lines.append(format_run_lines(record.query_id, ranking, self._tag))
            start = end
        result = BatchResult(lines, count_texts(text for record in records for text in record.texts))
        if not self._vectors:
            return result
        ids = [make_pair_id(record.query_id, id) for record in records for id, _ in record.ranking[: len(record.texts)]]
        return RerankedBatch(result, ids, vectors)


class ExampleScorer(_CrossEncoderFunction):
    """Batch function that scores `ExampleTexts`; results are JSON lines of the examples with scores."""

    def __call__(self, batch: tuple[list[ExampleTexts], TokenizedPairs]) -> BatchResult:
        records, pairs = batch
        scores = _to_decimals(self._scorer.compute_scores(pairs))
        lines, start = [], 0
        for record in records:
            split, end = start + len(record.example.positives), start + len(record.texts)
            by_side: dict[str, Any] = {"positives": scores[start:split], "negatives": scores[split:end]}
            lines.append(dump(replace(record.example, scores=by_side)))
            start = end
        return BatchResult(lines, count_texts(text for record in records for text in record.texts))


def _to_decimals(scores: np.ndarray) -> list[float]:
    """Convert float32 scores to floats that print with float32 digits (0.1, not 0.10000000149)."""
    return [float(str(score)) for score in scores]


@dataclass(frozen=True, slots=True)
class RankingRows:
    """A query with its ranking, and the row index of the pair vector of each top-ranked document."""

    query_id: str
    ranking: Ranking
    rows: list[int]


def check_same_scorer(model: str, trained: dict[str, Any], vectors: str, actual: dict[str, Any]) -> None:
    """Raise MismatchError if pair vectors and the training data of a list reranker come from different cross-encoders.

    model: folder of the list reranker, or of the pair vectors that it is trained on, for the message
    vectors: folder of the other pair vectors, for the message
    trained: identity of the cross-encoder of the training data
    actual: identity of the cross-encoder of `vectors`
    """
    if differences := find_encoder_differences({"encoder": trained}, {"encoder": actual}):
        raise MismatchError(
            f"{vectors}: contains vectors of {actual.get('model')}, but {model} requires vectors of "
            f"{trained.get('model')} (different {', '.join(differences)}); rerank with {trained.get('model')} first"
        )


def read_ranking_rows(run: str, *, vectors: PairVectors, depth: int, tracker: InputTracker) -> Iterator[RankingRows]:
    """Yield each ranking of a run with the rows of its top `depth` documents in `vectors`.

    Raises RecordError (file:line) for pairs without a vector, unless `tracker` skips them.
    """
    for hits in iter_grouped_hits(run, tracker=tracker):
        ranking = hits.to_ranking()
        rows = vectors.find_rows(hits.query_id, [id for id, _ in ranking[:depth]])
        missing = {ranking[position][0] for position in np.flatnonzero(rows < 0)}
        for id, line in zip(hits.doc_ids, hits.lines, strict=True):
            if id in missing:
                problem = f"{vectors.folder} has no vector of document '{id}' for query '{hits.query_id}'"
                advice = f"lower `depth`, or give the run of the vectors ({vectors.run_path})"
                tracker.skip_line(run, line, f"{problem}; {advice}")
        with_vectors = [(id, score) for id, score in ranking if id not in missing]
        if with_vectors:
            yield RankingRows(hits.query_id, with_vectors, rows[rows >= 0].tolist())


class RunListReranker(BatchFunction):
    """Batch function that reranks `RankingRows` by the logits of a list reranker (HLATR); results are the lines of a run.

    Raises MismatchError if the dimension of the pair vectors differs from the input dimension of the model.
    """

    def __init__(self, model: str, vectors: str, device: str, tag: str) -> None:
        self._name, self._device = model, choose_device(device)
        self._model = load_list_reranker(Path(model)).to(self._device)
        self._vectors, self._tag = PairVectors(vectors), tag
        if self._vectors.dimension != self._model.settings.width:
            raise MismatchError(
                f"{vectors}: has vectors of dimension {self._vectors.dimension}, but {model} requires dimension "
                f"{self._model.settings.width}; use vectors of the cross-encoder that produced the training vectors of {model}"
            )

    @torch.inference_mode()
    def __call__(self, records: list[RankingRows]) -> BatchResult:
        lines: list[bytes] = []
        for record in records:  # one list at a time: logits must not depend on padding to the length of other lists
            vectors = torch.from_numpy(self._vectors.load_vectors(record.rows)).unsqueeze(0).to(self._device)
            ranks = torch.arange(len(record.rows), device=self._device).unsqueeze(0)
            logits = self._model(vectors, ranks, torch.ones_like(ranks, dtype=torch.bool))[0]  # (candidates,)
            if not bool(logits.isfinite().all()):
                raise DrtkError(
                    f"{self._name}: the score of query '{record.query_id}' is NaN or infinite; check the model's weights"
                )
            ranking = reorder_ranking(record.ranking, _to_decimals(logits.cpu().numpy()))
            lines.append(format_run_lines(record.query_id, ranking, self._tag))
        return BatchResult(lines, {"pairs": sum(len(record.rows) for record in records)})
