"""Known answers of losses in log.jsonl: a head of zeros gives all candidates the same score."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from drtk.cli.main import app
from tests.expansion_collection import write_rows
from tests.tiny_models import save_tiny_cross_encoder, write_collection


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write training examples, eight questions whose candidates have the same ranks, and a model of zeros."""
    folder = tmp_path_factory.mktemp("first")
    write_collection(folder, 40)
    candidates = [
        {"_id": f"q{n}#{at}", "query_id": f"q{n}", "kind": "answer", "text": f"text {at}", "rank": rank, "top1": TOP1}
        for n in range(8)
        for at, rank in enumerate([1, 15, 101, 101])
    ]
    write_rows(folder / "labeled.jsonl", candidates)
    weights = save_tiny_cross_encoder(folder / "zero") / "model.safetensors"
    tensors = load_file(weights)
    for name in ("classifier.weight", "classifier.bias"):
        tensors[name].zero_()
    save_file(tensors, weights, metadata={"format": "pt"})
    return folder


TOP1 = {"title": "A title", "text": "and a passage"}


def first_loss(data: Path, output: Path, command: str, source: str, *more: str) -> float:
    """Return the logged loss of the first step, computed with the initial weights."""
    named = ["--queries", str(data / "queries.jsonl"), "--model", str(data / "zero"), "--max-length", "24"]
    once = ["--batch-size", "8", "--max-steps", "1", "--set", "log_steps=1", "--device", "cpu", "-o", str(output), "-q"]
    app([*command.split(), str(data / source), *named, *once, *more], standalone_mode=False)
    return float(json.loads((output / "log.jsonl").read_text().splitlines()[0])["loss"])


@pytest.mark.parametrize("preset", [(), ("--preset", "ear-ri"), ("--preset", "ear-rd")], ids=lambda each: "".join(each))
@pytest.mark.parametrize(
    ("more", "loss"),
    [
        # Margins, .01 a rank: 1-15 .14, 1-101 1.00 twice, 15-101 .86 twice, 101-101 none. Neighbors: (.14 + .86) / 2
        # without the tie; two apart: (1.00 + .86) / 2; three apart: 1.00. (.50 + .93 + 1.00) / 3
        ((), 0.81),
        # With the tie, neighbors are three: (.14 + .86 + 0) / 3. (.333333 + .93 + 1.00) / 3
        (("--set", "skip_ties=false"), 0.754444),
        # .14 + 1.00 + 1.00 + .86 + .86
        (("--set", "pair_weight=sum"), 3.86),
    ],
)
def test_a_query_re_ranker_begins_with_the_losses_of_methods_7_5(
    data: Path, tmp_path: Path, preset: tuple[str, ...], more: tuple[str, ...], loss: float
) -> None:
    actual = first_loss(data, tmp_path / "m", "rerank-queries train", "labeled.jsonl", *preset, *more)
    assert actual == pytest.approx(loss, abs=2e-6)


@pytest.mark.parametrize("more", [("--loss", "bce"), ("--preset", "bert-passage-reranker")])
def test_a_passage_re_ranker_that_tells_right_from_wrong_begins_at_ln_2(
    data: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    # Each pair is right with probability 1/2, whatever it is.
    corpus = ["--corpus", str(data / "corpus.jsonl")]
    actual = first_loss(data, tmp_path / "m", "train-reranker", "examples.jsonl", *corpus, *more)
    assert actual == pytest.approx(math.log(2), abs=2e-6)
