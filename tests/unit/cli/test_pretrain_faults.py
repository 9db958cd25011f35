"""What goes wrong with drtk pretrain beyond its options: texts, weights and generators that do not fit, memory, loss."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from drtk.cli.main import app
from drtk.errors import DrtkError, UsageError
from drtk.pretraining.trainer import Pretrainer
from tests.pretraining import World
from tests.tiny import tiny_model

QUICK = ["--batch", "6", "--max-length", "24", "--warmup", "0", "--log-every", "1"]


def pretrain(world: World, output: Path, preset: str, *more: str | Path, corpus: Path | None = None) -> None:
    named = ["--preset", preset, "--model", str(world.model), "-o", str(output), *QUICK, *map(str, more)]
    app(["pretrain", str(corpus or world.corpus), *named, "-q"], standalone_mode=False)


def corpus_of(world: World, path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The corpus with every passage changed."""
    rows = [json.loads(line) for line in world.corpus.read_text().splitlines()]
    for row in rows:
        change(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def refused(world: World, folder: Path, preset: str, *more: str | Path, corpus: Path | None = None) -> str:
    """The line with which a run is refused before anything was written."""
    with pytest.raises(DrtkError) as caught:
        pretrain(world, folder / "m", preset, "--steps", "1", *more, corpus=corpus)
    assert not (folder / "m").exists()
    told = str(caught.value)
    assert "\n" not in told
    return told


def alone(row: dict[str, Any]) -> None:
    """Passages of no document."""
    row["_id"] = row["_id"].replace("#", "-")
    for name in ("source_id", "position"):
        row["metadata"].pop(name)


@pytest.mark.parametrize("preset", ["cocondenser", "corom", "cotmae", "qac-cotmae-mixed", "master"])
def test_a_corpus_without_neighbours_is_told_with_what_makes_them(preset: str, world: World, tmp_path: Path):
    told = refused(world, tmp_path, preset, corpus=corpus_of(world, tmp_path / "c.jsonl", alone))
    assert "no document has two passages, so none has a neighbour; drtk chunk" in told


LACKING = [
    ("qac-cotmae", "queries", "doc2query"),
    ("qac-cocondenser", "queries", "doc2query"),
    ("qac-cotmae-released", "queries", "doc2query"),
    ("master", "queries", "doc2query"),
    ("master", "continuations", "continue-text"),
    ("master", "weights", "termweight"),
    ("rom", "weights", "termweight"),
    ("corom", "weights", "termweight"),
    ("mixture-example", "weights", "termweight"),
]


@pytest.mark.parametrize(("preset", "field", "adder"), LACKING)
def test_a_passage_that_lacks_what_a_preset_needs_is_named(
    preset: str, field: str, adder: str, world: World, tmp_path: Path
):
    def lack(row: dict[str, Any]) -> None:
        if row["_id"] == "d1#0":
            row.pop(field)

    corpus = corpus_of(world, tmp_path / "c.jsonl", lack)
    line = 1 + [json.loads(row)["_id"] for row in corpus.read_text().splitlines()].index("d1#0")
    told = refused(world, tmp_path, preset, corpus=corpus)
    assert told == f"{corpus}:{line}: passage 'd1#0' has no '{field}'; drtk {adder} adds them"


def test_weights_of_another_tokenizer_are_refused(world: World, tmp_path: Path):
    other = tiny_model(tmp_path / "other", vocab_size=120)
    corpus = corpus_of(
        world, tmp_path / "c.jsonl", lambda row: row["metadata"].update({"weights_tokenizer": str(other)})
    )
    told = refused(world, tmp_path, "rom", corpus=corpus)
    assert told.startswith(f"{corpus}:1: weights were made for the word pieces of {other}, not")


def test_weights_that_are_too_few_are_refused_with_both_numbers(world: World, tmp_path: Path):
    corpus = corpus_of(world, tmp_path / "c.jsonl", lambda row: row["weights"].pop())
    count = len(json.loads(world.corpus.read_text().splitlines()[0])["weights"])
    told = refused(world, tmp_path, "rom", corpus=corpus)
    assert told.startswith(f"{corpus}:1: passage 'd0#0' has {count - 1} weights for the {count} word pieces")


def test_passages_of_under_three_pieces_are_left_out_counted_and_told(world: World, tmp_path: Path):
    def cut(row: dict[str, Any]) -> None:
        if row["_id"].endswith("#0"):
            row["text"] = "river"

    corpus = corpus_of(world, tmp_path / "c.jsonl", cut)
    rows = [json.loads(line)["_id"] for line in corpus.read_text().splitlines()]
    short = sum(id.endswith("#0") for id in rows)
    command = [sys.executable, "-m", "drtk", "pretrain", str(corpus), "--preset", "mlm", "--model", str(world.model)]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "m"), *QUICK, "--steps", "1"], capture_output=True, text=True, check=True
    )
    assert f"{corpus}: {short} passages of fewer than 3 word pieces are left out" in done.stderr
    assert json.loads((tmp_path / "m" / "meta.json").read_text())["counts"]["passages"] == len(rows) - short


