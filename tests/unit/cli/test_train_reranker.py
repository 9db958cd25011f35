"""drtk train-reranker: trained models, the model folder, variants, and rejected options. See also test_training.py."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError
from drtk.runtime.integrity import read_json
from tests.expansion_collection import read_rows, write_rows
from tests.run_commands import read_log, run_command
from tests.tiny_models import compute_max_difference, load_weights, make_collection


def train(data: Path, output: Path, more: str, *, examples: str | Path = "examples.jsonl") -> dict[str, Any]:
    call = ["train-reranker", str(data / examples), "--corpus", f"{data}/corpus.jsonl", "-o", str(output), "-q"]
    call += ["--queries", f"{data}/queries.jsonl", "--model", f"{data}/crossencoder", "--device", "cpu"]
    call += ["--batch-size", "8", "--learning-rate", "1e-3", "--max-length", "32", *more.format(data).split()]
    app(call if "bce" in more else [*call[:2], "--negatives", "3", *call[2:]], standalone_mode=False)
    return load_weights(output)


def rerank(data: Path, run: str, folder: Path) -> None:
    """Rerank a run with the model `folder`/m into the file `folder`/out."""
    call = f"rerank {run} --model {folder}/m --corpus {data}/corpus.jsonl --queries {data}/queries.jsonl -q"
    app([*call.split(), "-o", str(folder / "out")], standalone_mode=False)


def test_an_encoder_learns_to_rerank_and_worse_weights_are_not_kept(data, tmp_path, capfd):
    dev = " --dev {0}/dev --dev-run {0}/run --set dev_queries=60"
    encoder = f"--model {data}/encoder --max-steps 100 --learning-rate 4e-3 --set log_steps=20 --set eval_steps=50"
    learned = train(data, tmp_path / "m", encoder + dev)
    log = read_log(tmp_path / "m")
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert losses[0] == pytest.approx(1.386, abs=0.01)  # ln 4: nothing is known of four passages
    assert losses[-1] < 1.2
    best = read_json(tmp_path / "m" / "meta.json")["best"]
    rerank(data, f"{data}/run", tmp_path)
    shown = run_command(capfd, "eval", tmp_path / "out", "--qrels", data / "qrels.tsv", "--measures", "RR@10")
    assert f"{best['RR@10']:.4f}" in shown  # the kept weights score what was evaluated
    worse = f"--model {tmp_path}/m --max-steps 2 --learning-rate 0.5 --set eval_steps=1"
    kept = train(data, tmp_path / "worse", worse + dev)
    assert read_json(tmp_path / "worse" / "meta.json")["best"]["step"] == 0
    assert compute_max_difference(kept, learned) == 0


def test_micro_batches_take_the_same_steps(data, tmp_path):
    # Without dropout the mean of two halves is the mean of the whole.
    shutil.copytree(data / "crossencoder", tmp_path / "dry")
    config = read_json(tmp_path / "dry" / "config.json")
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (tmp_path / "dry" / "config.json").write_text(json.dumps(config))
    # Plain gradient descent: Adam would turn a difference by rounding into a full step.
    more = f"--max-steps 2 --learning-rate 0.01 --model {tmp_path}/dry --set warmup=0 --set trainer=optim=sgd"
    whole = train(data, tmp_path / "whole", more)
    assert compute_max_difference(whole, train(data, tmp_path / "parts", more + " --micro-batch-size 2")) < 2e-5
    assert compute_max_difference(whole, load_weights(tmp_path / "dry")) > 1e-4


def test_the_folder_loads_in_sentence_transformers_with_equal_scores(data, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    train(data, tmp_path / "m", "--max-steps 2")
    meta = read_json(tmp_path / "m" / "meta.json")
    assert (meta["kind"], meta["pairing"]) == ("model", {"title": "colon", "max_length": 32})
    passages, queries, _ = make_collection(60)
    texts = [f"{passage['title']}: {passage['text']}" for passage in reversed(passages)]
    pairs = [(query["text"], text) for query, text in zip(queries, texts, strict=True)]
    theirs = library.CrossEncoder(str(tmp_path / "m"), device="cpu").predict(pairs, batch_size=7)
    run = tmp_path / "run"
    run.write_text("".join(f"q{at} Q0 d{59 - at} 1 1.0 t\n" for at in range(60)))
    rerank(data, str(run), tmp_path)
    mine = [float(line.split()[4]) for line in (tmp_path / "out").read_text().splitlines()]
    np.testing.assert_allclose(mine, theirs, atol=5e-5)


def test_pointwise_training_and_the_first_positive(data, tmp_path):
    train(data, tmp_path / "m", "--set loss=bce --batch-size 80 --epochs 1")
    # 60 examples of a positive and three negatives: 240 pairs, 3 steps of 80
    assert read_json(tmp_path / "m" / "meta.json")["counts"]["steps"] == 3
    rows = [row | {"positives": [*row["positives"], "d999"]} for row in read_rows(data / "examples.jsonl")]
    two = write_rows(tmp_path / "two.jsonl", rows)  # the corpus lacks the second positives
    with pytest.raises(MismatchError, match=r"two\.jsonl:1: the corpus has no 'd999'"):
        train(data, tmp_path / "n", "--max-steps 1", examples=two)
    train(data, tmp_path / "n", "--max-steps 1 --set first_positive=true", examples=two)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("x1 Q0 d1 1 1.0 t\n", r"other\.run: no query has a judgment"),
        ("q1 Q0 d99 1 1.0 t\n", r"corpus\.jsonl: passage 'd99' of `dev_run` is missing"),
        ("q1 Q0 d99 1 3 t\nq1 Q0 d1 2 2 t\nq1 Q0 d98 3 1 t\n", "passage 'd99' of `dev_run` is missing; 2 of 3 are mis"),
    ],
)
def test_a_dev_run_of_other_queries_or_passages_is_rejected(data, tmp_path, run, message):
    (tmp_path / "other.run").write_text(run)
    with pytest.raises(DrtkError, match=message):
        train(data, tmp_path / "m", f"--dev {data}/dev --dev-run {tmp_path}/other.run")
