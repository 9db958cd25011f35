"""Known answers of the contrastive loss. For token losses see test_against_references.py."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from drtk.pretraining.composition import ContrastiveObjective
from drtk.pretraining.objectives import contrastive_loss

LEFT, RIGHT = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.8, 0.6], [0.6, 0.8]])
UNEVEN = torch.tensor([[0.8, 0.6], [0.28, 0.96]])
COCONDENSER = {"candidates": "all", "symmetric": True}
COSINE = {"similarity": "cosine"}


def compute_loss(options: dict[str, Any], *vectors: Tensor, present: Sequence[bool] = ()) -> float:
    """Return the contrast of slots a, b and c; present: rows that have slot b"""
    rows = dict(zip("abc", vectors, strict=False))
    there = {name: torch.ones(len(each), dtype=torch.bool) for name, each in rows.items()}
    there |= {"b": torch.tensor(present)} if present else {}
    return contrastive_loss(ContrastiveObjective("a", "b", **options), rows, there).item()


@pytest.mark.parametrize(
    ("options", "vectors", "expected"),
    [
        # Rows .818925 1.096023 .818925 1.096023: the first sees .8, 0 and .6: log(1 + e^-.8 + e^-.2) = .818925.
        (COCONDENSER, (LEFT, RIGHT), 0.957474),
        ({"candidates": "all"}, (LEFT, RIGHT), 0.818925),  # of the first texts: rows 0 and 2
        # Rows of [[.8, .6], [.6, .8]]: log(1 + e^-.2) = .598139 each.
        ({}, (LEFT, RIGHT), 0.598139),
        # [[.8, .28], [.6, .96]]: log(1 + e^-.52) = .466573, log(1 + e^-.36) = .529260; lengths do not count for cosines
        (COSINE, (3 * LEFT, UNEVEN), 0.497917),
        # the other direction: log(1 + e^-.2) = .598139, log(1 + e^-.68) = .409868; mean of .497917 and .504003
        ({"symmetric": True}, (LEFT, UNEVEN), 0.500960),
        (COCONDENSER, (torch.ones(2048, 2),) * 2, 8.317522),  # ln 4095: all texts but oneself
        # Row 0 sees .8, .6 and the extras 0 and 1; row 1 sees .8, .6, 1 and 0: log(1 + e^-.2 + e^-.8 + e^.2) each.
        ({"extra_negatives": ("c",)}, (LEFT, RIGHT, LEFT.flip(0)), 1.249748),
        # Against itself a row sees 1 and 0: log(1 + e^-1) = .313262; mean of both positives.
        ({"extra_positives": ("c",)}, (LEFT, RIGHT, LEFT), (0.598139 + 0.313262) / 2),
    ],
)
def test_contrastive_loss_has_known_values(options: dict, vectors: tuple[Tensor, ...], expected: float) -> None:
    assert compute_loss(options, *vectors) == pytest.approx(expected, abs=2e-6, rel=1e-6)


@pytest.mark.parametrize("options", [{}, COCONDENSER, {"symmetric": True}])
def test_incomplete_pair_is_neither_query_nor_candidate(options: dict[str, Any]) -> None:
    left, right = (torch.cat([rows, torch.tensor([[5.0, 5.0]])]) for rows in (LEFT, RIGHT))
    actual = compute_loss(options, left, right, present=[True, True, False])
    assert actual == pytest.approx(compute_loss(options, LEFT, RIGHT), abs=2e-6)


def test_absent_extra_negatives_are_not_candidates() -> None:
    rows, there = {"a": LEFT, "b": RIGHT, "c": torch.full((2, 2), 5.0)}, torch.tensor([True, True])
    objective = ContrastiveObjective("a", "b", extra_negatives=("c",))
    actual = contrastive_loss(objective, rows, {"a": there, "b": there, "c": ~there})
    assert actual.item() == pytest.approx(0.598139, abs=2e-6)


def test_contrastive_loss_without_pairs_is_0_with_gradient() -> None:
    rows, absent = LEFT.clone().requires_grad_(), torch.tensor([False, False])
    actual = contrastive_loss(ContrastiveObjective("a", "b"), {"a": rows, "b": RIGHT}, {"a": absent, "b": absent})
    actual.backward()
    assert actual.item() == 0.0
    assert rows.grad is not None
    assert not rows.grad.any()