def test_passages_longer_than_the_limit_are_cut_to_it(world: World, tmp_path: Path):
    corpus = corpus_of(world, tmp_path / "c.jsonl", lambda row: row.update({"text": f"{row['text']} " * 40}))
    pretrain(world, tmp_path / "m", "mlm", "--steps", "1", corpus=corpus)  # the models read 64
    seen = world.stage("mlm").seen(0)[0].slots["passage"]
    assert len(seen.given) <= 24
    assert "--max-length 64" in refused(world, tmp_path / "n", "mlm", "--max-length", "80", corpus=corpus)


def test_a_generator_with_another_vocabulary_or_without_a_head_is_refused(world: World, tmp_path: Path):
    other = tiny_model(tmp_path / "other", vocab_size=120)
    assert "has no language-model head" in refused(world, tmp_path, "simlm", "--generator", other)
    start = ["--preset", "mlm", "--model", str(other), "-o", str(tmp_path / "warm"), *QUICK, "--steps", "1", "-q"]
    app(["pretrain", str(world.corpus), *start], standalone_mode=False)
    told = refused(world, tmp_path, "simlm", "--generator", tmp_path / "warm")
    assert "warm: the generator's vocabulary (" in told
    assert "is not the encoder's (" in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("slot = 'p'", "unknown key 'wieght'"),
        ("slot = 'q'", "there is no slot 'q'"),
        ("slot = 'a'", "slots a -> b -> a refer to each other in a circle"),
    ],
)
def test_a_preset_with_an_unknown_key_slot_or_a_circle_is_one_line_and_status_2(
    text: str, told: str, world: World, tmp_path: Path
):
    slots = "p = { view = 'passage', masking = 'random', rate = 0.3, corruption = 'mask' }\n"
    if "circle" in told:
        slots += "".join(
            f"{one} = {{ view = 'passage', masking = 'extension', of = '{other}', rate = 0.3, corruption = 'mask' }}\n"
            for one, other in ("ab", "ba")
        )
    wrong = "wieght = 2.0\n" if "wieght" in told else ""
    mine = tmp_path / "mine.toml"
    mine.write_text(
        f"command = 'pretrain'\n[slots]\n{slots}[[objective]]\nuse = 'recover'\nreader = 'encoder'\n{text}\n{wrong}"
    )
    with pytest.raises(UsageError) as caught:
        pretrain(world, tmp_path / "m", str(mine), "--steps", "1")
    line = str(caught.value)
    assert line.startswith(f"{mine}: ")
    assert told in line
    assert "\n" not in line
    assert caught.value.status == 2
    assert not (tmp_path / "m").exists()


SCHEDULE = ["--steps", "6", "--checkpoint-every", "2"]


def failing(monkeypatch: pytest.MonkeyPatch, at: int, fail: Callable[[Pretrainer, Any], None]) -> None:
    """Let something happen in the step after `at` steps."""
    real = Pretrainer.training_step

    def step(self: Pretrainer, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        if self.state.global_step == at:
            fail(self, inputs)
        return real(self, model, inputs, *given, **named)

    monkeypatch.setattr(Pretrainer, "training_step", step)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_memory_that_lacks_before_the_first_step_is_told_too(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: Any, **__: Any) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("transformers.Trainer._move_model_to_device", full)
    with pytest.raises(
        DrtkError, match=r"cpu: out of memory; a smaller --micro-batch \(it is 6\), --gradient-checkpointing"
    ):
        pretrain(world, tmp_path / "m", "mlm", *SCHEDULE)


def test_a_loss_that_is_no_number_names_the_passages_and_training_goes_on_from_the_last_good_checkpoint(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen: list[str] = []

    def spoil(trainer: Pretrainer, inputs: Any) -> None:
        seen.extend(inputs["ids"][0])
        with torch.no_grad():
            next(trainer.model.parameters()).fill_(float("nan"))

    with monkeypatch.context() as patch:
        failing(patch, 5, spoil)
        with pytest.raises(DrtkError) as caught:
            pretrain(world, tmp_path / "m", "simlm-mlm", *SCHEDULE)
    told = str(caught.value)
    assert told.startswith(f"the loss (encoder, decoder) is nan at step 6, on passages {', '.join(seen[:3])}")
    assert "--resume goes on from the checkpoint of step 4" in told
    assert not (tmp_path / "m" / "meta.json").exists()
    pretrain(world, tmp_path / "m", "simlm-mlm", *SCHEDULE, "--resume")
    pretrain(world, tmp_path / "whole", "simlm-mlm", *SCHEDULE)
    mine, theirs = weights(tmp_path / "m"), weights(tmp_path / "whole")
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
