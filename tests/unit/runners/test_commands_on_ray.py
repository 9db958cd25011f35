"""Commands with --runner ray, a worker killed half-way: what comes out is what this process alone would have made."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drtk.enrichment.termweights import passes
from drtk.errors import RecordError, UsageError
from drtk.io.filtering import Done
from drtk.io.jsonl import dump
from drtk.io.manifest import read_json
from drtk.io.shards import read_shards
from drtk.retrieval import embeddings
from drtk.retrieval.embeddings import EncodeWindows
from drtk.retrieval.encode import Embedder
from drtk.runners.base import BatchFunction
from drtk.text import chunk_corpus
from drtk.text.chunk_corpus import ChunkWindows
from tests.contract.collection import documents
from tests.running import command
from tests.tiny import passages, tiny_model, tiny_writer

RAY = ["--runner", "ray", "--ray-workers", "2", "-q"]


class Deadly(BatchFunction):
    """Another batch function; the process that is first to meet the record `victim` is killed over it."""

    def __init__(self, build: type[BatchFunction], victim: str, marker: Path, *arguments: Any) -> None:
        self._inner, self._victim, self._marker = build(*arguments), victim, marker

    def prepare(self, records: list[Any]) -> Any:
        if any(record.id == self._victim for record in records) and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self._inner.prepare(records)

    def __call__(self, prepared: Any) -> Any:
        return self._inner(prepared)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a test works; the cluster was begun in another."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_encode_on_ray_makes_each_shard_once_and_loads_no_weights_itself(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, ray: object
) -> None:
    tiny_model(here / "model")
    (here / "c.jsonl").write_bytes(b"".join(map(dump, passages(120))))
    call = ["encode", "c.jsonl", "--model", "model", "--shard-size", "16"]
    command(capfd, *call, "-o", "local", "-q")
    monkeypatch.setattr(embeddings, "EncodeWindows", partial(Deadly, EncodeWindows, "d61", here / "killed"))
    monkeypatch.setattr(Embedder, "load", lambda _: pytest.fail("the driver needs no weights"))
    command(capfd, *call, "-o", "ray", *RAY)
    assert (here / "killed").exists()
    expected, found = read_shards("local"), read_shards("ray")
    assert [shard.rows for shard in found] == [16] * 7 + [8]
    for one, other in zip(expected, found, strict=True):
        assert one.ids == other.ids
        np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-6)  # this process may add up on several cores
    manifests = [read_json(here / name / "meta.json") for name in ("local", "ray")]
    for fact in ("settings", "encoder", "dimension", "shards", "counts", "encoding"):
        assert manifests[0][fact] == manifests[1][fact]


def test_a_chunk_begun_here_goes_on_on_ray_with_the_same_sentence_model(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, ray: object
) -> None:
    monkeypatch.setattr(chunk_corpus, "WINDOW", 20)
    whole = documents(300)
    (here / "whole.jsonl").write_bytes(whole)
    call = ["--max-words", "20", "--save-punkt", "punkt.json"]
    command(capfd, "chunk", "whole.jsonl", "-o", "expected", *call, "-q")
    lines = whole.splitlines(keepends=True)
    (here / "c.jsonl").write_bytes(b"".join(lines[:130]) + b"torn\n")
    call = ["chunk", "c.jsonl", "-o", "made", *call[:2], "--punkt-model", "punkt.json"]
    with pytest.raises(RecordError, match=r"c\.jsonl:131"):
        command(capfd, *call, "-q")
    assert not (here / "made").exists()
    (here / "c.jsonl").write_bytes(whole)
    monkeypatch.setattr(chunk_corpus, "ChunkWindows", partial(Deadly, ChunkWindows, "d205", here / "killed"))
    command(capfd, *call, "--resume", *RAY)
    assert (here / "killed").exists()
    assert (here / "made").read_bytes() == (here / "expected").read_bytes()
    counts = [read_json(here / f"{name}.meta.json")["counts"] for name in ("expected", "made")]
    assert counts[0] == counts[1]
    assert counts[0]["in"] == 300


@pytest.mark.slow
def test_queries_written_on_ray_are_those_written_here(
    here: Path, capfd: pytest.CaptureFixture[str], ray: object
) -> None:
    tiny_writer(here / "t5", "t5")
    (here / "c.jsonl").write_bytes(b"".join(map(dump, passages(30))))
    call = ["doc2query", "c.jsonl", "--model", "t5", "--n", "2", "--max-new-tokens", "6"]
    assert command(capfd, *call, *RAY) == command(capfd, *call, "-q")


@pytest.mark.parametrize(
    "call",
    [
        ("termweight", "--method", "tfidf", "--tokenizer", "model", "--collection", "counts.jsonl"),
        ("termweight", "--method", "bprop", "--model", "model", "--emit", "attention"),
        ("continue-text", "--model", "gpt2", "--max-new-tokens", "6"),
    ],
    ids=lambda call: call[2] if call[0] == "termweight" else call[0],
)
def test_windows_made_on_two_workers_are_those_made_here(
    here: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ray: object,
    call: tuple[str, ...],
) -> None:
    for name in ("_PLAIN", "_READ_BY_MODEL"):
        monkeypatch.setattr(passes, name, 8)
    monkeypatch.setattr("drtk.cli.continue_text.WINDOW", 8)
    tiny_model(here / "model") if call[0] == "termweight" else tiny_writer(here / "gpt2", "gpt2")
    (here / "c.jsonl").write_bytes(b"".join(map(dump, passages(44))))  # 6 windows
    if "--collection" in call:
        command(capfd, *call[:-2], "c.jsonl", "--collect", "-o", call[-1], "-q")
    command(capfd, *call, "c.jsonl", "-o", "local", "-q")
    command(capfd, *call, "c.jsonl", "-o", "ray", *RAY)
    found, expected = (
        [json.loads(line) for line in (here / name).read_text().splitlines()] for name in ("ray", "local")
    )
    assert len(expected) == 44
    for one, other in zip(found, expected, strict=True):
        for row in (one, other):
            row["numbers"] = row.pop("weights", []) + row.pop("title_weights", [])
        # this process may add up on several cores
        assert one.pop("numbers") == pytest.approx(other.pop("numbers"), abs=1e-6)
        assert one == other
    counts = [read_json(here / f"{name}.meta.json")["counts"] for name in ("local", "ray")]
    assert counts[0] == counts[1]
    assert counts[0]["in"] == 44


def test_processes_of_ones_own_do_not_go_with_ray(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "c.jsonl").write_bytes(documents(3))
    with pytest.raises(UsageError, match="--workers are processes of --runner local"):
        command(capfd, "chunk", "c.jsonl", "--workers", "2", *RAY)


def test_a_batch_function_gives_what_can_travel() -> None:
    work = ChunkWindows(1, *_words())
    made = work(work.prepare(passages(4)))
    assert isinstance(made, Done)
    assert isinstance(made.lines, list)
    assert made.counts == {"empty": 0}


def _words() -> tuple[Any, ...]:
    from drtk.settings.text import ChunkSettings

    return ChunkSettings(policy="words", sentences=False), 100, None, None, False
