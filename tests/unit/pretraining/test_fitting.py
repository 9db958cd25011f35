"""How many examples are in memory at once, where nobody says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from drtk.cli.main import app
from drtk.pretraining import cost_model as fitting
from drtk.pretraining.cost_model import (
    SLACK,
    USABLE,
    WORKSPACE,
    bytes_of_example,
    estimated,
    fitted,
    free_memory,
    largest_part,
)
from drtk.runtime.integrity import read_json
from tests.pretraining import Stage, World
from tests.running import torchrun
from tests.unit.cli.test_pretrain_command import arguments, entries, pretrain

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("share", "each", "room", "expected"),
    [
        (64, 10, 640, 64),  # all of it fits, to the byte
        (64, 10, 639, 32),  # 63 fit: two parts, of 32
        (64, 10, 210, 16),  # 21 fit: four parts
        (65, 10, 640, 33),  # 64 fit: 33 and 32
        (64, 10, 5, 1),  # none does: one is tried
        (64, 10, -5, 1),
        (1, 10, 5, 1),
    ],
)
def test_parts_are_few_and_alike(share: int, each: float, room: float, expected: int):
    assert largest_part(share, each=each, room=room) == expected


def sizes(stage: Stage, *, half: bool) -> tuple[float, float]:
    """Bytes of an example's activations, and of all that does not grow with the batch."""
    found = estimated(stage.material, stage.network, at_once=1)
    fixed = sum(size for name, size in found.memory.items() if name != "activations") + WORKSPACE
    return bytes_of_example(stage.material, stage.network, found, CPU, half=half), fixed


def test_an_example_takes_what_its_layers_keep_and_the_scores_of_attention(world: World):
    stage = world.stage("mlm")
    found = estimated(stage.material, stage.network, at_once=1)
    tokens = found.loads["passage"].tokens
    longest = max(len(slots.slots["passage"].given) for slots in stage.seen(*range(24)))
    # 4 layers of 16, 2 heads: 34 bytes a token, unit and layer; 5 a score and head in 4 layers, and 2 for what reads them
    plain = 34 * 16 * 4 * tokens + 5 * 2 * (4 + 2) * tokens**2
    each, _ = sizes(stage, half=True)
    assert each == pytest.approx(plain * SLACK * longest / tokens)
    assert sizes(stage, half=False)[0] == pytest.approx(2 * each)
    stage = world.stage("mlm", gradient_checkpointing=True)
    assert sizes(stage, half=True)[0] < each


def test_as_many_are_taken_as_the_free_memory_holds(world: World, monkeypatch: pytest.MonkeyPatch):
    stage = world.stage("mlm", batch=24)
    each, fixed = sizes(stage, half=False)
    said = []
    monkeypatch.setattr(fitting, "log", said.append)
    for count, expected in ((24, 24), (23.9, 12), (7.5, 6), (0.2, 1)):
        free = int((fixed + each * count) / USABLE["cpu"]) + 1
        monkeypatch.setattr(fitting, "free_memory", lambda device, free=free: free)
        assert fitted(stage.material, stage.network, CPU, share=24, half=False) == expected
    assert said[0].startswith("pretrain: all 24 examples of a step in memory at once: about ")
    assert said[1].startswith("pretrain: 12 of 24 examples of a step in memory at once: about ")
    assert said[1].endswith("; --micro-batch says otherwise")


def test_a_machine_that_tells_nothing_takes_all(world: World, monkeypatch: pytest.MonkeyPatch):
    stage = world.stage("mlm")
    monkeypatch.setattr(fitting, "free_memory", lambda device: None)
    assert fitted(stage.material, stage.network, CPU, share=6, half=False) == 6


def test_a_batch_that_cannot_be_cut_is_kept_and_too_large_a_one_is_told(world: World, monkeypatch: pytest.MonkeyPatch):
    stage = world.stage("simcse")
    told = []
    monkeypatch.setattr(fitting, "warn", told.append)
    assert fitted(stage.material, stage.network, CPU, share=6, half=False, whole=True) == 6
    assert not told
    monkeypatch.setattr(fitting, "free_memory", lambda device: 1000)
    assert fitted(stage.material, stage.network, CPU, share=6, half=False, whole=True) == 6
    assert told[0].startswith("pretrain: a projector needs all 6 examples of its batch in memory at once: about ")


def test_what_is_free_is_what_the_container_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert 1 << 20 < free_memory(CPU) < 1 << 50
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    assert fitting._of_container(tmp_path) == 450  # 1000 - 700 + 150
    (tmp_path / "memory.max").write_text("max\n")
    assert fitting._of_container(tmp_path) is None
    assert fitting._of_container(tmp_path / "nowhere") is None
    monkeypatch.setattr(fitting, "_of_machine", lambda: 9000)
    monkeypatch.setattr(fitting, "_of_container", lambda: 450)
    assert free_memory(CPU) == 450
    for name, value in torchrun(rank=0, processes=2).items():
        monkeypatch.setenv(name, value)
    assert free_memory(CPU) == 225


def test_a_run_that_is_cut_trains_as_one_told_to_and_goes_on_so(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(fitting, "largest_part", lambda share, **_: 2)
    schedule = ["--steps", "4", "--checkpoint-every", "2"]
    app(arguments(world, tmp_path / "cut", "qac-cocondenser", *schedule), standalone_mode=False)
    assert "2 of 6 examples of a step in memory at once" in capsys.readouterr().err
    assert read_json(tmp_path / "cut" / "meta.json")["micro_batch"] == 2
    pretrain(world, tmp_path / "told", "qac-cocondenser", *schedule, "--micro-batch", "2")
    assert entries(tmp_path / "cut") == entries(tmp_path / "told")
    app([*arguments(world, tmp_path / "dry", "mlm"), "--dry-run"], standalone_mode=False)
    assert "2 in memory at once" in capsys.readouterr().out


def test_a_resumed_run_is_cut_as_it_was(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stage = world.stage("mlm", batch=24)
    file = tmp_path / "checkpoints" / "micro_batch"

    def chosen(fits: int) -> int:
        monkeypatch.setattr(fitting, "largest_part", lambda share, **_: fits)
        return fitted(stage.material, stage.network, CPU, share=24, half=False, memory=file)

    assert chosen(8) == 8
    assert chosen(24) == 8  # more is free now, but dropout is drawn part by part
    assert chosen(6) == 6  # unless less is
    assert chosen(24) == 6
