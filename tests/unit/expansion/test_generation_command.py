"""drtk doc2query and continue-text: added texts, which depend on the seed and the passage id only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from drtk.cli.main import app
from drtk.data.rows import dump
from drtk.errors import MismatchError, RecordError, UsageError
from drtk.models import generation as text_writer
from tests.run_commands import run_command, write_text
from tests.tiny_models import make_passages, save_tiny_encoder, save_tiny_generator

SHORT = ["--max-new-tokens", "8", "--n", "2"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for arch in ("t5", "gpt2"):
        save_tiny_generator(folder / arch, arch)
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    corpus = [json.loads(dump(passage)) | {"colour": "red"} for passage in make_passages(30)]
    write_text(tmp_path / "c.jsonl", "".join(json.dumps(row) + "\n" for row in corpus))
    return tmp_path


def rows(capfd: pytest.CaptureFixture[str], *arguments: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run_command(capfd, *arguments, "-q").splitlines()]


def test_passages_come_back_with_queries_added(here: Path, models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = rows(capfd, "doc2query", "c.jsonl", "--model", models / "t5", *SHORT)
    before = [json.loads(line) for line in (here / "c.jsonl").read_text().splitlines()]
    assert [{key: value for key, value in row.items() if key != "queries"} for row in found] == before
    assert all(len(row["queries"]) == 2 for row in found)
    assert len({query for row in found for query in row["queries"]}) > 20
    bare = rows(capfd, "doc2query", "c.jsonl", "--model", models / "t5", *SHORT, "--bare")
    assert bare == [{"_id": row["_id"], "queries": row["queries"]} for row in found]


def test_queries_do_not_depend_on_batches_order_or_neighbors(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    call = ["--model", models / "t5", *SHORT, "--bare"]
    whole = {row["_id"]: row["queries"] for row in rows(capfd, "doc2query", "c.jsonl", *call)}
    lines = (here / "c.jsonl").read_text().splitlines(keepends=True)
    write_text(here / "back.jsonl", "".join(lines[::-1]))
    write_text(here / "part.jsonl", "".join(lines[7:12]))
    for name, more in (("back", ["--set", "batch_tokens=60"]), ("part", [])):
        for row in rows(capfd, "doc2query", f"{name}.jsonl", *call, *more):
            assert row["queries"] == whole[row["_id"]]
    other = {row["_id"]: row["queries"] for row in rows(capfd, "doc2query", "part.jsonl", *call, "--seed", "43")}
    assert all(queries != whole[id] for id, queries in other.items())


def test_an_interrupted_run_resumed_equals_an_uninterrupted_one(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drtk.cli.doc2query.WINDOW", 4)
    call = ["doc2query", "c.jsonl", "--model", str(models / "t5"), *SHORT, "-q"]
    run_command(capfd, *call, "-o", "whole.jsonl")
    text = (here / "c.jsonl").read_text()
    write_text(here / "c.jsonl", text[: len(text) // 2])
    with pytest.raises(RecordError):
        run_command(capfd, *call, "-o", "x.jsonl")
    write_text(here / "c.jsonl", text)
    run_command(capfd, *call, "-o", "x.jsonl", "--resume")
    assert (here / "x.jsonl").read_bytes() == (here / "whole.jsonl").read_bytes()
    assert json.loads((here / "x.jsonl.meta.json").read_text())["counts"] == {"in": 30, "out": 30, "texts": 60}


def test_greedy_gives_one_query_and_beams_the_best(here: Path, models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    call = ["doc2query", "c.jsonl", "--model", models / "t5", "--max-new-tokens", "6"]
    assert {len(row["queries"]) for row in rows(capfd, *call, "--decode", "greedy")} == {1}
    assert {len(row["queries"]) for row in rows(capfd, *call, "--decode", "beam", "--n", "3")} == {3}


def test_the_passage_is_cut_and_never_the_prefix(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []
    answers = text_writer.generate_tokens

    def watched(writer: Any, ids: torch.Tensor, *given: Any, **named: Any) -> Any:
        seen.append(ids)
        return answers(writer, ids, *given, **named)

    monkeypatch.setattr(text_writer, "generate_tokens", watched)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models / "t5")
    call = [
        "doc2query",
        "c.jsonl",
        "--model",
        models / "t5",
        *SHORT,
        "--prefix",
        "text query:",
        "--set",
        "max_length=9",
    ]
    rows(capfd, *call)
    begin = tokenizer("text query:", add_special_tokens=False)["input_ids"]
    assert all(batch.shape[1] <= 9 for batch in seen)
    assert all(row[: len(begin)].tolist() == begin for batch in seen for row in batch)
    with pytest.raises(UsageError, match=r"`prefix`: \d+ tokens leave none of `max_length` 3"):
        rows(capfd, *call, "--set", "max_length=3")


def test_titles_are_read_by_default(here: Path, models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_text(here / "t.jsonl", '{"_id": "d", "title": "wing", "text": "lift and drag"}\n')
    write_text(here / "u.jsonl", '{"_id": "d", "title": "", "text": "lift and drag"}\n')
    call = ["--model", models / "t5", *SHORT, "--bare"]
    plain = rows(capfd, "doc2query", "u.jsonl", *call)
    assert rows(capfd, "doc2query", "t.jsonl", *call, "--set", "title=none") == plain
    assert rows(capfd, "doc2query", "t.jsonl", *call) != plain


def test_empty_continuations_are_replaced_by_the_passage(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ["continue-text", "c.jsonl", "--model", models / "gpt2", "--max-new-tokens", "6"]
    found = rows(capfd, *call)
    assert all(len(row["continuations"]) == 1 for row in found)
    assert not any(row["continuations"][0].startswith(row["text"]) for row in found)  # the prompt is taken off
    monkeypatch.setattr(text_writer, "generate_tokens", lambda writer, ids, *_, **__: [[[]] for _ in ids])
    assert all(row["continuations"] == [row["text"]] for row in rows(capfd, *call))


@pytest.mark.parametrize("name", ["doc2query", "continue-text"])
@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["--decode", "greedy", "--n", "3"], "3: .*greedy"),
        (["--decode", "beam", "--top-p", "0.5"], "--top-p requires --decode sample"),
        (["--set", "beams=2"], "--set beams requires --decode beam"),
    ],
)
def test_options_without_effect_on_the_decoding_are_rejected(
    here: Path, capfd: pytest.CaptureFixture[str], name: str, more: list[str], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        run_command(capfd, name, "c.jsonl", "--model", "m", *more)


def test_settings_of_a_checkpoint_that_have_no_effect_are_logged_once(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = save_tiny_generator(here / "wishing", "t5")
    config = json.loads((folder / "generation_config.json").read_text())
    write_text(
        folder / "generation_config.json", json.dumps(config | {"no_repeat_ngram_size": 3, "early_stopping": True})
    )
    named = {"greedy": "no_repeat_ngram_size 3", "beam": "no_repeat_ngram_size 3, early_stopping True"}
    for decode, names in named.items():
        call = ["doc2query", "c.jsonl", "--n", "1", "--max-new-tokens", "4", "--decode", decode, "-q"]
        capfd.readouterr()
        app([*call, "--model", "wishing", "--set", "batch_tokens=60", "-o", "x"], standalone_mode=False)
        logged = capfd.readouterr().err
        assert logged.count("generation_config.json") == 1
        assert f"ignoring {names} in its generation_config.json" in logged
        assert rows(capfd, *call, "--model", models / "t5") == [
            json.loads(line) for line in (here / "x").read_text().splitlines()
        ]
        (here / "x").unlink()


def test_models_of_another_kind_are_rejected(here: Path, models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    encoder = save_tiny_encoder(here / "encoder")
    for name, model, error, message in (
        ("doc2query", encoder, MismatchError, r"encoder: expected a generation model.*, got an encoder \(bert\)"),
        ("doc2query", models / "gpt2", MismatchError, "expected an encoder-decoder"),
        ("continue-text", models / "t5", MismatchError, "expected a decoder-only model"),
    ):
        with pytest.raises(error, match=message):
            run_command(capfd, name, "c.jsonl", "--model", model)
    with pytest.raises(UsageError, match="64: the model has 64 positions for input and output"):
        run_command(capfd, "continue-text", "c.jsonl", "--model", models / "gpt2", "--max-new-tokens", "64")


def test_a_part_without_records_is_logged(here: Path, models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    call = ["doc2query", "c.jsonl", "--model", str(models / "t5"), "--n", "1", "--shard", "2/2", "-o", "part"]
    app(call, standalone_mode=False)
    assert "shard 2 of 2 is empty: the input has fewer than 2 windows of 256 records" in capfd.readouterr().err
