"""Properties of all objectives and targets. A new one needs an entry with a preset that uses it."""

import math
from dataclasses import replace

import pytest
import torch

from drtk.pretraining import OBJECTIVES, TARGETS
from drtk.pretraining.composition import Objective
from drtk.pretraining.dataset import Batch
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
def files(tmp_path_factory: pytest.TempPathFactory) -> PretrainingFiles:
    return PretrainingFiles.create(tmp_path_factory.mktemp("objectives"))


def prepare(files: PretrainingFiles, by: str, name: str) -> tuple[PretrainingSetup, Objective]:
    """Return a training setup that uses the registry entry, and the name of its first loss term."""
    preset, *changes = (KINDS if by == "use" else PREDICTED)[name]
    setup = files.prepare(preset, *changes).randomize_weights()
    objectives = [objective for objective in setup.network.composition.objectives if getattr(objective, by, "") == name]
    return setup, objectives[0]


def drop_examples(batch: Batch, rows: list[int]) -> Batch:
    """Return the batch with some examples marked as absent."""
    present = torch.ones(len(next(iter(batch.values())).present), dtype=torch.bool)
    present[rows] = False
    return {name: replace(slot, present=slot.present & present) for name, slot in batch.items()}


def select_rows(batch: Batch, rows: list[int]) -> Batch:
    """Return some rows of the batch, in that order."""
    return {
        name: replace(slot, **{field: tensor[rows] for field, tensor in vars(slot).items() if tensor is not None})
        for name, slot in batch.items()
    }


@pytest.mark.parametrize(("by", "name"), CASES)
def test_terms_are_finite_and_depend_on_present_examples_only(by, name, files):
    setup, objective = prepare(files, by, name)
    batch = setup.batch()
    loss = setup.terms(batch)[objective.name]
    assert loss.shape == ()
    assert 0 < loss.item() < math.inf
    gradients = compute_gradients(setup, loss)
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients.values())
    assert any(
        bool(gradient.any()) for path, gradient in gradients.items() if path.startswith("backbone.encoder.layer.0.")
    )
    with torch.no_grad():
        reversed_rows = setup.terms(select_rows(batch, [5, 4, 3, 2, 1, 0]))[objective.name].item()
        with_absent = setup.terms(drop_examples(batch, [1, 4]))[objective.name].item()
        without_them = setup.terms(select_rows(batch, [0, 2, 3, 5]))[objective.name].item()
    assert reversed_rows == pytest.approx(loss.item(), rel=3e-5, abs=3e-5)
    assert with_absent == pytest.approx(without_them, rel=3e-5, abs=3e-5)
    assert abs(with_absent - loss.item()) > 1e-3
    empty = setup.terms(drop_examples(batch, [0, 1, 2, 3, 4, 5]))[objective.name]
    assert empty.item() == 0
    assert empty.requires_grad  # so that no process waits for another's gradients
