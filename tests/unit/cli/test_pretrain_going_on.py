"""drtk pretrain after a failure: what is kept, what the message proposes, and that --resume takes it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError
from drtk.pretraining.trainer import Pretrainer
from drtk.runtime.atomic import write_json
from drtk.runtime.integrity import read_json
from drtk.runtime.manifest import UNFINISHED_MANIFEST
from drtk.training.best_checkpoint import complete_checkpoints
from tests.pretraining import World
from tests.unit.cli.test_pretrain_command import arguments, entries, pretrain

SCHEDULE = ["--steps", "8", "--checkpoint-every", "2", "--lr", "1e-3"]


def spoiled(step: int, spoil: Callable[[Pretrainer], None]) -> Callable[..., torch.Tensor]:
    """A training step that does something else before one step."""
    plain = Pretrainer.training_step

    def training_step(self: Pretrainer, *given: object, **named: object) -> torch.Tensor:
        if self.state.global_step + 1 == step:
            spoil(self)
        return plain(self, *given, **named)

    return training_step


def full(_: Pretrainer) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


def ruined(trainer: Pretrainer) -> None:
    """Weights as a wild update leaves them: finite, and the next loss is no number."""
    with torch.no_grad():
        trainer.model.backbone.encoder.layer[-1].output.LayerNorm.bias.fill_(3e38)


def kept(folder: Path) -> list[str]:
    return [path.name for path in complete_checkpoints(Path(f"{folder}.part") / "checkpoints")]


def broken(world: World, output: Path, monkeypatch: pytest.MonkeyPatch, step: int, spoil: Callable, *more: str) -> str:
    """What a run that fails at a step says."""
    with monkeypatch.context() as patch:
        patch.setattr(Pretrainer, "training_step", spoiled(step, spoil))
        with pytest.raises(DrtkError) as caught:
            pretrain(world, output, "mlm", *SCHEDULE, *more)
    assert "\n" not in str(caught.value)
    assert caught.value.status == 1
    assert not (output / "meta.json").exists()
    return str(caught.value)


def test_without_memory_the_message_names_what_to_lower_and_resume_takes_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    told = broken(world, tmp_path / "m", monkeypatch, 6, full)
    assert told == (
        "cpu: out of memory at step 6; a smaller --micro-batch (it is 6), --gradient-checkpointing or, begun anew, a "
        "shorter --max-length may help; --resume goes on from the checkpoint of step 4"
    )
    assert kept(tmp_path / "m") == ["checkpoint-4", "checkpoint-2"]
    more = ["--resume", "--micro-batch", "2", "--gradient-checkpointing", "--precision", "bfloat16"]
    app(arguments(world, tmp_path / "m", "mlm", *SCHEDULE, *more), standalone_mode=False)
    said = capsys.readouterr().err
    assert "going on after step 4 of 8" in said
    assert "precision bfloat16, which was auto" in said
    assert "gradient_checkpointing on, which was off" in said
    assert "micro_batch 2, which was not given" in said
    manifest = read_json(tmp_path / "m" / "meta.json")
    assert manifest["settings"]["micro_batch"] == 2
    (change,) = manifest["changes"]
    assert change["settings"] == {
        "precision": ["auto", "bfloat16"],
        "gradient_checkpointing": [False, True],
        "micro_batch": [None, 2],
    }
    assert [entry["step"] for entry in entries(tmp_path / "m")] == list(range(1, 9))


def test_checkpoints_made_without_token_types_are_rejected(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    titles = ["--set", "title=segment"]
    broken(world, tmp_path / "m", monkeypatch, 6, full, *titles)
    begun = tmp_path / "m.part" / UNFINISHED_MANIFEST
    content = read_json(begun)
    before = {name: value for name, value in content["settings"].items() if name != "title_types"}
    write_json(begun, content | {"settings": before})
    with pytest.raises(
        MismatchError, match=r"begun with other settings or files \(title_types\); `force` begins again"
    ):
        pretrain(world, tmp_path / "m", "mlm", *SCHEDULE, *titles, "--resume")
    assert kept(tmp_path / "m") == ["checkpoint-4", "checkpoint-2"]
    write_json(begun, content)
    pretrain(world, tmp_path / "m", "mlm", *SCHEDULE, *titles, "--resume")
    assert (tmp_path / "m" / "meta.json").exists()
    made = (tmp_path / "m" / "meta.json").stat()
    pretrain(world, tmp_path / "m", "mlm", *SCHEDULE, *titles, "--skip-done")
    assert (tmp_path / "m" / "meta.json").stat() == made


def test_a_kernel_out_of_memory_on_a_cpu_is_told_alike(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def unallocated(_: Pretrainer) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried")

    assert broken(world, tmp_path / "m", monkeypatch, 1, unallocated).endswith(
        "may help; --resume begins anew, for there is no checkpoint"
    )


def test_a_lower_rate_on_resume_is_the_rate_from_there_on(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    told = broken(world, tmp_path / "m", monkeypatch, 6, ruined)
    assert "is nan at step 6, on passages d" in told
    assert told.endswith("a lower --lr or --precision float32 may help; --resume goes on from the checkpoint of step 4")
    pretrain(world, tmp_path / "m", "mlm", *SCHEDULE, "--resume", "--lr", "1e-4", "--log-every", "1")
    # warm-up 0: after step s of 8 the rate of the next is (8 - s) / 8 of the highest; an entry has that of its own step
    rates = [entry["learning_rate"] for entry in entries(tmp_path / "m")]
    highest = [1e-3] * 4 + [1e-4] * 4
    assert rates == pytest.approx([rate * (8 - step) / 8 for step, rate in enumerate(highest)])
    assert read_json(tmp_path / "m" / "meta.json")["changes"][0]["settings"] == {"lr": [1e-3, 1e-4]}


def test_a_checkpoint_whose_next_step_fails_is_taken_away(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    told = broken(world, tmp_path / "m", monkeypatch, 7, ruined)
    assert told.endswith(
        "--resume goes on from the checkpoint of step 4 (that of step 6 is taken away: it gives this loss at once)"
    )
    assert kept(tmp_path / "m") == ["checkpoint-4"]
    pretrain(world, tmp_path / "m", "mlm", *SCHEDULE, "--resume", "--lr", "1e-4")
    assert [entry["step"] for entry in entries(tmp_path / "m")] == list(range(1, 9))


def test_weights_that_are_no_numbers_are_not_kept(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A gradient that is infinite makes the update, not the loss, no number: checkpoint 6 would hold it."""

    def burst(trainer: Pretrainer) -> None:
        weight = trainer.model.backbone.encoder.layer[0].output.LayerNorm.bias
        handle = weight.register_hook(lambda slope: (handle.remove(), slope * float("inf"))[1])

    told = broken(world, tmp_path / "m", monkeypatch, 6, burst)
    assert "is nan at step 7" in told
    assert told.endswith("--resume goes on from the checkpoint of step 4")
    assert "step 6: a weight is no number; no checkpoint is kept of it" in capsys.readouterr().err
    assert kept(tmp_path / "m") == ["checkpoint-4", "checkpoint-2"]
    told = broken(world, tmp_path / "n", monkeypatch, 8, burst)  # the last step
    assert told.startswith("a weight is no number after step 8; a lower --lr")
    assert not (tmp_path / "n" / "model.safetensors").exists()


