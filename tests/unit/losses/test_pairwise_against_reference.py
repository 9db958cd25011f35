"""The pairwise loss of query rerankers equals a slow reference implementation."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drtk.config import load_preset, merge_settings
from drtk.losses.ranking import pairwise_margin_loss
from drtk.query_expansion.config import QueryRerankerConfig
from drtk.query_expansion.train_reranker import make_objective
from tests.reference import queries as slow

OPTIONS: list[dict[str, Any]] = [
    {"weight": weight, "skip_ties": skip_ties, "alpha": alpha}
    for weight in ("offset", "sum")
    for skip_ties in (True, False)
    for alpha in (0.01, 0.0, 0.3)
]
Questions = list[tuple[list[float], list[int]]]


def make_questions(seed: int) -> Questions:
    """Return up to four questions of one to nine candidates, with many equal ranks."""
    draw = random.Random(seed)
    questions = []
    for _ in range(draw.randint(1, 4)):
        ranks = draw.choice([[101], [1, 101], [1, 2, 15, 101], list(range(1, 102)), [250, 3, 77]])
        count = draw.randint(1, 9)
        scale = draw.choice([0.01, 1.0, 50.0])
        scores = [draw.choice([0.0, draw.gauss(0, scale)]) for _ in range(count)]
        questions.append((scores, [draw.choice(ranks) for _ in range(count)]))
    return questions


def pad_questions(questions: Questions) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores, ranks and the mask of present candidates, (questions, n) each."""
    width = max(len(scores) for scores, _ in questions)
    scores = torch.tensor([row + [1e6] * (width - len(row)) for row, _ in questions], dtype=torch.double)
    ranks = torch.tensor([row + [1] * (width - len(row)) for _, row in questions])
    present = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row, _ in questions])
    return scores, ranks, present


@pytest.mark.parametrize("seed", range(20))
def test_the_pairwise_margin_loss_equals_the_reference(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "float", Tensor.double)  # so that formulas are compared, and not roundings
    questions = make_questions(seed)
    scores, ranks, present = pad_questions(questions)
    for options in OPTIONS:
        loss = pairwise_margin_loss(scores, ranks, present, **options)  # type: ignore[arg-type]
        assert float(loss) == pytest.approx(slow.batch_loss(questions, **options), abs=1e-9, rel=1e-9), options


class FixedScorer(nn.Module):
    """A model that returns fixed scores."""

    def __init__(self, scores: list[float]) -> None:
        super().__init__()
        self.scores = torch.tensor(scores)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.scores


@pytest.mark.parametrize("preset", ["ear-ri", "ear-rd"])
def test_the_objectives_of_presets_equal_the_reference(preset: str) -> None:
    for seed, options in enumerate(OPTIONS):
        changes = {"pair_weight": options["weight"], "skip_ties": options["skip_ties"], "rank_margin": options["alpha"]}
        objective = make_objective(merge_settings(QueryRerankerConfig, load_preset(preset).settings, changes))
        questions = make_questions(seed)
        _, ranks, present = pad_questions(questions)
        scores = [score for row, _ in questions for score in row]
        inputs = {"input_ids": torch.zeros(len(scores), 2, dtype=torch.long), "ranks": ranks, "present": present}
        loss = float(objective(FixedScorer(scores), inputs)["margin"])
        assert loss == pytest.approx(slow.batch_loss(questions, **options), rel=1e-5, abs=1e-5), options
