"""Every shipped preset of pre-training, through the command, on a corpus that has what it needs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from drtk.config import load_preset, preset_names
from tests.enriched import enriched_corpus
from tests.families import saved_masked_lm
from tests.running import command
from tests.tiny import tiny_model

PRESETS = [name for name in preset_names() if load_preset(name).command == "pretrain"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    enriched_corpus(folder / "corpus.jsonl", tiny_model(folder / "model"))
    tiny_model(folder / "warm", seed=2)
    return folder


@pytest.fixture(scope="module")
def generator(world: Path) -> Path:
    """A masked language model of the same vocabulary."""
    from drtk.cli.main import app

    call = ["pretrain", str(world / "corpus.jsonl"), "--preset", "mlm", "--model", str(world / "warm"), "-q"]
    call += ["--batch", "8", "--steps", "2", "--max-length", "32", "-o", str(world / "generator")]
    app(call, standalone_mode=False)
    return world / "generator"


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_trains_and_logs_its_terms(
    preset: str, world: Path, generator: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    content = load_preset(preset).content
    call = ["pretrain", world / "corpus.jsonl", "--preset", preset, "--model", world / "model", "-o", tmp_path / "out"]
    call += [
        "--batch",
        "6",
        "--steps",
        "2",
        "--max-length",
        "32",
        "--log-every",
        "1",
        "--warmup",
        "0",
        "--held-out",
        "4",
    ]
    call += ["--generator", generator] * ("generator" in content) + ["-q"]
    command(capfd, *call)
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2]
    for objective in content["objective"]:
        name = objective["name"]
        assert math.isfinite(steps[0][name])
        assert math.isfinite(lines[0][f"held_out_{name}"])
        if "source" in objective:
            assert f"gain_{name}" in lines[0]


@pytest.mark.parametrize("preset", ["diffcse-sts-roberta", "diffcse-transfer-roberta", "simlm", "master"])
def test_presets_train_a_roberta_with_byte_level_pieces(
    preset: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    saved_masked_lm("roberta", tmp_path / "model")
    saved_masked_lm("roberta", tmp_path / "generator", num_hidden_layers=1)
    corpus = enriched_corpus(tmp_path / "corpus.jsonl", tmp_path / "model", documents=6)
    call = ["pretrain", corpus, "--preset", preset, "--model", tmp_path / "model", "-o", tmp_path / "out", "-q"]
    call += ["--batch", "4", "--steps", "2", "--max-length", "32", "--log-every", "1", "--warmup", "0"]
    call += ["--generator", tmp_path / "generator"] * ("generator" in load_preset(preset).content)
    command(capfd, *call)
    read = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    lines = [line for line in read if "loss" in line]
    assert len(lines) == 2
    for objective in load_preset(preset).content["objective"]:
        assert all(0 < line[objective["name"]] < math.inf for line in lines)


def test_master_printed_masks_keywords_by_the_weights_of_either_method(
    world: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = {}
    for method in ("tfidf", "inv-freq"):
        weights, out = tmp_path / f"{method}.jsonl", tmp_path / method
        weigh = ["termweight", world / "corpus.jsonl", "--method", method, "--tokenizer", world / "model", "--bare"]
        command(capfd, *weigh, "--title", "none", "-o", weights, "-q")
        train = ["pretrain", world / "corpus.jsonl", "--with", weights, "--preset", "master-printed", "-o", out, "-q"]
        train += ["--model", world / "model", "--batch", "6", "--steps", "1", "--max-length", "32", "--log-every", "1"]
        command(capfd, *train, "--warmup", "0")
        first[method] = json.loads((out / "log.jsonl").read_text().splitlines()[0])
    changed = {
        name for name in ("mlm", "mkp", "cmp", "npr", "dor", "gor") if first["tfidf"][name] != first["inv-freq"][name]
    }
    assert changed == {"mkp", "npr"}  # the two decoders with keyword masks