def test_a_checkpoint_of_a_loss_that_exploded_is_not_kept(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Weights thrown far away give a loss of hundreds, where the first was about ln 400 = 6: finite, and of no use."""

    def thrown(trainer: Pretrainer) -> None:
        with torch.no_grad():
            trainer.model.head.norm.weight.mul_(1e5)

    with monkeypatch.context() as patch:
        patch.setattr(Pretrainer, "training_step", spoiled(8, full))
        patch.setattr(Pretrainer, "training_step", spoiled(5, thrown))
        with pytest.raises(DrtkError, match=r"out of memory at step 8; .*goes on from the checkpoint of step 4"):
            pretrain(world, tmp_path / "m", "mlm", *SCHEDULE)
    said = capsys.readouterr().err
    assert "step 6: the loss, " in said
    assert "of the first step; no checkpoint is kept of it, and a lower --lr may help" in said
    assert kept(tmp_path / "m") == ["checkpoint-4", "checkpoint-2"]


def test_what_else_differs_is_still_refused(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    broken(world, tmp_path / "m", monkeypatch, 6, full)
    for more in (["--batch", "3"], ["--warmup", "2"], ["--max-length", "20"], ["--seed", "3"]):
        with pytest.raises(MismatchError, match=rf"other settings or files \({more[0][2:].replace('-', '_')}\)"):
            pretrain(world, tmp_path / "m", "mlm", *SCHEDULE, "--resume", "--micro-batch", "2", *more)
    assert kept(tmp_path / "m") == ["checkpoint-4", "checkpoint-2"]


def test_the_status_is_1_and_one_line_is_said(world: World, tmp_path: Path):
    """As a shell sees it: a rate that ruins the weights in the first step."""
    more = ["--steps", "4", "--lr", "1e38", "--trainer", "max_grad_norm=0"]
    command = [sys.executable, "-m", "drtk", *arguments(world, tmp_path / "m", "mlm", *more)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].endswith("--resume begins anew, for there is no checkpoint")
    assert "Traceback" not in run.stderr
