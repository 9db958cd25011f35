"""Train a list reranker (HLATR) on a run, with pair vectors and relevance judgments (docs/methods/hlatr.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drtk.data.embeddings import PairVectors
from drtk.data.trec import Judgments, iter_grouped_hits
from drtk.errors import DrtkError
from drtk.losses.ranking import multi_positive_cross_entropy
from drtk.models.list_reranker import ListReranker, ListRerankerConfig, init_list_reranker, save_list_reranker
from drtk.runtime.inputs import InputTracker
from drtk.runtime.streams import get_source_name
from drtk.training.arguments import CHECKPOINTS, Schedule, build_training_arguments, plan_schedule
from drtk.training.best_checkpoint import ModelSelection
from drtk.training.config import RerankerConfig
from drtk.training.fit import fit
from drtk.training.reranker import DevCandidates
from drtk.training.sampling import EpochDataset


@dataclass(frozen=True)
class RankedCandidates:
    """Candidates of a query in retrieval order.

    rows: (n,), rows of the query-candidate pairs in the PairVectors    labels: (n,) bool, True if relevant
    """

    rows: np.ndarray
    labels: np.ndarray


@dataclass
class CandidateLists:
    """Candidate lists of a run for training.

    source: name of the run    lists: lists with a relevant candidate    query_ids: ids of the queries of `lists`
    num_without_relevant: number of judged queries without a relevant candidate
    num_unjudged, num_queries: number of queries without judgments, and of all queries
    """

    source: str
    lists: list[RankedCandidates] = field(default_factory=list)
    query_ids: set[str] = field(default_factory=set)
    num_without_relevant: int = 0
    num_unjudged: int = 0
    num_queries: int = 0


def read_candidate_lists(
    run: str, *, vectors: PairVectors, judgments: Judgments, depth: int, tracker: InputTracker
) -> CandidateLists:
    """Return the top `depth` documents of each query of a run, if one of them is relevant (grade above 0).

    vectors: cross-encoder vectors of the query-document pairs    Memory: 9 bytes per candidate
    Raises RecordError (file:line) for a pair without vector, unless `tracker` skips the line.
    """
    data = CandidateLists(get_source_name(run))
    for hits in iter_grouped_hits(run, tracker=tracker):
        data.num_queries += 1
        grades = judgments.get(hits.query_id)
        if grades is None:
            data.num_unjudged += 1
            continue
        ids = hits.to_ranked_ids()[:depth]
        labels = np.array([grades.get(id, 0) > 0 for id in ids])
        if not labels.any():
            data.num_without_relevant += 1
            continue
        rows = vectors.find_rows(hits.query_id, ids)
        for index in np.flatnonzero(rows < 0):
            line = hits.lines[hits.doc_ids.index(ids[index])]
            problem = (
                f"{vectors.folder} has no vector of '{ids[index]}' for query '{hits.query_id}'; use the run of the "
                f"vectors ({vectors.run_path}) or a smaller `depth`"
            )
            tracker.skip_line(run, line, problem)
        has_vector = rows >= 0
        if not labels[has_vector].any():
            data.num_without_relevant += 1
            continue
        data.lists.append(RankedCandidates(rows[has_vector], labels[has_vector]))
        data.query_ids.add(hits.query_id)
    return data


def plan_list_schedule(data: CandidateLists, config: RerankerConfig) -> Schedule:
    """Return the training schedule. Raises DrtkError if no query is judged, and the errors of `plan_schedule`."""
    if data.num_queries and data.num_unjudged == data.num_queries:
        raise DrtkError(f"{data.source}: none of its {data.num_queries:,} queries is judged; check the qrels file")
    unit = f"lists with a positive among the first {config.depth} documents"
    return plan_schedule(len(data.lists), config, unit=unit, source=data.source)


def collate(lists: Sequence[RankedCandidates], vectors: PairVectors) -> dict[str, Tensor]:
    """Return the inputs of a step by name: `vectors` (queries, n, width); `ranks`, `present` and `labels` (queries, n).

    n is the length of the longest list. `ranks` start from 0; `present` is False at padding; `labels` are 1 if relevant.
    """
    longest = max(len(candidates.rows) for candidates in lists)
    rows = np.zeros((len(lists), longest, vectors.dimension), dtype=np.float32)
    present = np.zeros((len(lists), longest), dtype=bool)
    labels = np.zeros((len(lists), longest), dtype=np.float32)
    for number, candidates in enumerate(lists):
        size = len(candidates.rows)
        rows[number, :size] = vectors.load_vectors(candidates.rows)
        present[number, :size] = True
        labels[number, :size] = candidates.labels
    ranks = np.broadcast_to(np.arange(longest), present.shape).copy()
    arrays = {"vectors": rows, "ranks": ranks, "present": present, "labels": labels}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def compute_list_terms(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the loss of a batch of lists, {"cross_entropy": scalar}. inputs: the result of `collate`"""
    lists = {name: value for name, value in inputs.items() if name != "labels"}
    return {"cross_entropy": multi_positive_cross_entropy(model(**lists), inputs["labels"], inputs["present"])}


