"""Others who are told what a training log holds: TensorBoard's files, names that are refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from transformers.integrations import integration_utils

import drtk.training.arguments as reporting
from drtk.cli.main import app
from drtk.errors import DrtkError, MissingDependency
from drtk.runtime.progress import round_significant
from tests.pretraining import World


def pretrain(world: World, output: Path, *more: str) -> None:
    call = [
        "pretrain",
        str(world.corpus),
        "--preset",
        "simlm-mlm",
        "--model",
        str(world.model),
        "-o",
        str(output),
        "-q",
    ]
    schedule = ["--batch", "6", "--max-length", "24", "--log-every", "2", "--held-out", "6", "--eval-every", "3"]
    app([*call, *schedule, "--report-to", "tensorboard", *more], standalone_mode=False)


def in_the_log(folder: Path) -> set[tuple[str, int, float]]:
    """(name, step, value) of everything logged."""
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return {(name, row["step"], value) for row in rows for name, value in row.items() if name not in ("step", "epoch")}


class Written:
    """Stands for TensorBoard's writer, and remembers."""

    made: ClassVar[list[Written]] = []

    def __init__(self, folder: str, purge_step: int | None) -> None:
        self.folder, self.purge_step, self.told = folder, purge_step, set[tuple[str, int, float]]()
        self.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.told.add((name.removeprefix("train/"), step, value))

    def add_text(self, *given: Any) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Written]:
    monkeypatch.setattr(Written, "made", [])
    monkeypatch.setattr(integration_utils, "is_tensorboard_available", lambda: True)
    monkeypatch.setattr(reporting, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Written))
    return Written.made


def test_tensorboard_is_told_what_the_log_holds_measurements_too(world: World, tmp_path: Path, writers: list[Written]):
    pretrain(world, tmp_path / "m", "--steps", "6")
    (writer,) = writers
    assert (writer.folder, writer.purge_step) == (str(tmp_path / "m.part" / "tensorboard"), None)
    told = {entry for entry in writer.told if entry[0] not in SUMMARY}
    assert {name for name, _, _ in told} >= {
        "loss",
        "encoder",
        "decoder",
        "held_out_decoder",
        "gain_decoder",
    }
    rounded = {(name, step, round_significant(value)) for name, step, value in told if name != "epoch"}
    assert rounded == in_the_log(tmp_path / "m")


SUMMARY = {  # what the Trainer tells at the end, which is no entry of the log
    "train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos", "train_loss",
}  # fmt: skip


def test_resumed_training_takes_back_what_was_told_of_later_steps(
    world: World, tmp_path: Path, writers: list[Written], monkeypatch: pytest.MonkeyPatch
):
    from drtk.pretraining.trainer import Pretrainer

    real = Pretrainer.training_step

    def cut_off(self: Pretrainer, *given: Any, **named: Any) -> Any:
        if self.state.global_step == 5:
            raise DrtkError("cut off")
        return real(self, *given, **named)

    monkeypatch.setattr(Pretrainer, "training_step", cut_off)
    with pytest.raises(DrtkError, match="cut off"):
        pretrain(world, tmp_path / "m", "--steps", "6", "--checkpoint-every", "2")
    monkeypatch.setattr(Pretrainer, "training_step", real)
    pretrain(world, tmp_path / "m", "--steps", "6", "--checkpoint-every", "2", "--resume")
    assert [writer.purge_step for writer in writers] == [None, 5]  # it goes on after the checkpoint of step 4
    assert {step for _, step, _ in writers[1].told} == {6}


def test_nothing_is_begun_where_who_is_to_be_told_is_missing(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reporting, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="needs tensorboard"):
        pretrain(world, tmp_path / "m", "--steps", "1")
    assert not (tmp_path / "m").exists()


def test_real_files_of_tensorboard_hold_the_log(world: World, tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    pretrain(world, tmp_path / "m", "--steps", "4")
    events = EventAccumulator(str(tmp_path / "m" / "tensorboard")).Reload()
    found = {
        (name.removeprefix("train/"), event.step): event.value
        for name in events.Tags()["scalars"]
        for event in events.Scalars(name)
    }
    for name, step, value in in_the_log(tmp_path / "m"):
        assert found[name, step] == pytest.approx(value, rel=1e-5, abs=1e-7)
