"""Runs re-ranked by a list re-ranker from vectors of their pairs (HLATR): the batch function behind `drtk rerank --vectors`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.io.filtering import Done
from drtk.io.intake import Intake
from drtk.io.known_hits import Faulty, forgiven
from drtk.io.pair_vectors import PairVectors
from drtk.io.streams import name_of
from drtk.io.trec import Ranking, grouped_hits, run_lines
from drtk.models.device import choose_device
from drtk.models.listreranker import load_list_reranker
from drtk.retrieval.rescoring import reordered
from drtk.runners.base import BatchFunction


@dataclass(frozen=True, slots=True)
class ListCandidates:
    """A query with its ranking, best first, and the rows of the vectors of the documents at its head."""

    query_id: str
    ranking: Ranking
    rows: list[int]


def list_candidates(run: str, *, vectors: PairVectors, depth: int, intake: Intake) -> Iterator[ListCandidates]:
    """The queries of a run in its order, their first `depth` documents found among the vectors.

    Raises RecordError (file:line, and how many more) for pairs without a vector, unless `intake` forgives them.
    """
    return forgiven(_known(run, vectors, depth, intake), run, intake)


def _known(run: str, vectors: PairVectors, depth: int, intake: Intake) -> Iterator[Faulty[ListCandidates]]:
    for hits in grouped_hits(run, intake=intake):
        ranking = hits.ranking()
        rows = vectors.rows(hits.query_id, [id for id, _ in ranking[:depth]])
        absent = {ranking[at][0] for at in np.flatnonzero(rows < 0)}
        faults = [
            RecordError(
                f"{name_of(run)}:{line}",
                f"{vectors.folder} has no vector of '{id}' for '{hits.query_id}'; it holds those of {vectors.run}, and "
                "--depth reads less of each query",
            )
            for id, line in zip(hits.doc_ids, hits.lines, strict=True)
            if id in absent
        ]
        kept = [(id, score) for id, score in ranking if id not in absent]
        yield (ListCandidates(hits.query_id, kept, rows[rows >= 0].tolist()) if kept else None), faults


class RerankLists(BatchFunction):
    """Candidates to lines of a run, by the logits of a list re-ranker.

    Raises MismatchError where the vectors are of another width than the model's.
    """

    def __init__(self, model: str, vectors: str, device: str, tag: str) -> None:
        self._name, self._device = model, choose_device(device)
        self._model = load_list_reranker(Path(model)).to(self._device)
        self._vectors, self._tag = PairVectors(vectors), tag
        if self._vectors.dimension != self._model.shape.width:
            raise MismatchError(
                f"{vectors}: holds vectors of width {self._vectors.dimension}; {model} reads {self._model.shape.width}"
            )

    @torch.inference_mode()
    def __call__(self, prepared: list[ListCandidates]) -> Done:
        """The window's lines, query by query."""
        lines: list[bytes] = []
        for each in prepared:  # one list at a time: its logits must not depend on its neighbours' padding
            vectors = torch.from_numpy(self._vectors.vectors(each.rows)).unsqueeze(0).to(self._device)
            ranks = torch.arange(len(each.rows), device=self._device).unsqueeze(0)
            logits = self._model(vectors, ranks, torch.ones_like(ranks, dtype=torch.bool))[0]  # (candidates,)
            if not bool(logits.isfinite().all()):
                raise DrtkError(
                    f"{self._name}: the score of query '{each.query_id}' is NaN or infinite; check the model's weights"
                )
            scores = [float(str(score)) for score in logits.cpu().numpy()]
            lines += run_lines(each.query_id, reordered(each.ranking, scores), self._tag)
        return Done(lines, {"pairs": sum(len(each.rows) for each in prepared)})
