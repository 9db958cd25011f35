"""The pairwise margin loss of query re-rankers: the known answers of methods, section 7.5, and what must hold."""

from __future__ import annotations

import pytest
import torch

from drtk.losses.ranking import pairwise_margin

RANKS, SCORES = [1, 15, 101, 101], [0.10, 0.05, 0.40, 0.90]
TIED_SWAPPED = [0.10, 0.05, 0.90, 0.40]


def loss(scores: list[float], ranks: list[int] | None = None, **how: object) -> float:
    """That of one question, alpha .01."""
    ranks = ranks or RANKS
    there = torch.ones(1, len(ranks), dtype=torch.bool)
    return float(pairwise_margin(torch.tensor([scores]), torch.tensor([ranks]), there, **how))  # type: ignore[arg-type]


def test_the_printed_formula_adds_the_hinges_of_pairs_of_unequal_rank() -> None:
    # (1,15): .10 - .05 + .14 = .19; (1,101a): .10 - .40 + 1 = .70; (1,101b): .20; (15,101a): .51; (15,101b): .01
    assert loss(SCORES, weight="sum") == pytest.approx(1.61)
    # all scores 0: .14 + 1.00 + 1.00 + .86 + .86
    assert loss([0.0] * 4, weight="sum") == pytest.approx(3.86)


def test_the_released_loss_averages_over_distances_ties_included() -> None:
    # distance 1: (.19 + .51 + 0)/3 = .233333; 2: (.70 + .01)/2 = .355; 3: .20
    assert loss(SCORES, skip_ties=False) == pytest.approx(0.262778, abs=2e-6)
    # the tied two swapped: the pair of equal rank costs .90 - .40 = .50, only because of the order it came in
    assert loss(TIED_SWAPPED, skip_ties=False) == pytest.approx(0.429444, abs=2e-6)
    assert loss([0.0] * 4, skip_ties=False) == pytest.approx(0.754444, abs=2e-6)


def test_without_ties_a_distance_counts_its_pairs_of_unequal_rank() -> None:
    # distance 1: (.19 + .51)/2 = .35; 2: .355; 3: .20
    assert loss(SCORES) == pytest.approx(0.301667, abs=2e-6)
    assert loss(TIED_SWAPPED) == pytest.approx(0.385, abs=2e-6)
    # (.14 + .86)/2 = .5; (1 + .86)/2 = .93; 1
    assert loss([0.0] * 4) == pytest.approx(0.81, abs=2e-6)


@pytest.mark.parametrize("weight", ["offset", "sum"])
@pytest.mark.parametrize("skip_ties", [True, False])
def test_scores_as_far_apart_as_the_ranks_cost_nothing(weight: str, skip_ties: bool) -> None:
    assert loss([0.0, 0.14, 1.0, 1.0], weight=weight, skip_ties=skip_ties) == pytest.approx(0.0, abs=2e-6)


def test_candidates_are_put_into_the_order_of_their_ranks_and_ties_into_that_of_their_places() -> None:
    # 101a, 1, 101b, 15 with the scores they have above
    assert loss([0.40, 0.10, 0.90, 0.05], [101, 1, 101, 15]) == pytest.approx(0.301667, abs=2e-6)
    assert loss([0.40, 0.10, 0.90, 0.05], [101, 1, 101, 15], skip_ties=False) == pytest.approx(0.262778, abs=2e-6)


def test_questions_are_averaged_and_padding_counts_nowhere() -> None:
    # one question of four candidates, one of two: 1, 3 with scores .5, .1: hinge .5 - .1 + .02 = .42
    scores = torch.tensor([SCORES, [0.5, 0.1, -9.0, 9.0]])
    ranks = torch.tensor([RANKS, [1, 3, 0, 0]])
    present = torch.tensor([[True] * 4, [True, True, False, False]])
    assert float(pairwise_margin(scores, ranks, present)) == pytest.approx((0.301667 + 0.42) / 2, abs=2e-6)
    assert float(pairwise_margin(scores, ranks, present, weight="sum")) == pytest.approx((1.61 + 0.42) / 2, abs=2e-6)
    assert float(pairwise_margin(scores, ranks, present, skip_ties=False)) == pytest.approx(
        (0.262778 + 0.42) / 2, abs=2e-6
    )


def test_the_better_candidate_is_pushed_down_and_the_worse_one_up() -> None:
    # The sign: a gradient step lowers the score of rank 1 and raises that of rank 101.
    scores = torch.zeros(1, 2, requires_grad=True)
    pairwise_margin(scores, torch.tensor([[101, 1]]), torch.ones(1, 2, dtype=torch.bool)).backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == [[-1.0, 1.0]]


def test_a_question_whose_candidates_are_all_alike_costs_nothing() -> None:
    assert loss([0.3, 0.1], [101, 101]) == 0.0
    scores = torch.tensor([[0.3, 0.1]], requires_grad=True)
    pairwise_margin(scores, torch.tensor([[7, 7]]), torch.ones(1, 2, dtype=torch.bool)).backward()
    assert torch.isfinite(scores.grad).all()  # type: ignore[arg-type]


def test_the_loss_of_any_question_agrees_with_its_plain_definition() -> None:
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        n = int(torch.randint(2, 9, (1,), generator=draw))
        ranks = torch.randint(1, 5, (n,), generator=draw).tolist()
        scores = torch.rand(n, generator=draw).tolist()
        order = sorted(range(n), key=lambda at: ranks[at])  # stable
        for skip in (True, False):
            means, total = [], 0.0
            for offset in range(1, n):
                hinges = [
                    max(0.0, scores[a] - scores[b] + 0.01 * (ranks[b] - ranks[a]))
                    for a, b in zip(order, order[offset:], strict=False)
                    if ranks[a] < ranks[b] or not skip
                ]
                means += [sum(hinges) / len(hinges)] if hinges else []
                total += sum(hinges)
            wanted = sum(means) / len(means) if means else 0.0
            assert loss(scores, ranks, skip_ties=skip) == pytest.approx(wanted, abs=2e-6)
            assert loss(scores, ranks, skip_ties=skip, weight="sum") == pytest.approx(total, abs=1e-5)
