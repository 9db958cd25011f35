"""Losses of re-rankers: the known answers of the specification, and what must hold for any logits."""

from __future__ import annotations

from math import exp, log

import pytest
import torch

from drtk.losses.ranking import binary, hardest, listwise, listwise_labels, r_drop

FIRST = torch.tensor([[2.0, 1.0, 0.5, -1.0]])
SECOND = torch.tensor([[1.5, 1.2, 0.5, -0.5]])


def test_the_listwise_loss_matches_a_hand_computed_value():
    # e^2 + e^1 + e^.5 + e^-1 = 7.389056 + 2.718282 + 1.648721 + .367879 = 12.123939; ln 12.123939 - 2 = .495182
    assert listwise(FIRST).item() == pytest.approx(0.495182, abs=2e-6)
    assert listwise(SECOND).item() == pytest.approx(0.808275, abs=2e-6)


def test_the_listwise_loss_is_averaged_over_queries():
    both = listwise(torch.cat([FIRST, SECOND]))
    assert both.item() == pytest.approx((0.495182 + 0.808275) / 2, abs=2e-6)


def test_equal_logits_count_the_passages_of_a_query():
    assert listwise(torch.zeros(3, 64)).item() == pytest.approx(4.158883, abs=2e-6)  # ln 64
    assert listwise(torch.full((2, 16), -1.5)).item() == pytest.approx(2.772589, abs=2e-6)  # ln 16


def test_r_drop_matches_the_known_answer():
    # .5 * .495182 + .5 * .808275 = .651728; with the divergence of both directions .059042 the total is .710770
    cross_entropy, apart = r_drop(FIRST, SECOND)
    assert cross_entropy.item() == pytest.approx(0.651728, abs=2e-6)
    assert apart.item() == pytest.approx(0.059042, abs=2e-6)
    assert (cross_entropy + apart).item() == pytest.approx(0.710770, abs=2e-6)


def test_the_divergence_is_half_of_both_directions_and_zero_where_the_passes_agree():
    p, q = (torch.softmax(each[0], 0).tolist() for each in (FIRST, SECOND))
    there = sum(a * log(a / b) for a, b in zip(p, q, strict=True))
    back = sum(b * log(b / a) for a, b in zip(p, q, strict=True))
    assert r_drop(FIRST, SECOND)[1].item() == pytest.approx((there + back) / 2, abs=2e-6)
    assert r_drop(FIRST, FIRST)[1].item() == 0.0


def test_the_gradient_of_r_drop_flows_through_both_passes():
    first, second = FIRST.clone().requires_grad_(), SECOND.clone().requires_grad_()
    sum(r_drop(first, second)).backward()
    assert float(first.grad.abs().min()) > 1e-3
    assert float(second.grad.abs().min()) > 1e-3


def test_the_hardest_are_the_positive_and_the_best_scored_negatives():
    logits = torch.tensor([[0.0, 3.0, 9.0, 1.0, 2.0], [5.0, 4.0, 3.0, 2.0, 1.0]])
    assert hardest(logits, 3).tolist() == [[0, 2, 1], [0, 1, 2]]
    assert hardest(logits, 1).tolist() == [[0], [0]]
    assert sorted(hardest(logits, 9)[0].tolist()) == [0, 1, 2, 3, 4]


def test_the_binary_loss_matches_a_hand_computed_value():
    # -ln sigmoid(2) = ln(1 + e^-2) = .126928; -ln(1 - sigmoid(1)) = ln(1 + e) = 1.313262; the mean is .720095
    found = binary(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 0.0]))
    assert found.item() == pytest.approx((log(1 + exp(-2)) + log(1 + exp(1))) / 2, abs=2e-6)
    assert found.item() == pytest.approx(0.720095, abs=2e-6)
    assert binary(torch.zeros(4), torch.tensor([0, 1, 0, 0])).item() == pytest.approx(log(2), abs=2e-6)


def test_several_positives_share_the_label():
    # one positive: the listwise loss; two: half of each one's -log p. log p = logit - 2.495182 (above)
    labels = torch.tensor([[1, 0, 0, 0]])
    present = torch.ones(1, 4, dtype=torch.bool)
    assert listwise_labels(FIRST, labels, present).item() == pytest.approx(0.495182, abs=2e-6)
    labels = torch.tensor([[1, 0, 1, 0]])
    assert listwise_labels(FIRST, labels, present).item() == pytest.approx(2.495182 - (2 + 0.5) / 2, abs=2e-6)


def test_padding_has_no_share_of_the_list():
    logits = torch.cat([FIRST, torch.tensor([[99.0, -99.0]])], dim=1).requires_grad_()
    present = torch.tensor([[True] * 4 + [False] * 2])
    labels = torch.tensor([[1, 0, 0, 0, 0, 0]])
    found = listwise_labels(logits, labels, present)
    assert found.item() == pytest.approx(0.495182, abs=2e-6)
    found.backward()
    assert logits.grad[0, 4:].tolist() == [0.0, 0.0]
    assert bool(torch.isfinite(logits.grad).all())


def test_losses_compute_in_float32_whatever_they_are_given():
    half = FIRST.bfloat16()
    assert listwise(half).dtype == torch.float32
    assert r_drop(half, half)[0].dtype == torch.float32
    assert binary(half[0], torch.ones(4)).dtype == torch.float32
    assert listwise(half).item() == pytest.approx(0.495182, abs=2e-6)
