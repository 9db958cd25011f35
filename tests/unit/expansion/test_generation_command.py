"""drtk doc2query and continue-text: added texts, which depend on the seed and the passage id only."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from drtk.cli.main import app
from drtk.data.rows import dump
from drtk.errors import MismatchError, UsageError
from drtk.expansion import generate
from drtk.models import generation
from drtk.models.generation import InputBatch
from drtk.runtime.integrity import read_json
from tests.expansion_collection import read_rows, write_rows
from tests.run_commands import fail_at_call, run_rows, write_text
from tests.tiny_models import make_passages, save_tiny_encoder, save_tiny_generator

SHORT = "--max-new-tokens 8 --n 2 -q"


@pytest.fixture(autouse=True)
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "c.jsonl", [json.loads(dump(passage)) | {"color": "red"} for passage in make_passages(30)])
    return tmp_path


def test_passages_come_back_with_queries_added(cwd, models, capfd):
    call = f"doc2query c.jsonl --model {models}/t5 {SHORT}"
    rows = run_rows(capfd, call)
    before = read_rows(cwd / "c.jsonl")
    assert [{key: value for key, value in row.items() if key != "queries"} for row in rows] == before
    assert all(len(row["queries"]) == 2 for row in rows)
    assert len({query for row in rows for query in row["queries"]}) > 20
    assert run_rows(capfd, f"{call} --bare") == [{"_id": row["_id"], "queries": row["queries"]} for row in rows]


def test_queries_do_not_depend_on_batches_order_or_neighbors(cwd, models, capfd):
    call = f"--model {models}/t5 {SHORT} --bare"
    whole = {row["_id"]: row["queries"] for row in run_rows(capfd, f"doc2query c.jsonl {call}")}
    rows = read_rows(cwd / "c.jsonl")
    write_rows(cwd / "reversed", rows[::-1])
    write_rows(cwd / "part", rows[7:12])
    for source in ("reversed --set batch_tokens=60", "part"):
        for row in run_rows(capfd, f"doc2query {source} {call}"):
            assert row["queries"] == whole[row["_id"]]
    others = run_rows(capfd, f"doc2query part {call} --seed 43")
    assert all(row["queries"] != whole[row["_id"]] for row in others)


def test_the_passage_is_truncated_and_never_the_prefix(cwd, models, capfd, monkeypatch):
    from transformers import AutoTokenizer

    batches: list[torch.Tensor] = []
    start_decoding = generation._start_decoding

    def watch(model: Any, batch: InputBatch, *given: Any, **named: Any) -> Any:
        batches.append(batch.ids)
        return start_decoding(model, batch, *given, **named)

    monkeypatch.setattr(generation, "_start_decoding", watch)
    call = f"doc2query c.jsonl --model {models}/t5 {SHORT}"
    run_rows(capfd, f"{call} --set max_length=9", "--prefix", "text query:")
    prefix = AutoTokenizer.from_pretrained(models / "t5")("text query:", add_special_tokens=False)["input_ids"]
    assert batches
    assert all(batch.shape[1] <= 9 for batch in batches)
    assert all(row[: len(prefix)].tolist() == prefix for batch in batches for row in batch)
    with pytest.raises(UsageError, match=r"`prefix`: \d+ tokens leave no room in `max_length` 3"):
        run_rows(capfd, f"{call} --set max_length=3", "--prefix", "text query:")


def test_titles_are_read_by_default(cwd, models, capfd):
    for name, title in (("titled", "wing"), ("untitled", "")):
        write_rows(cwd / name, [{"_id": "d", "title": title, "text": "lift and drag"}])
    call = f"--model {models}/t5 {SHORT} --bare"
    untitled = run_rows(capfd, f"doc2query untitled {call}")
    assert run_rows(capfd, f"doc2query titled {call} --set title=none") == untitled
    assert run_rows(capfd, f"doc2query titled {call}") != untitled


def test_empty_continuations_are_replaced_by_the_passage(cwd, models, capfd, monkeypatch):
    call = f"continue-text c.jsonl --model {models}/gpt2 --max-new-tokens 6 -q"
    rows = run_rows(capfd, call)
    assert all(len(row["continuations"]) == 1 for row in rows)
    assert not any(row["continuations"][0].startswith(row["text"]) for row in rows)  # without the prompt
    end_tokens = torch.ones(30, dtype=torch.long)
    monkeypatch.setattr(generation, "_sample_next_tokens", lambda logits, *_: end_tokens[: len(logits)])
    assert all(row["continuations"] == [row["text"]] for row in run_rows(capfd, call))


def test_options_without_effect_on_the_decoding_are_rejected(capfd):
    for options, message in (
        ("--decode greedy --n 3", "3: .*greedy"),
        ("--decode beam --top-p 0.5", "--top-p requires --decode sample"),
        ("--set beams=2", "--set beams requires --decode beam"),
    ):
        with pytest.raises(UsageError, match=message):
            run_rows(capfd, f"doc2query c.jsonl --model m {options}")
    with pytest.raises(UsageError, match=r"3: .*greedy"):
        run_rows(capfd, "continue-text c.jsonl --model m --decode greedy --n 3")


def test_settings_of_a_checkpoint_that_have_no_effect_are_logged_once(cwd, models, capfd):
    file = save_tiny_generator(cwd / "other", "t5") / "generation_config.json"
    write_text(file, json.dumps(read_json(file) | {"no_repeat_ngram_size": 3, "early_stopping": True}))
    both = "no_repeat_ngram_size 3, early_stopping True"
    for decode, count, number, settings in (("greedy", "", 1, "no_repeat_ngram_size 3"), ("beam", "--n 3", 3, both)):
        call = f"doc2query c.jsonl {count} --max-new-tokens 4 --decode {decode} -q"
        app(f"{call} --model other --set batch_tokens=60 -o {decode}".split(), standalone_mode=False)
        log = capfd.readouterr().err
        assert log.count("generation_config.json") == 1
        assert f"ignoring {settings} in its generation_config.json" in log
        rows = read_rows(cwd / decode)
        assert {len(row["queries"]) for row in rows} == {number}
        assert run_rows(capfd, f"{call} --model {models}/t5") == rows


def test_models_of_another_kind_are_rejected(cwd, models, capfd):
    encoder = save_tiny_encoder(cwd / "encoder")
    for name, model, message in (
        ("doc2query", encoder, r"encoder: expected a generation model.*, got an encoder \(bert\)"),
        ("doc2query", models / "gpt2", "is a decoder-only model; use an encoder-decoder"),
        ("continue-text", models / "t5", "is an encoder-decoder; use a decoder-only model"),
    ):
        with pytest.raises(MismatchError, match=message):
            run_rows(capfd, f"{name} c.jsonl --model {model}")
    with pytest.raises(UsageError, match="64: the model has 64 positions for input and output"):
        run_rows(capfd, f"continue-text c.jsonl --model {models}/gpt2 --max-new-tokens 64")


def test_generation_resumes_after_a_fault_between_batches(cwd, models, capfd, monkeypatch):
    monkeypatch.setattr("drtk.cli.doc2query.BATCH_SIZE", 4)
    call = f"doc2query c.jsonl --model {models}/t5 {SHORT}"
    run_rows(capfd, f"{call} -o whole.jsonl")
    with fail_at_call(17, generate, "dump"):
        run_rows(capfd, f"{call} -o x.jsonl")
    assert read_json(cwd / "x.jsonl.part.json")["records"] == 16
    run_rows(capfd, f"{call} -o x.jsonl --resume")
    assert (cwd / "x.jsonl").read_bytes() == (cwd / "whole.jsonl").read_bytes()
    assert read_json(cwd / "x.jsonl.meta.json")["counts"]["texts"] == 60


def test_an_empty_shard_is_logged(cwd, models, capfd):
    app(f"doc2query c.jsonl --model {models}/t5 --n 1 --shard 2/2 -o part".split(), standalone_mode=False)
    assert "shard 2 of 2 is empty: the input has fewer than 2 batches of 256 records" in capfd.readouterr().err
