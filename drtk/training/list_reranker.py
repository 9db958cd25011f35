"""Training of a list re-ranker (HLATR) from a run, vectors of its pairs, and judgements (methods, section 6.9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drtk.data.embeddings import PairVectors
from drtk.data.trec import Judgements, iter_grouped_hits
from drtk.errors import DrtkError, RecordError
from drtk.losses.ranking import listwise_labels
from drtk.models.list_reranker import ListReranker, ListShape, new_list_reranker, save_list_reranker
from drtk.runtime.inputs import Intake
from drtk.runtime.streams import name_of
from drtk.training.arguments import Plan, arguments_of, planned
from drtk.training.best_checkpoint import Selection
from drtk.training.config import RerankerSettings
from drtk.training.fit import DrtkTrainer, MeasureTheStart, ShowProgress, relief
from drtk.training.reranker import LOG, Probe
from drtk.training.sampling import order_of_epoch


@dataclass(frozen=True)
class CandidateList:
    """The vectors' rows of a query's candidates, in the order of retrieval, and which of them are right; (n,) each."""

    rows: np.ndarray
    labels: np.ndarray


@dataclass
class Lists:
    """What a run gives to learn from.

    asked: ids of the queries that are learned from
    without: queries none of whose candidates is right, which teach nothing; unjudged: those without a judgement; queries: all
    """

    found: list[CandidateList]
    without: int = 0
    unjudged: int = 0
    queries: int = 0
    asked: set[str] = field(default_factory=set)


def read_lists(run: str, *, vectors: PairVectors, judgements: Judgements, depth: int, intake: Intake) -> Lists:
    """The judged queries of a run with their first `depth` documents; a grade above 0 is right.

    In memory are 9 bytes a candidate. Raises RecordError (file:line) for a pair without a vector, unless `intake` forgives it.
    """
    lists = Lists([])
    for hits in iter_grouped_hits(run, intake=intake):
        lists.queries += 1
        grades = judgements.get(hits.query_id)
        if grades is None:
            lists.unjudged += 1
            continue
        ids = hits.ranked_ids()[:depth]
        labels = np.array([grades.get(id, 0) > 0 for id in ids])
        if not labels.any():
            lists.without += 1
            continue
        rows = vectors.rows(hits.query_id, ids)
        for at in np.flatnonzero(rows < 0):
            line = hits.lines[hits.doc_ids.index(ids[at])]
            problem = (
                f"{vectors.folder} has no vector of '{ids[at]}' for '{hits.query_id}'; it holds those of {vectors.run}, and "
                "--depth reads less of each query"
            )
            intake.forgive(RecordError(f"{name_of(run)}:{line}", problem))
        there = rows >= 0
        if labels[there].any():
            lists.found.append(CandidateList(rows[there], labels[there]))
            lists.asked.add(hits.query_id)
    return lists


class ListsOfSteps(torch.utils.data.Dataset[CandidateList]):
    """The lists of every step, in the order in which they are seen; each epoch has an order of its own."""

    def __init__(self, lists: Sequence[CandidateList], *, batch: int, steps: int, seed: int) -> None:
        self._lists, self._length, self._seed = lists, batch * steps, seed
        self._epoch_length = len(lists) // batch * batch
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> CandidateList:
        epoch, place = divmod(index, self._epoch_length)
        if self._order[0] != epoch:
            self._order = (epoch, order_of_epoch(len(self._lists), epoch=epoch, seed=self._seed))
        return self._lists[int(self._order[1][place])]


class Collate:
    """Lists to `vectors` (queries, n, width), `ranks`, `present` and `labels` (queries, n), padded to the longest."""

    def __init__(self, vectors: PairVectors) -> None:
        self._vectors = vectors

    def __call__(self, lists: Sequence[CandidateList]) -> dict[str, Tensor]:
        longest = max(len(each.rows) for each in lists)
        vectors = np.zeros((len(lists), longest, self._vectors.dimension), dtype=np.float32)
        present = np.zeros((len(lists), longest), dtype=bool)
        labels = np.zeros((len(lists), longest), dtype=np.float32)
        for place, each in enumerate(lists):
            size = len(each.rows)
            vectors[place, :size] = self._vectors.vectors(each.rows)
            present[place, :size] = True
            labels[place, :size] = each.labels
        ranks = np.broadcast_to(np.arange(longest), present.shape).copy()
        arrays = {"vectors": vectors, "ranks": ranks, "present": present, "labels": labels}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


def list_terms(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """{"cross_entropy": ()} of a batch of lists."""
    given = dict(inputs)
    labels = given.pop("labels")
    return {"cross_entropy": listwise_labels(model(**given), labels, given["present"])}


class MeasuringLists:
    """A list re-ranker in training, measured with the candidates of a probe."""

    def __init__(self, model: ListReranker, probe: Probe, vectors: PairVectors) -> None:
        """Raises DrtkError where a candidate has no vector."""
        self._model, self._probe, self._collate = model, probe, Collate(vectors)
        self._lists = []
        for query, ids in probe.candidates:
            rows = vectors.rows(query, ids)
            if (rows < 0).any():
                absent = ids[int(np.flatnonzero(rows < 0)[0])]
                raise DrtkError(f"{vectors.folder}: has no vector of '{absent}' for the dev query '{query}'")
            self._lists.append(CandidateList(rows, np.zeros(len(rows), dtype=bool)))
        vectors.warn_of_another_order("the dev run")

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        """The numbers now; the model is left as it was."""
        training, device = self._model.training, next(self._model.parameters()).device
        self._model.eval()
        scores = []
        for each in self._lists:
            given = {name: value.to(device) for name, value in self._collate([each]).items() if name != "labels"}
            scores.append(self._model(**given)[0].cpu().numpy())
        self._model.train(training)
        return self._probe(np.concatenate(scores))


def plan(lists: Lists, settings: RerankerSettings, *, source: str = "lists") -> Plan:
    """The plan for these lists of the run `source`.

    Raises DrtkError, which says why, where there are none, where they fill no batch, or devices cannot share one.
    """
    if not lists.queries:
        raise DrtkError(f"{source}: holds no query")
    if lists.unjudged == lists.queries:
        raise DrtkError(f"{source}: none of its {lists.queries:,} queries is judged")
    return planned(
        len(lists.found),
        batch=settings.batch,
        epochs=settings.epochs,
        steps=settings.steps,
        what=f"lists with a positive among the first {settings.depth} documents",
        source=source,
    )


def train_list_reranker(
    lists: Lists,
    folder: Path,
    *,
    vectors: PairVectors,
    settings: RerankerSettings,
    probe: Probe | None = None,
    dev_vectors: PairVectors | None = None,
    seed: int = 42,
    device: str = "auto",
) -> dict[str, Any]:
    """Train, write the model into `folder` (rank zero), and return "steps", "epochs" and, where it is measured, "best".

    Goes on, ends and raises as `drtk.training.reranker.train_reranker` does. dev_vectors: of the probe's pairs
    """
    schedule = plan(lists, settings)
    checkpoints = folder / "checkpoints"
    arguments = arguments_of(settings, checkpoints, plan=schedule, seed=seed, device=device)
    shape = ListShape(
        width=vectors.dimension,
        depth=settings.depth,
        hidden=settings.hidden,
        layers=settings.layers,
        heads=settings.heads,
        feedforward=settings.feedforward,
        dropout=settings.dropout,
    )
    model = new_list_reranker(shape, seed=seed).to(arguments.device)
    selection = None
    if probe is not None:
        look = MeasuringLists(model, probe, dev_vectors or vectors)
        selection = Selection(
            model, look, checkpoints, by=settings.select, every=settings.eval_every, patience=settings.patience
        )
    trainer = DrtkTrainer(
        objective=list_terms,
        log=folder / LOG,
        steps_per_epoch=schedule.steps_per_epoch,
        probe=selection,
        model=model,
        args=arguments,
        train_dataset=ListsOfSteps(lists.found, batch=settings.batch, steps=schedule.steps, seed=seed),
        data_collator=Collate(vectors),
        callbacks=[ShowProgress("train-reranker", schedule.steps)],
    )
    if selection is not None:
        trainer.add_callback(MeasureTheStart(trainer))
    trainer.relief = relief(anew="a smaller --batch or --depth")

    def save() -> None:
        save_list_reranker(model.cpu().eval(), folder)

    return trainer.finish(save)
