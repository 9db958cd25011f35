"""drtk train-retriever as users run it: a kill and a resumption, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.io.manifest import read_json
from tests.tiny import tiny_model, write_collection

QUICK = ["--batch", "8", "--negatives", "2", "--lr", "1e-3", "--temperature", "0.1"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    write_collection(folder, 60)
    tiny_model(folder / "model")
    return folder


def arguments(place: Path, output: Path, *more: str, examples: str = "examples.jsonl") -> list[str]:
    named = ["--corpus", str(place / "corpus.jsonl"), "--queries", str(place / "queries.jsonl")]
    named += ["--model", str(place / "model"), "-o", str(output), *QUICK, *more]
    return ["train-retriever", str(place / examples), *named]


def train(place: Path, output: Path, *more: str, examples: str = "examples.jsonl") -> None:
    app([*arguments(place, output, *more, examples=examples), "-q"], standalone_mode=False)


def entries(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_killed_training_resumes_to_the_weights_of_an_uninterrupted_one(place: Path, tmp_path: Path):
    schedule = ["--steps", "120", "--log-every", "5", "--save-every", "20"]
    output = tmp_path / "killed"
    command = [sys.executable, "-m", "drtk", *arguments(place, output, *schedule)]
    running = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 180
        while not (output / "checkpoints" / "checkpoint-40" / "complete").exists():
            assert running.poll() is None, "ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.001)
        os.kill(running.pid, signal.SIGKILL)
    finally:
        running.kill()
        running.wait()
    assert not (output / "meta.json").exists()
    with pytest.raises(MismatchError, match=r"other settings .*\(temperature\)"):
        train(place, output, *schedule, "--resume", "--temperature", "0.2", "--lr", "2e-3")
    with open(output / "log.jsonl", "a") as log:
        log.write('{"step": 11')  # as a crash in the midst of writing would leave it
    train(place, output, *schedule, "--resume")
    train(place, tmp_path / "whole", *schedule)
    mine, theirs = (load_file(folder / "model.safetensors") for folder in (output, tmp_path / "whole"))
    assert mine.keys() == theirs.keys()
    assert all(bool((mine[name] == theirs[name]).all()) for name in mine)
    assert entries(output) == entries(tmp_path / "whole")
    assert [entry["step"] for entry in entries(output)] == list(range(5, 121, 5))
    assert entries(output)[-1]["epoch"] == pytest.approx(120 / 7, abs=1e-3)  # 60 // 8 = 7 steps an epoch
    assert not (output / "checkpoints").exists()


def test_the_folder_says_how_to_encode_and_holds_no_pickle(place: Path, tmp_path: Path):
    more = ("--steps", "3", "--query-length", "12", "--passage-length", "30", "--title", "none", "--similarity", "dot")
    train(place, tmp_path / "m", *more, "--passage-prompt", "castled ")
    manifest = read_json(tmp_path / "m" / "meta.json")
    encoding = manifest["encoding"]
    assert (manifest["kind"], manifest["counts"]["steps"]) == ("model", 3)
    assert (encoding["query_length"], encoding["passage_length"], encoding["title"]) == (12, 30, "none")
    assert (encoding["similarity"], encoding["passage_prompt"], encoding["pooling"]) == ("dot", "castled ", ["mean"])
    suffixes = {path.suffix for path in (tmp_path / "m").rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".jsonl", ".safetensors"}
    assert [entry["step"] for entry in entries(tmp_path / "m")] == [3]  # the last entry may be of fewer steps


def test_untied_encoders_part(place: Path, tmp_path: Path):
    train(place, tmp_path / "m", "--steps", "4", "--untied")
    query, passage = (load_file(tmp_path / "m" / role / "model.safetensors") for role in ("query", "passage"))
    assert any(bool((query[name] != passage[name]).any()) for name in query)
    assert read_json(tmp_path / "m" / "meta.json")["towers"] == ["passage", "query"]


@pytest.mark.parametrize("more", [["--gradient-checkpointing"], ["--precision", "bfloat16"], ["--negatives", "0"]])
def test_variants_train(place: Path, tmp_path: Path, more: list[str]):
    train(place, tmp_path / "m", "--steps", "12", "--log-every", "2", "--mask-duplicate-positives", *more)
    losses = [entry["loss"] for entry in entries(tmp_path / "m")]
    assert losses[-1] < losses[0]


def test_gradient_checkpointing_changes_no_weight(place: Path, tmp_path: Path):
    train(place, tmp_path / "a", "--steps", "3")
    train(place, tmp_path / "b", "--steps", "3", "--gradient-checkpointing")
    mine, theirs = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert max(float((mine[name] - theirs[name]).abs().max()) for name in mine) < 1e-5


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"query_id": "q99", "positives": ["d1"], "negatives": ["d2"]}, "the queries have no 'q99'"),
        ({"query_id": "q1", "positives": ["d99"], "negatives": ["d2"]}, "the corpus has no 'd99'"),
        ({"query_id": "q1", "positives": ["d1"], "negatives": []}, "has no negatives; --negatives 0"),
        ({"query_id": "q1", "positives": [], "negatives": ["d2"]}, "bad.jsonl:9: 'positives' is empty"),
    ],
)
def test_examples_that_lead_nowhere_are_named(place: Path, tmp_path: Path, row: dict, told: str):
    good = (place / "examples.jsonl").read_text().splitlines()[:8]
    (place / "bad.jsonl").write_text("\n".join([*good, json.dumps(row)]) + "\n")
    with pytest.raises(DrtkError, match=told) as fault:
        train(place, tmp_path / "m", examples="bad.jsonl")
    assert "bad.jsonl" in str(fault.value)
    assert "\n" not in str(fault.value)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--loss", "hinge"], "unknown retriever loss 'hinge'; choose from infonce"),
        (["--trainer", "max_steps=3"], "max_steps: use --steps"),
        (["--preset", "nothing"], "unknown preset 'nothing'"),
        (["--temperature", "0"], "--temperature: must be at least"),
    ],
)
def test_what_cannot_be_meant_is_refused(place: Path, tmp_path: Path, more: list[str], told: str):
    with pytest.raises(UsageError, match=told):
        train(place, tmp_path / "m", *more)


def test_a_loss_that_is_no_number_ends_training(place: Path, tmp_path: Path):
    with pytest.raises(DrtkError, match=r"the loss is nan at step \d+; a lower --lr"):
        train(place, tmp_path / "m", "--steps", "20", "--lr", "1e38", "--warmup", "0", "--trainer", "max_grad_norm=0")
    assert not (tmp_path / "m" / "meta.json").exists()


def test_a_training_that_ran_out_of_memory_goes_on_with_what_the_message_names(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from drtk.training.trainer import DrtkTrainer

    schedule = ["--steps", "6", "--log-every", "1", "--save-every", "2"]
    with monkeypatch.context() as patch:
        patch.setattr(DrtkTrainer, "training_step", short_of_memory_at(5, DrtkTrainer.training_step))
        told = r"cpu: out of memory at step 5; --gradient-checkpointing, .* may help; --resume goes on from .* step 4"
        with pytest.raises(DrtkError, match=told):
            train(place, tmp_path / "m", *schedule)
    app([*arguments(place, tmp_path / "m", *schedule, "--resume"), "--gradient-checkpointing"], standalone_mode=False)
    assert "going on with other settings: gradient_checkpointing on, which was off" in capsys.readouterr().err
    assert [entry["step"] for entry in entries(tmp_path / "m")] == [1, 2, 3, 4, 5, 6]
    assert read_json(tmp_path / "m" / "meta.json")["changes"][0]["settings"] == {
        "gradient_checkpointing": [False, True]
    }


def short_of_memory_at(step: int, method):
    """A training step that fails at one step as a GPU that is full does."""

    def failing(self, *given, **named):
        if self.state.global_step + 1 == step:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return method(self, *given, **named)

    return failing


def test_too_few_examples_for_a_batch(place: Path, tmp_path: Path):
    with pytest.raises(DrtkError, match="60 examples do not fill one batch; --batch 60"):
        train(place, tmp_path / "m", "--batch", "64")
