"""Losses of rerankers, query rerankers and term weights: known answers."""

from __future__ import annotations

from math import exp, log

import pytest
import torch

from drtk.losses.ranking import (
    binary_cross_entropy,
    listwise_cross_entropy,
    multi_positive_cross_entropy,
    pairwise_margin_loss,
    pairwise_softmax_loss,
    r_drop_losses,
    select_hardest,
    term_recall_loss,
)

FIRST = torch.tensor([[2.0, 1.0, 0.5, -1.0]])
SECOND = torch.tensor([[1.5, 1.2, 0.5, -0.5]])


def test_the_listwise_loss_matches_a_hand_computed_value():
    # e^2 + e^1 + e^.5 + e^-1 = 7.389056 + 2.718282 + 1.648721 + .367879 = 12.123939; ln 12.123939 - 2 = .495182
    assert listwise_cross_entropy(FIRST).item() == pytest.approx(0.495182, abs=2e-6)
    assert listwise_cross_entropy(SECOND).item() == pytest.approx(0.808275, abs=2e-6)


def test_the_listwise_loss_is_averaged_over_queries():
    both = listwise_cross_entropy(torch.cat([FIRST, SECOND]))
    assert both.item() == pytest.approx((0.495182 + 0.808275) / 2, abs=2e-6)


def test_r_drop_matches_the_known_answer():
    # .5 * .495182 + .5 * .808275 = .651728; with the divergence of both directions .059042 the total is .710770
    cross_entropy, apart = r_drop_losses(FIRST, SECOND)
    assert cross_entropy.item() == pytest.approx(0.651728, abs=2e-6)
    assert apart.item() == pytest.approx(0.059042, abs=2e-6)
    assert (cross_entropy + apart).item() == pytest.approx(0.710770, abs=2e-6)


def test_the_gradient_of_r_drop_flows_through_both_passes():
    first, second = FIRST.clone().requires_grad_(), SECOND.clone().requires_grad_()
    sum(r_drop_losses(first, second)).backward()
    assert float(first.grad.abs().min()) > 1e-3
    assert float(second.grad.abs().min()) > 1e-3


def test_the_hardest_are_the_positive_and_the_best_scored_negatives():
    logits = torch.tensor([[0.0, 3.0, 9.0, 1.0, 2.0], [5.0, 4.0, 3.0, 2.0, 1.0]])
    assert select_hardest(logits, 3).tolist() == [[0, 2, 1], [0, 1, 2]]
    assert select_hardest(logits, 1).tolist() == [[0], [0]]
    assert sorted(select_hardest(logits, 9)[0].tolist()) == [0, 1, 2, 3, 4]


def test_the_binary_loss_matches_a_hand_computed_value():
    # -ln sigmoid(2) = ln(1 + e^-2) = .126928; -ln(1 - sigmoid(1)) = ln(1 + e) = 1.313262; the mean is .720095
    found = binary_cross_entropy(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 0.0]))
    assert found.item() == pytest.approx((log(1 + exp(-2)) + log(1 + exp(1))) / 2, abs=2e-6)
    assert found.item() == pytest.approx(0.720095, abs=2e-6)
    assert binary_cross_entropy(torch.zeros(4), torch.tensor([0, 1, 0, 0])).item() == pytest.approx(log(2), abs=2e-6)


def test_several_positives_share_the_label():
    # one positive: the listwise loss; two: half of each one's -log p. log p = logit - 2.495182 (above)
    labels = torch.tensor([[1, 0, 0, 0]])
    present = torch.ones(1, 4, dtype=torch.bool)
    assert multi_positive_cross_entropy(FIRST, labels, present).item() == pytest.approx(0.495182, abs=2e-6)
    labels = torch.tensor([[1, 0, 1, 0]])
    assert multi_positive_cross_entropy(FIRST, labels, present).item() == pytest.approx(
        2.495182 - (2 + 0.5) / 2, abs=2e-6
    )


