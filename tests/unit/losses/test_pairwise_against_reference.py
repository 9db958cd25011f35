"""The losses of query and passage rerankers against loops written from the description of the methods alone."""

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

OPTIONS = [
    {"weight": weight, "skip_ties": skip_ties, "alpha": alpha}
    for weight in ("offset", "sum")
    for skip_ties in (True, False)
    for alpha in (0.01, 0.0, 0.3)
]
Questions = list[tuple[list[float], list[int]]]


@pytest.fixture
def in_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the losses would cast to float32 stays in float64, so that formulas are compared and not roundings."""
    monkeypatch.setattr(Tensor, "float", Tensor.double)


def make_questions(seed: int) -> Questions:
    """Up to four questions of one to nine candidates, with many equal ranks, some with nothing else."""
    draw = random.Random(seed)
    found = []
    for _ in range(draw.randint(1, 4)):
        ranks = draw.choice([[101], [1, 101], [1, 2, 15, 101], list(range(1, 102)), [250, 3, 77]])
        count = draw.randint(1, 9)
        scale = draw.choice([0.01, 1.0, 50.0])
        scores = [draw.choice([0.0, draw.gauss(0, scale)]) for _ in range(count)]
        found.append((scores, [draw.choice(ranks) for _ in range(count)]))
    return found


def pad_questions(found: Questions, *, trash: float = 1e6) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, ranks and what is there, (questions, n) each; what is not there has numbers that would be noticed."""
    width = max(len(scores) for scores, _ in found)
    scores = torch.tensor([row + [trash] * (width - len(row)) for row, _ in found], dtype=torch.double)
    ranks = torch.tensor([row + [1] * (width - len(row)) for _, row in found])
    there = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row, _ in found])
    return scores, ranks, there


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize("seed", range(20))
def test_the_pairwise_margin_loss_is_that_of_the_reference(seed: int) -> None:
    found = make_questions(seed)
    scores, ranks, there = pad_questions(found)
    for options in OPTIONS:
        fast = pairwise_margin_loss(scores, ranks, there, **options)  # type: ignore[arg-type]
        assert float(fast) == pytest.approx(slow.batch_loss(found, **options), abs=1e-9, rel=1e-9), options


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[3], OPTIONS[6]])
def test_scores_move_where_the_reference_goes_down(options: dict[str, Any]) -> None:
    # Gaussian scores: no hinge is at its corner, so differences over 2e-6 are the gradient
    draw = random.Random(5)
    found = [
        ([draw.gauss(0, 1) for _ in range(size)], [draw.choice([1, 5, 101]) for _ in range(size)]) for size in (6, 3)
    ]
    scores, ranks, there = pad_questions(found)
    scores.requires_grad_()
    pairwise_margin_loss(scores, ranks, there, **options).backward()
    assert scores.grad is not None
    for number, (row, labels) in enumerate(found):
        for place in range(len(row)):
            sides = []
            for step in (1e-6, -1e-6):
                moved = [*row[:place], row[place] + step, *row[place + 1 :]]
                sides.append(slow.batch_loss([*found[:number], (moved, labels), *found[number + 1 :]], **options))
            assert float(scores.grad[number, place]) == pytest.approx((sides[0] - sides[1]) / 2e-6, abs=2e-6)
    assert not scores.grad[~there].any()


class PlantedScorer(nn.Module):
    """Gives the scores it was made with, whatever it reads."""

    def __init__(self, scores: list[float]) -> None:
        super().__init__()
        self.scores = torch.tensor(scores)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.scores


@pytest.mark.parametrize("preset", ["ear-ri", "ear-rd"])
@pytest.mark.parametrize("options", OPTIONS)
def test_presets_and_their_options_minimize_what_the_reference_says(preset: str, options: dict[str, Any]) -> None:
    changes = {"pair_weight": options["weight"], "skip_ties": options["skip_ties"], "rank_margin": options["alpha"]}
    objective = make_objective(merge_settings(QueryRerankerConfig, load_preset(preset).settings, changes))
    for seed in range(4):
        found = make_questions(seed)
        _, ranks, there = pad_questions(found)
        flat = [score for scores, _ in found for score in scores]  # the model reads what is there alone
        inputs = {"input_ids": torch.zeros(len(flat), 2, dtype=torch.long), "ranks": ranks, "present": there}
        value = float(objective(PlantedScorer(flat), inputs)["margin"])
        assert value == pytest.approx(slow.batch_loss(found, **options), rel=1e-5, abs=1e-5)
