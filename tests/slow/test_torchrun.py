"""drtk pretrain under torchrun: two processes make the encoder that one makes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.pretraining_setup import PretrainingFiles, write_corpus_with_gaps

pytestmark = pytest.mark.slow
# Dropout draws by process and part, so that it would differ; the models below have none.
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
STEPS = 5
SCHEDULE = [
    "--max-steps",
    str(STEPS),
    "--batch-size",
    "8",
    "--max-length",
    "24",
    "--learning-rate",
    "1e-3",
    "--set",
    "warmup=0",
    "--set",
    "log_steps=1",
]
# Adam makes a step of full size of any gradient, be it rounding alone; with this it does not.
SCHEDULE += ["--set", "trainer=adam_epsilon=1e-4"]
SCHEDULE += [
    "--set",
    "held_out=8",
    "--eval-steps",
    "5",
    "--set",
    "save_steps=2",
    "--export-steps",
    "3",
    "--device",
    "cpu",
]
# Token means, a contrast of cached gradients, a generator with a contrast through a batch norm, and one that is trained.
RUNS = {
    "mlm": ["--micro-batch-size", "3"],
    "cocondenser": ["--micro-batch-size", "2"],
    "master": [],
    "diffcse-sts-bert": ["--generator", "GENERATOR"],
    "simlm": ["--generator", "", "--set", "generator.mode=joint", "--set", "generator.slot=encoder"],
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> PretrainingFiles:
    made = PretrainingFiles.made(tmp_path_factory.mktemp("world"))
    for folder in (made.model, made.generator):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | QUIET))
    write_corpus_with_gaps(made.corpus, made.model, documents=30)
    return made


def run(world: PretrainingFiles, output: Path, preset: str, more: list[str], *, processes: int) -> None:
    start = [sys.executable, "-m"]
    if processes > 1:  # what the command torchrun is
        start += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    named = ["--preset", preset, "--model", str(world.model), "-o", str(output), *SCHEDULE, *more]
    done = subprocess.run(
        [*start, "drtk", "pretrain", str(world.corpus), *named],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def logged(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("preset", RUNS)
def test_two_processes_make_the_encoder_that_one_makes(preset: str, world: PretrainingFiles, tmp_path: Path) -> None:
    more = [str(world.generator) if each == "GENERATOR" else each for each in RUNS[preset]]
    run(world, tmp_path / "one", preset, more, processes=1)
    run(world, tmp_path / "two", preset, more, processes=2)
    apart = []
    for file in sorted((tmp_path / "one").rglob("*.safetensors")):
        mine, theirs = load_file(file), load_file(tmp_path / "two" / file.relative_to(tmp_path / "one"))
        assert mine.keys() == theirs.keys()
        apart += [float((mine[name].float() - theirs[name].float()).abs().max()) for name in mine]
    before = load_file(world.model / "model.safetensors")
    after = load_file(tmp_path / "one" / "model.safetensors")
    moved = max(float((after[name] - before[name]).abs().max()) for name in after if name in before)
    assert moved > 1e-3  # five steps of up to 1e-3, falling to 0
    # A rounding error of 3e-6 in a gradient, divided by 1e-4, at rates that add up to 3e-3, makes 1e-4.
    assert max(apart) < 1e-4
    one, two = logged(tmp_path / "one"), logged(tmp_path / "two")
    assert [row["step"] for row in two] == [row["step"] for row in one]
    for mine, theirs in zip(one, two, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert theirs[name] == pytest.approx(mine[name], rel=1e-4, abs=1e-5), (name, mine["step"])
    assert (tmp_path / "two" / "step-3" / "model.safetensors").exists()
    assert not (tmp_path / "two" / "checkpoints").exists()


def test_a_batch_that_two_processes_cannot_share_is_told_in_one_line(world: PretrainingFiles, tmp_path: Path) -> None:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "drtk"]
    named = ["pretrain", str(world.corpus), "--preset", "mlm", "--model", str(world.model), "-o", str(tmp_path / "m")]
    done = subprocess.run(
        [*start, *named, "--batch-size", "7", "--max-steps", "1", "--max-length", "24", "--device", "cpu"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode != 0
    assert "drtk: --batch-size 7 cannot be shared by 2 processes" in done.stderr
    assert not (tmp_path / "m").exists()
