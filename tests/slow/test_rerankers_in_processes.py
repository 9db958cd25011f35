"""Training a reranker or query reranker with two processes equals training with one."""

import subprocess
import sys

import pytest
from safetensors.torch import load_file

from drtk.runtime.integrity import read_json
from tests import expansion_collection, tiny_models
from tests.contract.run_drtk import make_environment
from tests.run_commands import read_log

pytestmark = pytest.mark.slow
RERANKER = "train-reranker examples.jsonl --corpus corpus.jsonl --max-steps 4 --set warmup=0 --learning-rate 0.01"
QUERIES = "rerank-queries train labeled.jsonl --max-steps 6 --set warmup=0 --set schedule=linear --set max_lr=0.01"
COMMON = "--queries queries.jsonl --model model --batch-size 8 --set log_steps=1 --max-length 32 --device cpu -q"
MEASURED = "--set variant=rd --set micro_batch_size=2 --dev labeled.jsonl --set dev_kind=title --set eval_steps=2"


@pytest.mark.parametrize(
    ("call", "more", "steps", "measurements"),
    [
        (RERANKER, "--negatives 3 --set r_drop=true --set backward=3 --micro-batch-size 2", 4, 0),
        (RERANKER, "--set loss=bce", 4, 0),
        (QUERIES, "", 6, 0),
        (QUERIES, MEASURED, 6, 3),
    ],
)
def test_two_processes_train_as_one(tmp_path, call, more, steps, measurements):
    if call == QUERIES:
        expansion_collection.label_expansions(expansion_collection.write_collection(tmp_path))
    else:
        tiny_models.write_collection(tmp_path, 60)
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    tiny_models.save_tiny_cross_encoder(tmp_path / "model", **no_dropout)
    words = [*call.split(), *COMMON.split(), *more.split(), "--set", "trainer=optim=sgd"]
    for name, launcher in (("one", []), ("two", ["torch.distributed.run", "--nproc-per-node", "2", "-m"])):
        command = [sys.executable, "-m", *launcher, "drtk", *words, "-o", name]
        subprocess.run(command, cwd=tmp_path, env=make_environment(), check=True)
    one, two, start = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two", "model"))
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5
    # The initial head of a query reranker is negated, because lower scores are better; so check the encoder for changes.
    assert max(float((one[name] - start[name]).abs().max()) for name in one if name.startswith("bert.")) > 1e-4
    logs = [read_log(tmp_path / name) for name in ("one", "two")]
    losses = [[entry["loss"] for entry in entries if "loss" in entry] for entries in logs]
    assert len(losses[0]) == steps
    assert losses[0] == pytest.approx(losses[1], abs=2e-5)
    ranks = [[entry["mean rank"] for entry in entries if "mean rank" in entry] for entries in logs]
    assert len(ranks[0]) == measurements
    assert ranks[0] == ranks[1]
    best = [read_json(tmp_path / name / "meta.json").get("best") for name in ("one", "two")]
    assert best[0] == best[1]