def test_padding_has_no_share_of_the_list():
    logits = torch.cat([FIRST, torch.tensor([[99.0, -99.0]])], dim=1).requires_grad_()
    present = torch.tensor([[True] * 4 + [False] * 2])
    labels = torch.tensor([[1, 0, 0, 0, 0, 0]])
    found = multi_positive_cross_entropy(logits, labels, present)
    assert found.item() == pytest.approx(0.495182, abs=2e-6)
    found.backward()
    assert logits.grad[0, 4:].tolist() == [0.0, 0.0]
    assert bool(torch.isfinite(logits.grad).all())


def test_losses_compute_in_float32_whatever_they_are_given():
    half = FIRST.bfloat16()
    assert listwise_cross_entropy(half).dtype == torch.float32
    assert r_drop_losses(half, half)[0].dtype == torch.float32
    assert binary_cross_entropy(half[0], torch.ones(4)).dtype == torch.float32
    assert listwise_cross_entropy(half).item() == pytest.approx(0.495182, abs=2e-6)


RANKS, SCORES = [1, 15, 101, 101], [0.10, 0.05, 0.40, 0.90]
TIED_SWAPPED = [0.10, 0.05, 0.90, 0.40]


def compute_loss(scores: list[float], ranks: list[int] | None = None, **how: object) -> float:
    """That of one question, alpha .01."""
    ranks = ranks or RANKS
    there = torch.ones(1, len(ranks), dtype=torch.bool)
    return float(pairwise_margin_loss(torch.tensor([scores]), torch.tensor([ranks]), there, **how))  # type: ignore[arg-type]


def test_the_printed_formula_adds_the_hinges_of_pairs_of_unequal_rank() -> None:
    # (1,15): .10 - .05 + .14 = .19; (1,101a): .10 - .40 + 1 = .70; (1,101b): .20; (15,101a): .51; (15,101b): .01
    assert compute_loss(SCORES, weight="sum") == pytest.approx(1.61)
    # all scores 0: .14 + 1.00 + 1.00 + .86 + .86
    assert compute_loss([0.0] * 4, weight="sum") == pytest.approx(3.86)


def test_the_released_loss_averages_over_distances_ties_included() -> None:
    # distance 1: (.19 + .51 + 0)/3 = .233333; 2: (.70 + .01)/2 = .355; 3: .20
    assert compute_loss(SCORES, skip_ties=False) == pytest.approx(0.262778, abs=2e-6)
    # the tied two swapped: the pair of equal rank costs .90 - .40 = .50, only because of the order it came in
    assert compute_loss(TIED_SWAPPED, skip_ties=False) == pytest.approx(0.429444, abs=2e-6)
    assert compute_loss([0.0] * 4, skip_ties=False) == pytest.approx(0.754444, abs=2e-6)


def test_without_ties_a_distance_counts_its_pairs_of_unequal_rank() -> None:
    # distance 1: (.19 + .51)/2 = .35; 2: .355; 3: .20
    assert compute_loss(SCORES) == pytest.approx(0.301667, abs=2e-6)
    assert compute_loss(TIED_SWAPPED) == pytest.approx(0.385, abs=2e-6)
    # (.14 + .86)/2 = .5; (1 + .86)/2 = .93; 1
    assert compute_loss([0.0] * 4) == pytest.approx(0.81, abs=2e-6)


@pytest.mark.parametrize("weight", ["offset", "sum"])
@pytest.mark.parametrize("skip_ties", [True, False])
def test_scores_as_far_apart_as_the_ranks_cost_nothing(weight: str, skip_ties: bool) -> None:
    assert compute_loss([0.0, 0.14, 1.0, 1.0], weight=weight, skip_ties=skip_ties) == pytest.approx(0.0, abs=2e-6)


