"""Several selections of one training: each with weights of its own, through a crash too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from drtk.training.best_checkpoint import Selection, Selections, folder_of

RANKS = {"a": [5.0, 3.0, 4.0, 2.0], "b": [1.0, 2.0, 6.0, 6.0]}  # of the measurements, which come every ten steps


class One(torch.nn.Module):
    """A model of one number: the step it was trained to."""

    def __init__(self) -> None:
        super().__init__()
        self.step = torch.nn.Parameter(torch.zeros(1))


def selections(model: One, folder: Path, *, patience: int | None = None) -> Selections:
    def look(name: str) -> Callable[[], dict[str, float]]:
        return lambda: {name: RANKS[name][round(model.step.item()) // 10 - 1]}

    return Selections(
        {
            name: Selection(
                model, look(name), folder_of(folder, name), by=name, every=10, patience=patience, lower=True
            )
            for name in RANKS
        }
    )


def to(step: int, model: One, found: Selections) -> dict[str, float]:
    with torch.no_grad():
        model.step.fill_(step)
    return found.measure(step)


def kept(model: One, found: Selections) -> dict[str, float]:
    saved: dict[str, float] = {}
    facts = found.conclude(model, lambda name: saved.update({name: model.step.item()}))
    assert {name: float(fact["step"]) for name, fact in facts.items()} == saved
    return saved


def test_each_keeps_the_weights_of_its_own_best_measurement(tmp_path: Path) -> None:
    model = One()
    found = selections(model, tmp_path / "checkpoints")
    assert [to(step, model, found) for step in (10, 20, 30)] == [
        {"a": 5.0, "b": 1.0},
        {"a": 3.0, "b": 2.0},
        {"a": 4.0, "b": 6.0},
    ]
    assert kept(model, found) == {"a": 20.0, "b": 10.0}


def test_what_came_after_a_checkpoint_is_forgotten_and_measured_again(tmp_path: Path) -> None:
    model, folder = One(), tmp_path / "checkpoints"
    found = selections(model, folder)
    to(10, model, found)
    checkpoint = folder / "checkpoint-10"
    checkpoint.mkdir()
    found.save(checkpoint)
    to(20, model, found)  # a: better, and lost with the crash
    model = One()
    again = selections(model, folder)
    again.restore(checkpoint)
    with torch.no_grad():
        model.step.fill_(10)
    assert kept(model, again) == {"a": 10.0, "b": 10.0}
    for step in (20, 30, 40):
        to(step, model, again)
    assert kept(model, again) == {"a": 40.0, "b": 10.0}
    again.restore(None)
    assert not [*folder.glob("best-*/*")]


def test_patience_ends_when_that_of_all_has(tmp_path: Path) -> None:
    model = One()
    found = selections(model, tmp_path, patience=1)
    ended = []
    for step in (10, 20, 30, 40):
        to(step, model, found)
        ended.append(found.enough)
    # without a better one at 20: b alone; at 30: both; at 40 a has a better one again
    assert ended == [False, False, True, False]
