"""Selection of the best weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from drtk.errors import DrtkError
from drtk.training.best_checkpoint import Selection


def test_a_measurement_that_equals_the_best_is_not_called_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr("drtk.training.best_checkpoint.say", told.append)
    values = iter([0.5, 0.5, 0.4])
    selection = Selection(nn.Linear(1, 1), lambda: {"nDCG": next(values)}, tmp_path, by="nDCG", every=1)
    for step in range(3):
        selection.measure(step)
    assert told == [
        "step 0: nDCG 0.5000, the best so far",
        "step 1: nDCG 0.5000; that of step 0 was as good",
        "step 2: nDCG 0.4000; that of step 0 was better",
    ]


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"step": "1", "value": 2.0, "since": 0}', '{"step": 1, "value": null}']
)
def test_a_malformed_best_evaluation_is_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "best.json").write_text(content)
    selection = Selection(nn.Linear(1, 1), dict, tmp_path / "run", by="nDCG", every=1)
    with pytest.raises(DrtkError, match=r"best\.json: is not the record of a best evaluation"):
        selection.restore(tmp_path)
