"""TensorBoard output equals the log."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from transformers.integrations import integration_utils

from drtk.cli.main import app
from drtk.pretraining.trainer import Pretrainer
from drtk.runtime.progress import round_significant
from tests.pretraining_setup import PretrainingFiles
from tests.run_commands import cut_off_before_step


def pretrain(files: PretrainingFiles, output: Path, *more: str) -> None:
    call = f"pretrain {files.corpus} --preset simlm-mlm --model {files.model} -o {output} -q --eval-steps 3"
    call += " --max-steps 6 --batch-size 6 --max-length 24 --set log_steps=2 --set held_out=6 --set save_steps=2"
    app([*call.split(), "--set", "report_to=tensorboard", *more], standalone_mode=False)


def read_log(folder: Path) -> set[tuple[str, int, float]]:
    """Return (name, step, value) of all log entries."""
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return {(name, row["step"], value) for row in rows for name, value in row.items() if name not in ("step", "epoch")}


class RecordedWriter:
    """Fake TensorBoard writer that records its calls."""

    made: ClassVar[list[RecordedWriter]] = []

    def __init__(self, folder: str, purge_step: int | None) -> None:
        self.folder, self.purge_step, self.entries = folder, purge_step, set[tuple[str, int, float]]()
        self.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.entries.add((name.removeprefix("train/"), step, value))

    def ignore(self, *_: Any) -> None:
        pass

    add_text = flush = close = ignore


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[RecordedWriter]:
    monkeypatch.setattr(RecordedWriter, "made", [])
    monkeypatch.setattr(integration_utils, "is_tensorboard_available", lambda: True)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=RecordedWriter))
    return RecordedWriter.made


# logged by the Trainer at the end, not entries of the log
SUMMARY = {"train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos", "train_loss"}


def test_tensorboard_gets_the_log_also_after_a_resumption(
    files: PretrainingFiles, tmp_path: Path, writers: list[RecordedWriter]
):
    with cut_off_before_step(Pretrainer, 6):
        pretrain(files, tmp_path / "m")
    pretrain(files, tmp_path / "m", "--resume")
    assert [writer.folder for writer in writers] == [str(tmp_path / "m.part" / "tensorboard")] * 2
    assert [writer.purge_step for writer in writers] == [None, 5]  # it resumes after the checkpoint of step 4
    assert {step for _, step, _ in writers[1].entries} == {6}
    entries = {(name, step, value) for writer in writers for name, step, value in writer.entries if name not in SUMMARY}
    assert {name for name, _, _ in entries} >= {"loss", "encoder", "decoder", "held_out_decoder", "gain_decoder"}
    logged = {(name, step): value for name, step, value in entries}
    for step in (2, 4, 6):  # the loss and its terms are means over two steps
        assert logged["loss", step] == pytest.approx(logged["encoder", step] + logged["decoder", step], rel=1e-3)
    rounded = {(name, step, round_significant(value)) for name, step, value in entries if name != "epoch"}
    assert rounded == read_log(tmp_path / "m")
