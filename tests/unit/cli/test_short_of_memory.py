"""Memory that does not suffice in scoring: the advice is one the command takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertForSequenceClassification

from drtk.cli.main import app
from drtk.errors import DrtkError
from tests.tiny import tiny_crossencoder, write_collection

TEXTS = ["--corpus", "corpus.jsonl", "--queries", "queries.jsonl", "--model", "model", "--device", "cpu"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_collection(folder, 24)
    tiny_crossencoder(folder / "model")
    (folder / "run").write_text(
        "".join(f"q{q} Q0 d{(q + at) % 24} {at + 1} {9 - at} t\n" for q in range(24) for at in range(5))
    )
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"q{q}\td{q}\t1\n" for q in range(24)))
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for path in made.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


def run(*arguments: str) -> None:
    app([*arguments, "-q"], standalone_mode=False)


def full(*given: Any, **named: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has a total capacity")


SCORED = "--scorer model --ce-max 0.9 --corpus corpus.jsonl --queries queries.jsonl --floor 0 --device cpu"
CALLS = {
    "score": ["score", "examples.jsonl", *TEXTS],
    "rerank": ["rerank", "run", *TEXTS],
    "rerank with vectors": ["rerank", "run", *TEXTS, "--vectors", "v"],
    "mine-negatives": ["mine-negatives", "run", "--qrels", "qrels.tsv", *SCORED.split()],
}


@pytest.mark.parametrize("name", CALLS)
def test_scoring_names_the_option_that_takes_less_at_once(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(BertForSequenceClassification, "forward", full)
    field = "scorer_batch_tokens" if name == "mine-negatives" else "batch_tokens"
    with pytest.raises(DrtkError, match=rf"^cpu: out of memory at [0-9,]+ tokens of pairs; lower `{field}`$"):
        run(*CALLS[name], "-o", "out")
    if name == "score":
        monkeypatch.undo()
        monkeypatch.chdir(here)
        run(*CALLS[name], "--batch-tokens", "64", "-o", "out", "--resume")  # what it has is gone on with
