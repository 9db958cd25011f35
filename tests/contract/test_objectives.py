"""What every objective and every target promises: losses that are numbers, a gradient in the encoder, no order, no gaps.

A new one owes a line: the preset that has it, and the changes that put it there.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from drtk.pretraining import OBJECTIVES, TARGETS
from drtk.pretraining.batch import Batch
from drtk.pretraining.composition import Objective
from drtk.registry import load_attribute
from tests.pretraining import Stage, World, gradients

WORDS = ("objective.difference.classes=1", "objective.difference.reduction=mean")
KINDS = {"recover": ("mlm",), "contrast": ("crop",)}
PREDICTED = {
    "masked": ("mlm",),
    "all": ("simlm",),
    "edited": ("simlm-rtd",),
    "corrected": ("diffcse-sts-bert", "objective.difference.target=corrected", *WORDS),
}
CASES = [("use", name) for name in OBJECTIVES] + [("target", name) for name in TARGETS]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World.made(tmp_path_factory.mktemp("objectives"))


def staged(world: World, by: str, name: str) -> tuple[Stage, Objective]:
    """An example of the entry put together, and the first of its terms that has it."""
    preset, *changes = (KINDS if by == "use" else PREDICTED)[name]
    stage = world.stage(preset, *changes).redrawn()
    found = [each for each in stage.network.composition.objectives if getattr(each, by, "") == name]
    return stage, found[0]


def without(batch: Batch, rows: list[int]) -> Batch:
    """The batch with examples that are not there."""
    there = torch.ones(len(next(iter(batch.values())).present), dtype=torch.bool)
    there[rows] = False
    return {name: replace(slot, present=slot.present & there) for name, slot in batch.items()}


def chosen(batch: Batch, rows: list[int]) -> Batch:
    """Some rows of the batch, in that order."""

    def of(value: Tensor | None) -> Tensor | None:
        return None if value is None else value[rows]

    return {name: type(slot)(**{key: of(value) for key, value in vars(slot).items()}) for name, slot in batch.items()}


@pytest.mark.parametrize(("by", "name"), CASES)
def test_a_term_is_a_number_and_moves_the_encoder(by: str, name: str, world: World) -> None:
    stage, wanted = staged(world, by, name)
    loss = stage.terms(stage.batch())[wanted.name]
    assert loss.shape == ()
    assert math.isfinite(loss.item())
    assert loss.item() > 0
    found = gradients(stage, loss)
    first = [slope for path, slope in found.items() if path.startswith("backbone.encoder.layer.0.")]
    assert all(bool(torch.isfinite(slope).all()) for slope in found.values())
    assert any(bool(slope.any()) for slope in first)


@pytest.mark.parametrize(("by", "name"), CASES)
def test_a_term_knows_no_order_and_leaves_out_what_is_not_there(by: str, name: str, world: World) -> None:
    stage, wanted = staged(world, by, name)
    batch = stage.batch()
    with torch.no_grad():
        whole = stage.terms(batch)[wanted.name].item()
        turned = stage.terms(chosen(batch, [5, 4, 3, 2, 1, 0]))[wanted.name].item()
        gapped = stage.terms(without(batch, [1, 4]))[wanted.name].item()
        fewer = stage.terms(chosen(batch, [0, 2, 3, 5]))[wanted.name].item()
    assert turned == pytest.approx(whole, rel=3e-5, abs=3e-5)
    assert gapped == pytest.approx(fewer, rel=3e-5, abs=3e-5)
    assert abs(gapped - whole) > 1e-3


@pytest.mark.parametrize(("by", "name"), CASES)
def test_where_nobody_is_there_the_loss_is_0_and_no_process_waits(by: str, name: str, world: World) -> None:
    stage, wanted = staged(world, by, name)
    loss = stage.terms(without(stage.batch(), [0, 1, 2, 3, 4, 5]))[wanted.name]
    assert loss.item() == 0
    assert loss.requires_grad


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_kind_of_objective_says_what_computes_it(name: str) -> None:
    kind = OBJECTIVES.load(name)
    assert issubclass(kind, Objective)
    assert callable(load_attribute(kind.computed_by))
