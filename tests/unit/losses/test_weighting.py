"""Losses of learned term weights (methods: sections 3.4 and 3.5)."""

import pytest
import torch

from drtk.losses.ranking import pair_loss, recall_loss


def test_recall_loss_counts_first_pieces_alone():
    # ((.5 - 1)^2 + (.2 - 0)^2) / 2 = (.25 + .04) / 2 = .145; the pieces between belong to continuations
    found = recall_loss(
        torch.tensor([[0.5, 0.9, 0.1, 0.2]]), torch.tensor([[1.0, 0, 0, 0]]), torch.tensor([[1, 0, 0, 1]])
    )
    assert found.item() == pytest.approx(0.145, abs=2e-6)


def test_recall_loss_is_a_mean_over_the_words_of_the_batch_not_of_its_passages():
    # errors 1, 1, 1 of the first passage and 4 of the second: 7 / 4
    weights, first = torch.tensor([[1.0, 1, 1], [2, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]])
    assert recall_loss(weights, torch.zeros(2, 3), first).item() == pytest.approx(1.75)
    assert recall_loss(weights, torch.zeros(2, 3), torch.zeros(2, 3)).item() == 0.0


def test_pair_loss_matches_the_known_answers():
    # -log(e^3 / (e^3 + e^2)) = log(1 + e^-1) = .313262; log(1 + e^.5) = .974077; their mean .643669
    assert pair_loss(torch.tensor([3.0]), torch.tensor([2.0])).item() == pytest.approx(0.313262, abs=2e-6)
    assert pair_loss(torch.tensor([1.0]), torch.tensor([1.5])).item() == pytest.approx(0.974077, abs=2e-6)
    both = pair_loss(torch.tensor([3.0, 1.0]), torch.tensor([2.0, 1.5]))
    assert both.item() == pytest.approx(0.643669, abs=2e-6)


def test_pair_loss_is_computed_in_float32():
    low = torch.tensor([3.0], dtype=torch.bfloat16)
    assert pair_loss(low, low - 1).dtype == torch.float32
