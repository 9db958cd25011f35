"""Query re-rankers: score the expansions of a query (EAR)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from drtk.errors import MismatchError
from drtk.models.config import ScoringSettings
from drtk.models.cross_encoder import CrossEncoder, Scorer, TokenizedPairs, is_classifier, start_crossencoder
from drtk.models.model_folder import locate, tower_folder
from drtk.query_expansion.query_reranker_input import (
    Candidate,
    CandidateTokenizer,
    QueryInput,
    load_query_input,
    read_query_input,
)
from drtk.runtime.progress import log


class QueryScorer:
    """Candidates to estimated ranks with one query re-ranker: THE LOWER, THE BETTER.

    It is no `Scorer`, whose higher scores are better, so that neither is taken for the other.
    model: a folder that drtk rerank-queries train made, or a copy of it
    Raises MismatchError for any other model, and what loading one raises.
    """

    def __init__(self, model: str, *, device: str = "auto", settings: ScoringSettings | None = None) -> None:
        settings = settings or ScoringSettings()
        self.model, self.reading = model, load_query_input(model)
        reading = self.reading
        if settings.max_length is not None:
            reading = replace(reading, max_length=settings.max_length)
        self._scorer = Scorer(
            model,
            device=device,
            settings=settings,
            logits=True,
            tokenizing=lambda tokenizer: CandidateTokenizer(tokenizer, reading),
        )

    def __call__(self, candidates: Sequence[Candidate]) -> np.ndarray:
        """The estimates of the candidates in their order, (len(candidates),), float32."""
        return self.estimates(self.prepare(candidates))

    def prepare(self, candidates: Sequence[Candidate]) -> TokenizedPairs:
        """The candidates as tokens."""
        return self._scorer.prepare(candidates)  # type: ignore[arg-type]  # its tokenizing takes them

    def estimates(self, prepared: TokenizedPairs) -> np.ndarray:
        """The estimates of prepared candidates, (candidates,), float32. Raises what Scorer.scores raises."""
        return self._scorer.scores(prepared) if len(prepared.rows) else np.empty(0, dtype=np.float32)


def start_query_reranker(model: str, reading: QueryInput, *, max_length: int | None, seed: int) -> CrossEncoder:
    """What training begins with: an encoder with a new head, or the head there is.

    model: a folder or hub name; the head of a cross-encoder that gives higher scores to better pairs is turned round
    max_length: None: that of `reading`, or what the model can read where that is less
    Raises what `start_crossencoder` raises.
    """
    start = start_crossencoder(model, max_length=max_length, seed=seed, default=reading.max_length)
    folder: Path = tower_folder(locate(model), "passage")
    if is_classifier(folder) and read_query_input(folder) is None:
        _turn_round(start.model, model)
    return start


@torch.no_grad()
def _turn_round(classifier: Any, model: str) -> None:
    """Change the sign of the last layer's weights: a new beginning would lose what the head knows."""
    linear = [layer for layer in classifier.modules() if isinstance(layer, nn.Linear) and layer.out_features == 1]
    if not linear:
        raise MismatchError(f"{model}: has no linear layer at its end whose sign could be changed")
    for weights in linear[-1].parameters():
        weights.neg_()
    log(f"{model}: gives higher scores to better pairs; its head is turned round, for lower is better here")
