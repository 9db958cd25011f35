"""Training a reranker with two processes equals training with one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.contract.run_drtk import make_environment
from tests.tiny_models import save_tiny_cross_encoder, write_collection


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    [["--negatives", "3", "--set", "r_drop=true", "--set", "backward=3", "--micro-batch-size", "2"], ["--loss", "bce"]],
)
def test_two_processes_train_as_one(tmp_path: Path, loss: list[str]) -> None:
    write_collection(tmp_path, 60)
    save_tiny_cross_encoder(tmp_path / "model", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    call = ["train-reranker", "examples.jsonl", "--corpus", "corpus.jsonl", "--queries", "queries.jsonl"]
    call += "--model model --batch-size 8 --max-steps 4 --set log_steps=1 --max-length 32 --set warmup=0".split()
    call += ["--learning-rate", "0.01", "--set", "trainer=optim=sgd", "--device", "cpu", "-q", *loss]
    for name, launcher in (("one", []), ("two", ["torch.distributed.run", "--nproc-per-node", "2", "-m"])):
        command = [sys.executable, "-m", *launcher, "drtk", *call, "-o", name]
        subprocess.run(command, cwd=tmp_path, env=make_environment(), check=True)
    one, two, start = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two", "model"))
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5
    assert max(float((one[name] - start[name]).abs().max()) for name in one) > 1e-4
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    assert losses[0] == pytest.approx(losses[1], abs=2e-5)
