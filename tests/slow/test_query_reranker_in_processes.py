"""Training a query reranker with two processes equals training with one, and keeps the same checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from drtk.runtime.integrity import read_json
from tests.contract.run_drtk import make_environment
from tests.expansion_collection import label_expansions, write_collection
from tests.tiny_models import save_tiny_cross_encoder


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        [],
        [
            *("--set", "variant=rd", "--set", "micro_batch_size=2", "--dev", "labeled.jsonl"),
            *("--set", "dev_kind=title", "--set", "eval_steps=2"),
        ],
    ],
    ids=["ri", "rd measured"],
)
def test_two_processes_equal_one_for_a_query_reranker(tmp_path: Path, more: list[str]) -> None:
    label_expansions(write_collection(tmp_path))
    save_tiny_cross_encoder(tmp_path / "model", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    call = ["rerank-queries", "train", "labeled.jsonl", "--queries", "queries.jsonl", "--model", "model"]
    call += [
        "--batch-size",
        "8",
        "--max-steps",
        "6",
        "--set",
        "log_steps=1",
        "--max-length",
        "32",
        "--device",
        "cpu",
        "-q",
        *more,
    ]
    call += ["--set", "schedule=linear", "--set", "max_lr=0.01", "--set", "warmup=0", "--set", "trainer=optim=sgd"]
    for name, launcher in (("one", []), ("two", ["torch.distributed.run", "--nproc-per-node", "2", "-m"])):
        command = [sys.executable, "-m", *launcher, "drtk", *call, "-o", name]
        subprocess.run(command, cwd=tmp_path, env=make_environment(), check=True)
    one, two, start = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two", "model"))
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5
    # The initial head is negated, because lower scores are better; so check the encoder for changes.
    assert max(float((one[name] - start[name]).abs().max()) for name in one if name.startswith("bert.")) > 1e-4
    logs = [
        [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    losses = [[entry["loss"] for entry in entries if "loss" in entry] for entries in logs]
    assert len(losses[0]) == 6
    assert losses[0] == pytest.approx(losses[1], abs=2e-5)
    ranks = [[entry["mean rank"] for entry in entries if "mean rank" in entry] for entries in logs]
    assert len(ranks[0]) == (3 if more else 0)
    assert ranks[0] == ranks[1]
    best = [read_json(tmp_path / name / "meta.json")["best"] for name in ("one", "two")]
    assert best[0] == best[1]
