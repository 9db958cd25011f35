"""Properties of all objectives and targets. A new one needs an entry with a preset that uses it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from drtk.pretraining import OBJECTIVES, TARGETS
from drtk.pretraining.composition import Objective
from drtk.pretraining.dataset import Batch
from drtk.registry import load_attribute
from tests.pretraining_setup import PretrainingFiles, PretrainingSetup, compute_gradients

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
def world(tmp_path_factory: pytest.TempPathFactory) -> PretrainingFiles:
    return PretrainingFiles.create(tmp_path_factory.mktemp("objectives"))


def staged(world: PretrainingFiles, by: str, name: str) -> tuple[PretrainingSetup, Objective]:
    """Return a setup that uses the entry, and its first term."""
    preset, *changes = (KINDS if by == "use" else PREDICTED)[name]
    stage = world.prepare(preset, *changes).randomize_weights()
    found = [each for each in stage.network.composition.objectives if getattr(each, by, "") == name]
    return stage, found[0]


def without(batch: Batch, rows: list[int]) -> Batch:
    """Return the batch with some examples marked as absent."""
    there = torch.ones(len(next(iter(batch.values())).present), dtype=torch.bool)
    there[rows] = False
    return {name: replace(slot, present=slot.present & there) for name, slot in batch.items()}


def chosen(batch: Batch, rows: list[int]) -> Batch:
    """Return some rows of the batch, in that order."""
    return {name: slot.map(lambda each: each[rows]) for name, slot in batch.items()}


@pytest.mark.parametrize(("by", "name"), CASES)
def test_terms_are_finite_and_depend_on_present_examples_only(by: str, name: str, world: PretrainingFiles) -> None:
    stage, wanted = staged(world, by, name)
    batch = stage.batch()
    loss = stage.terms(batch)[wanted.name]
    assert loss.shape == ()
    assert 0 < loss.item() < math.inf
    found = compute_gradients(stage, loss)
    assert all(bool(torch.isfinite(slope).all()) for slope in found.values())
    assert any(bool(slope.any()) for path, slope in found.items() if path.startswith("backbone.encoder.layer.0."))
    with torch.no_grad():
        turned = stage.terms(chosen(batch, [5, 4, 3, 2, 1, 0]))[wanted.name].item()
        gapped = stage.terms(without(batch, [1, 4]))[wanted.name].item()
        fewer = stage.terms(chosen(batch, [0, 2, 3, 5]))[wanted.name].item()
    assert turned == pytest.approx(loss.item(), rel=3e-5, abs=3e-5)
    assert gapped == pytest.approx(fewer, rel=3e-5, abs=3e-5)
    assert abs(gapped - loss.item()) > 1e-3
    nobody = stage.terms(without(batch, [0, 1, 2, 3, 4, 5]))[wanted.name]
    assert nobody.item() == 0
    assert nobody.requires_grad  # so that no process waits for another's gradients


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objectives_name_their_implementation(name: str) -> None:
    kind = OBJECTIVES.load(name)
    assert issubclass(kind, Objective)
    assert callable(load_attribute(kind.implementation))
