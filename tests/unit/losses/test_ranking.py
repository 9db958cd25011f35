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
    both = listwise_cross_entropy(torch.cat([FIRST, SECOND]))
    assert both.item() == pytest.approx((0.495182 + 0.808275) / 2, abs=2e-6)
    assert listwise_cross_entropy(FIRST.bfloat16()).dtype == torch.float32
    assert listwise_cross_entropy(FIRST.bfloat16()).item() == pytest.approx(0.495182, abs=2e-6)


def test_r_drop_matches_the_known_answer():
    # .5 * .495182 + .5 * .808275 = .651728; the divergence in both directions is .059042
    first, second = FIRST.clone().requires_grad_(), SECOND.clone().requires_grad_()
    cross_entropy, divergence = r_drop_losses(first, second)
    assert cross_entropy.item() == pytest.approx(0.651728, abs=2e-6)
    assert divergence.item() == pytest.approx(0.059042, abs=2e-6)
    for loss in (cross_entropy, divergence):
        for gradient in torch.autograd.grad(loss, (first, second), retain_graph=True):
            assert float(gradient.abs().min()) > 1e-3
    assert r_drop_losses(FIRST.bfloat16(), FIRST.bfloat16())[0].dtype == torch.float32


def test_the_hardest_are_the_positive_and_the_best_scored_negatives():
    logits = torch.tensor([[0.0, 3.0, 9.0, 1.0, 2.0], [5.0, 4.0, 3.0, 2.0, 1.0]])
    assert select_hardest(logits, 3).tolist() == [[0, 2, 1], [0, 1, 2]]
    assert select_hardest(logits, 1).tolist() == [[0], [0]]
    assert sorted(select_hardest(logits, 9)[0].tolist()) == [0, 1, 2, 3, 4]


def test_the_binary_loss_matches_a_hand_computed_value():
    # -ln sigmoid(2) = ln(1 + e^-2) = .126928; -ln(1 - sigmoid(1)) = ln(1 + e) = 1.313262; the mean is .720095
    loss = binary_cross_entropy(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 0.0]))
    assert loss.item() == pytest.approx((log(1 + exp(-2)) + log(1 + exp(1))) / 2, abs=2e-6)
    assert binary_cross_entropy(FIRST[0].bfloat16(), torch.ones(4)).dtype == torch.float32


def test_several_positives_share_the_label():
    # one positive: the listwise loss; two: half of the -log p of each; log p = logit - 2.495182 (above)
    logits = torch.cat([FIRST, torch.tensor([[99.0, -99.0]])], dim=1).requires_grad_()
    present = torch.tensor([[True] * 4 + [False] * 2])  # the last two are padding
    loss = multi_positive_cross_entropy(logits, torch.tensor([[1, 0, 0, 0, 0, 0]]), present)
    assert loss.item() == pytest.approx(0.495182, abs=2e-6)
    loss.backward()
    assert logits.grad[0, 4:].tolist() == [0.0, 0.0]
    assert bool(torch.isfinite(logits.grad).all())
    two = multi_positive_cross_entropy(logits, torch.tensor([[1, 0, 1, 0, 0, 0]]), present)
    assert two.item() == pytest.approx(2.495182 - (2 + 0.5) / 2, abs=2e-6)


RANKS, SCORES = [1, 15, 101, 101], [0.10, 0.05, 0.40, 0.90]
TIED_SWAPPED = [0.10, 0.05, 0.90, 0.40]


def compute_loss(scores: list[float], ranks: list[int] | None = None, **options: object) -> float:
    """Return the pairwise margin loss of one question, with alpha .01."""
    ranks = ranks or RANKS
    present = torch.ones(1, len(ranks), dtype=torch.bool)
    return float(pairwise_margin_loss(torch.tensor([scores]), torch.tensor([ranks]), present, **options))  # type: ignore[arg-type]


def test_the_printed_formula_adds_the_hinges_of_pairs_of_unequal_rank() -> None:
    # (1,15): .10 - .05 + .14 = .19; (1,101a): .10 - .40 + 1 = .70; (1,101b): .20; (15,101a): .51; (15,101b): .01
    assert compute_loss(SCORES, weight="sum") == pytest.approx(1.61)


def test_the_released_loss_averages_over_distances_ties_included() -> None:
    # distance 1: (.19 + .51 + 0)/3 = .233333; 2: (.70 + .01)/2 = .355; 3: .20
    assert compute_loss(SCORES, skip_ties=False) == pytest.approx(0.262778, abs=2e-6)
    # the tied two swapped: the pair of equal rank costs .90 - .40 = .50, only because of the input order
    assert compute_loss(TIED_SWAPPED, skip_ties=False) == pytest.approx(0.429444, abs=2e-6)


def test_without_ties_a_distance_counts_its_pairs_of_unequal_rank() -> None:
    # distance 1: (.19 + .51)/2 = .35; 2: .355; 3: .20
    assert compute_loss(SCORES) == pytest.approx(0.301667, abs=2e-6)
    assert compute_loss([0.40, 0.10, 0.90, 0.05], [101, 1, 101, 15]) == pytest.approx(0.301667, abs=2e-6)


def test_the_better_expansion_gets_a_lower_score() -> None:
    scores = torch.zeros(1, 2, requires_grad=True)
    pairwise_margin_loss(scores, torch.tensor([[101, 1]]), torch.ones(1, 2, dtype=torch.bool)).backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == [[-1.0, 1.0]]
    equal = torch.tensor([[0.3, 0.1]], requires_grad=True)  # no pairs
    loss = pairwise_margin_loss(equal, torch.tensor([[7, 7]]), torch.ones(1, 2, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.isfinite(equal.grad).all()  # type: ignore[arg-type]


def test_recall_loss_counts_first_pieces_alone():
    # ((.5 - 1)^2 + (.2 - 0)^2) / 2 = (.25 + .04) / 2 = .145; the pieces between are continuations
    weights, recall = torch.tensor([[0.5, 0.9, 0.1, 0.2]]), torch.tensor([[1.0, 0, 0, 0]])
    assert term_recall_loss(weights, recall, torch.tensor([[1, 0, 0, 1]])).item() == pytest.approx(0.145, abs=2e-6)
    # mean over words: errors 1, 1, 1 of the first passage and 4 of the second: 7 / 4
    weights, first = torch.tensor([[1.0, 1, 1], [2, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]])
    assert term_recall_loss(weights, torch.zeros(2, 3), first).item() == pytest.approx(1.75)
    assert term_recall_loss(weights, torch.zeros(2, 3), torch.zeros(2, 3)).item() == 0.0


def test_pair_loss_matches_the_known_answers():
    # -log(e^3 / (e^3 + e^2)) = log(1 + e^-1) = .313262; log(1 + e^.5) = .974077; their mean .643669
    both = pairwise_softmax_loss(torch.tensor([3.0, 1.0]), torch.tensor([2.0, 1.5]))
    assert both.item() == pytest.approx(0.643669, abs=2e-6)