def test_candidates_are_put_into_the_order_of_their_ranks_and_ties_into_that_of_their_places() -> None:
    # 101a, 1, 101b, 15 with the scores they have above
    assert compute_loss([0.40, 0.10, 0.90, 0.05], [101, 1, 101, 15]) == pytest.approx(0.301667, abs=2e-6)
    assert compute_loss([0.40, 0.10, 0.90, 0.05], [101, 1, 101, 15], skip_ties=False) == pytest.approx(
        0.262778, abs=2e-6
    )


def test_questions_are_averaged_and_padding_counts_nowhere() -> None:
    # one question of four candidates, one of two: 1, 3 with scores .5, .1: hinge .5 - .1 + .02 = .42
    scores = torch.tensor([SCORES, [0.5, 0.1, -9.0, 9.0]])
    ranks = torch.tensor([RANKS, [1, 3, 0, 0]])
    present = torch.tensor([[True] * 4, [True, True, False, False]])
    assert float(pairwise_margin_loss(scores, ranks, present)) == pytest.approx((0.301667 + 0.42) / 2, abs=2e-6)
    assert float(pairwise_margin_loss(scores, ranks, present, weight="sum")) == pytest.approx(
        (1.61 + 0.42) / 2, abs=2e-6
    )
    assert float(pairwise_margin_loss(scores, ranks, present, skip_ties=False)) == pytest.approx(
        (0.262778 + 0.42) / 2, abs=2e-6
    )


def test_the_better_candidate_is_pushed_down_and_the_worse_one_up() -> None:
    # The sign: a gradient step lowers the score of rank 1 and raises that of rank 101.
    scores = torch.zeros(1, 2, requires_grad=True)
    pairwise_margin_loss(scores, torch.tensor([[101, 1]]), torch.ones(1, 2, dtype=torch.bool)).backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == [[-1.0, 1.0]]


def test_a_question_whose_candidates_are_all_alike_costs_nothing() -> None:
    assert compute_loss([0.3, 0.1], [101, 101]) == 0.0
    scores = torch.tensor([[0.3, 0.1]], requires_grad=True)
    pairwise_margin_loss(scores, torch.tensor([[7, 7]]), torch.ones(1, 2, dtype=torch.bool)).backward()
    assert torch.isfinite(scores.grad).all()  # type: ignore[arg-type]


def test_recall_loss_counts_first_pieces_alone():
    # ((.5 - 1)^2 + (.2 - 0)^2) / 2 = (.25 + .04) / 2 = .145; the pieces between belong to continuations
    found = term_recall_loss(
        torch.tensor([[0.5, 0.9, 0.1, 0.2]]), torch.tensor([[1.0, 0, 0, 0]]), torch.tensor([[1, 0, 0, 1]])
    )
    assert found.item() == pytest.approx(0.145, abs=2e-6)


def test_recall_loss_is_a_mean_over_the_words_of_the_batch_not_of_its_passages():
    # errors 1, 1, 1 of the first passage and 4 of the second: 7 / 4
    weights, first = torch.tensor([[1.0, 1, 1], [2, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]])
    assert term_recall_loss(weights, torch.zeros(2, 3), first).item() == pytest.approx(1.75)
    assert term_recall_loss(weights, torch.zeros(2, 3), torch.zeros(2, 3)).item() == 0.0


def test_pair_loss_matches_the_known_answers():
    # -log(e^3 / (e^3 + e^2)) = log(1 + e^-1) = .313262; log(1 + e^.5) = .974077; their mean .643669
    assert pairwise_softmax_loss(torch.tensor([3.0]), torch.tensor([2.0])).item() == pytest.approx(0.313262, abs=2e-6)
    assert pairwise_softmax_loss(torch.tensor([1.0]), torch.tensor([1.5])).item() == pytest.approx(0.974077, abs=2e-6)
    both = pairwise_softmax_loss(torch.tensor([3.0, 1.0]), torch.tensor([2.0, 1.5]))
    assert both.item() == pytest.approx(0.643669, abs=2e-6)