class ListEvaluator:
    """Evaluator that reranks candidates with a list reranker during training."""

    def __init__(self, model: ListReranker, candidates: DevCandidates, vectors: PairVectors) -> None:
        """Raises DrtkError if a candidate has no vector."""
        self._model, self._candidates, self._vectors = model, candidates, vectors
        self._lists = []
        for query, ids in candidates.candidates:
            rows = vectors.find_rows(query, ids)
            if (rows < 0).any():
                absent = ids[int(np.flatnonzero(rows < 0)[0])]
                raise DrtkError(
                    f"{vectors.folder} has no vector of '{absent}' for dev query '{query}'; "
                    "run `drtk rerank` with `save_vectors` on the dev run"
                )
            self._lists.append(RankedCandidates(rows, np.zeros(len(rows), dtype=bool)))
        vectors.warn_if_order_differs("the dev run")

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        """Return the metrics by name. The training mode of the model is restored."""
        training, device = self._model.training, next(self._model.parameters()).device
        self._model.eval()
        scores = []
        for candidates in self._lists:
            inputs = collate([candidates], self._vectors)
            del inputs["labels"]
            scores.append(self._model(**{name: value.to(device) for name, value in inputs.items()})[0].cpu().numpy())
        self._model.train(training)
        return self._candidates(np.concatenate(scores))


def train_list_reranker(
    data: CandidateLists,
    folder: Path,
    *,
    vectors: PairVectors,
    config: RerankerConfig,
    candidates: DevCandidates | None = None,
    dev_vectors: PairVectors | None = None,
    seed: int = 42,
    device: str = "auto",
) -> dict[str, Any]:
    """Train a list reranker, write it into a folder (rank zero), and return the result of `drtk.training.fit.fit`.

    folder: output folder; training resumes from its last checkpoint    vectors: pair vectors of the training run
    candidates: evaluation candidates; None: keep the last weights
    dev_vectors: pair vectors of `candidates`; None: use `vectors`
    Raises the errors of `plan_list_schedule`, `build_training_arguments`, `ListEvaluator` and `drtk.training.fit.fit`.
    """
    schedule = plan_list_schedule(data, config)
    arguments = build_training_arguments(config, schedule, folder, seed=seed, device=device)
    sizes = {field.name: getattr(config, field.name) for field in fields(ListRerankerConfig) if field.name != "width"}
    model = init_list_reranker(ListRerankerConfig(vectors.dimension, **sizes), seed=seed).to(arguments.device)
    selection = None
    if candidates is not None:
        evaluator = ListEvaluator(model, candidates, dev_vectors or vectors)
        selection = ModelSelection(model, evaluator, folder / CHECKPOINTS, metric=config.dev_measure, config=config)
    return fit(
        model,
        EpochDataset(data.lists, batch=config.batch_size, steps=schedule.steps, seed=seed),
        partial(collate, vectors=vectors),
        objective=compute_list_terms,
        arguments=arguments,
        schedule=schedule,
        folder=folder,
        name="train-reranker",
        save=lambda: save_list_reranker(model.cpu().eval(), folder),
        evaluator=selection,
        evaluate_first=True,
    )
