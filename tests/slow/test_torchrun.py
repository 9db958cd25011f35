"""drtk pretrain under torchrun: two processes train the same encoder as one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.pretraining_setup import PretrainingFiles, create_files_without_dropout
from tests.run_commands import read_log

pytestmark = pytest.mark.slow
SCHEDULE = "--max-steps 5 --batch-size 8 --max-length 24 --learning-rate 1e-3 --set warmup=0 --set log_steps=1".split()
# By default Adam takes full-size steps even for gradients that are only rounding errors; a larger epsilon prevents that.
SCHEDULE += (
    "--set trainer=adam_epsilon=1e-4 --set held_out=8 --eval-steps 5 --set save_steps=2 --export-steps 3".split()
)
SCHEDULE += ["--device", "cpu"]
# Token means; contrastive loss with gradient caching; five decoders; contrastive loss with batch norm and a generator; a trained generator.
RUNS = {
    "mlm": ["--micro-batch-size", "3"],
    "cocondenser": ["--micro-batch-size", "2"],
    "master": [],
    "diffcse-sts-bert": ["--generator", "GENERATOR"],
    "simlm": ["--generator", "GENERATOR", "--set", "generator.mode=joint", "--set", "generator.slot=encoder"],
}
# Calls drtk with --gpus 2 on a machine that pretends to have two GPUs.
PROGRAM = "import sys, torch; torch.cuda.device_count = lambda: 2; sys.argv += ['--gpus', '2']; from drtk.__main__ import main; main()"
START_ON_TWO = [sys.executable, "-c", PROGRAM]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> PretrainingFiles:
    return create_files_without_dropout(tmp_path_factory.mktemp("world"))


def pretrain(inputs: PretrainingFiles, output: Path, preset: str, *more: str, processes: int) -> Any:
    """Run drtk pretrain; return the completed process."""
    start = [sys.executable, "-m", "drtk"] if processes == 1 else START_ON_TWO
    named = ["--preset", preset, "--model", str(inputs.model), "-o", str(output), *SCHEDULE, *more]
    command, environment = [*start, "pretrain", str(inputs.corpus), *named], os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("preset", RUNS)
def test_two_processes_train_the_same_encoder_as_one(preset, inputs, tmp_path):
    more = [str(inputs.generator) if word == "GENERATOR" else word for word in RUNS[preset]]
    for name, processes in (("one", 1), ("two", 2)):
        done = pretrain(inputs, tmp_path / name, preset, *more, processes=processes)
        assert done.returncode == 0, done.stderr[-3000:]
    max_differences = []
    for file in sorted((tmp_path / "one").rglob("*.safetensors")):
        ours, theirs = load_file(file), load_file(tmp_path / "two" / file.relative_to(tmp_path / "one"))
        assert ours.keys() == theirs.keys()
        max_differences += [float((ours[name].float() - theirs[name].float()).abs().max()) for name in ours]
    before = load_file(inputs.model / "model.safetensors")
    after = load_file(tmp_path / "one" / "model.safetensors")
    max_change = max(float((after[name] - before[name]).abs().max()) for name in after if name in before)
    assert max_change > 1e-3  # five steps of up to 1e-3, falling to 0
    # A rounding error of 3e-6 in a gradient, divided by 1e-4, at rates that add up to 3e-3, makes 1e-4.
    assert max(max_differences) < 1e-4
    one, two = read_log(tmp_path / "one"), read_log(tmp_path / "two")
    assert [row["step"] for row in two] == [row["step"] for row in one]
    for ours, theirs in zip(one, two, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            rel = 5e-3 if name == "grad_norm" else 1e-4  # batch norm over nearly equal views amplifies rounding errors
            assert theirs[name] == pytest.approx(ours[name], rel=rel, abs=1e-5), (name, ours["step"])
    assert (tmp_path / "two" / "step-3" / "model.safetensors").exists()
    assert not (tmp_path / "two" / "checkpoints").exists()


def test_a_batch_size_not_divisible_by_the_processes_is_a_one_line_error(inputs, tmp_path):
    done = pretrain(inputs, tmp_path / "m", "mlm", "--batch-size", "7", processes=2)
    assert done.returncode == 1
    assert "drtk: --batch-size 7: must be a multiple of the number of processes, 2" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "m").exists()
