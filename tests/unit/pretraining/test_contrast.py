"""Known answers of the contrastive terms (methods: sections 5.3, 5.10, 11)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from drtk.pretraining.composition import Contrast
from drtk.pretraining.objectives import contrast_loss

LEFT, RIGHT = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.8, 0.6], [0.6, 0.8]])
PAIRS = {"a": LEFT, "b": RIGHT}
COCONDENSER = {"candidates": "all", "symmetric": True}


def loss(wanted: Contrast, vectors: dict[str, Tensor], *, present: dict[str, Tensor] | None = None) -> float:
    everybody = {name: torch.ones(len(rows), dtype=torch.bool) for name, rows in vectors.items()}
    return contrast_loss(wanted, vectors, everybody | (present or {})).item()


def wanted(**changes: object) -> Contrast:
    return Contrast("a", "b", **changes)  # type: ignore[arg-type]


def test_two_pairs_of_cocondenser_find_each_other_among_all_texts() -> None:
    # Rows .818925 1.096023 .818925 1.096023: the first sees .8, 0 and .6, so its loss is log(1 + e^-.8 + e^-.2) = .818925.
    assert math.log(1 + math.exp(-0.8) + math.exp(-0.2)) == pytest.approx(0.818925, abs=2e-6)
    assert loss(wanted(**COCONDENSER), PAIRS) == pytest.approx(0.957474, abs=2e-6)


def test_one_direction_among_the_other_side_is_another_figure() -> None:
    # Rows of [[.8, .6], [.6, .8]]: log(1 + e^-.2) = .598139 each.
    assert loss(wanted(), PAIRS) == pytest.approx(0.598139, abs=2e-6)


def test_both_directions_among_the_other_sides_are_averaged() -> None:
    uneven = {"a": LEFT, "b": torch.tensor([[0.8, 0.6], [0.28, 0.96]])}
    one, other = loss(wanted(), uneven), loss(wanted(), {"a": uneven["b"], "b": uneven["a"]})
    assert one != pytest.approx(other, abs=1e-3)
    assert loss(wanted(symmetric=True), uneven) == pytest.approx((one + other) / 2, abs=2e-6)


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, 0.497917), (0.05, 0.000388370)])
def test_two_sentences_of_simcse(temperature: float, expected: float) -> None:
    # Cosines [[.8, .28], [.6, .96]]: log(1 + e^-.52) = .466573 and log(1 + e^-.36) = .529260, mean .497917.
    views = {"a": 3 * LEFT, "b": torch.tensor([[0.8, 0.6], [0.28, 0.96]])}  # lengths do not count
    simcse = wanted(similarity="cosine", temperature=temperature)
    assert loss(simcse, views) == pytest.approx(expected, abs=2e-6)


def test_identical_vectors_cost_the_logarithm_of_the_candidates() -> None:
    # 2,048 pairs: 4,096 texts but oneself, ln 4095; SimCSE with a batch of 64: ln 64.
    same = {"a": torch.ones(2048, 2), "b": torch.ones(2048, 2)}
    assert loss(wanted(**COCONDENSER), same) == pytest.approx(8.317522, abs=1e-5)
    few = {name: rows[:64] for name, rows in same.items()}
    assert loss(wanted(similarity="cosine", temperature=0.05), few) == pytest.approx(4.158883, abs=1e-5)


def test_extra_negatives_are_more_columns() -> None:
    # Row 0 sees .8, .6 and the extras 0 and 1: log(1 + e^-.2 + e^-.8 + e^.2); row 1 sees .8, .6, and 1 and 0: the same.
    with_extras = wanted(extra_negatives=("c",))
    found = loss(with_extras, PAIRS | {"c": torch.tensor([[0.0, 1.0], [1.0, 0.0]])})
    assert found == pytest.approx(math.log(1 + math.exp(-0.2) + math.exp(-0.8) + math.exp(0.2)), abs=2e-6)


def test_an_extra_positive_is_a_second_term_and_the_two_are_averaged() -> None:
    # Against itself a row sees 1 and 0: log(1 + e^-1) = .313262. Mean of .598139 and .313262.
    found = loss(wanted(extra_positives=("c",)), PAIRS | {"c": LEFT})
    assert found == pytest.approx((0.598139 + 0.313262) / 2, abs=2e-6)


@pytest.mark.parametrize("how", [{}, COCONDENSER], ids=["among the other side", "among all"])
def test_a_pair_that_lacks_a_side_neither_asks_nor_is_found(how: dict[str, object]) -> None:
    three = {name: torch.cat([rows, torch.tensor([[5.0, 5.0]])]) for name, rows in PAIRS.items()}
    there = torch.tensor([True, True, False])
    assert loss(wanted(**how), three, present={"b": there}) == pytest.approx(loss(wanted(**how), PAIRS), abs=2e-6)


def test_without_any_pair_there_is_no_loss_but_a_gradient_of_zero() -> None:
    rows = LEFT.clone().requires_grad_()
    absent = torch.tensor([False, False])
    found = contrast_loss(wanted(), {"a": rows, "b": RIGHT}, {"a": absent, "b": absent})
    found.backward()
    assert found.item() == 0.0
    assert rows.grad is not None
    assert not rows.grad.any()
