"""Memory that is too small, in training and in scoring: the advice is one the command takes, and --resume where it can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertForSequenceClassification

from drtk.cli.main import app
from drtk.errors import DrtkError
from drtk.training.fit import DrtkTrainer
from tests.expansions import labelled, write_world
from tests.tiny import tiny_crossencoder, tiny_model, write_collection

TEXTS = ["--corpus", "corpus.jsonl", "--queries", "queries.jsonl", "--model", "model", "--device", "cpu"]
SCHEDULE = ["--steps", "4", "--save-every", "2", "--log-every", "1", "--warmup", "0"]
PAIRS = ["train-reranker", "examples.jsonl", *TEXTS, *SCHEDULE, "--batch", "8", "--max-length", "32"]
LISTS = ["train-reranker", "run", "--kind", "hlatr", "--vectors", "v", "--qrels", "qrels.tsv", "--device", "cpu"]


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


def full_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on training fails at this step as on a GPU that is full."""
    method = DrtkTrainer.training_step

    def failing(self: Any, *given: Any, **named: Any) -> Any:
        return full() if self.state.global_step + 1 == step else method(self, *given, **named)

    monkeypatch.setattr(DrtkTrainer, "training_step", failing)


def test_a_query_re_ranker_is_advised_fewer_questions_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = write_world(tmp_path)
    labelled(world)
    tiny_model(world / "model")
    call = ["rerank-queries", "train", str(world / "labelled.jsonl"), "--queries", str(world / "queries.jsonl")]
    call += ["--model", str(world / "model"), "--max-length", "24", "--device", "cpu", "--batch", "4", *SCHEDULE[:6]]
    full_at(3, monkeypatch)
    told = (
        r"at step 3; a smaller --micro-batch \(it is 4\), --gradient-checkpointing or, begun anew, fewer --candidates or a "
        "shorter --max-length may help; --resume goes on from the checkpoint of step 2$"
    )
    with pytest.raises(DrtkError, match=told):
        run(*call, "-o", str(tmp_path / "m"))


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
    option = "--scorer-batch-tokens" if name == "mine-negatives" else "--batch-tokens"
    with pytest.raises(DrtkError, match=rf"^cpu: out of memory at [0-9,]+ tokens of pairs; lower {option}$"):
        run(*CALLS[name], "-o", "out")
    if name == "score":
        monkeypatch.undo()
        monkeypatch.chdir(here)
        run(*CALLS[name], option, "64", "-o", "out", "--resume")  # what it has is gone on with
