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

from drtk.cli.main import app
from drtk.data.embeddings import read_shards
from drtk.data.jsonl import dump
from drtk.errors import DrtkError, RecordError, UsageError
from drtk.expansion.term_weights import weigh as passes
from drtk.retrieval import encode as embeddings
from drtk.retrieval.encode import Embedder, EncodeWindows
from drtk.runtime.filter_job import Done
from drtk.runtime.integrity import read_json
from drtk.runtime.manifest import manifest_path
from drtk.runtime.runners import BatchFunction
from drtk.text import chunk_corpus
from drtk.text.chunk_corpus import ChunkWindows
from tests.bm25 import need_lucene
from tests.contract.collection import documents
from tests.expansions import labelled, write_world
from tests.running import command, write
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
        np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-5)  # this process may add up on several cores
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
        assert one.pop("numbers") == pytest.approx(other.pop("numbers"), abs=1e-5)
        assert one == other
    counts = [read_json(here / f"{name}.meta.json")["counts"] for name in ("local", "ray")]
    assert counts[0] == counts[1]
    assert counts[0]["in"] == 44


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions, candidates with and without labels, a run, an index of words, a writer, and a query re-ranker of kind rd."""
    folder = write_world(tmp_path_factory.mktemp("asked"))
    labelled(folder)
    hits = [f"q{n} Q0 {id}{n} {rank} {1 / rank} t\n" for n in range(24) for rank, id in enumerate("xd", start=1)]
    write(folder / "run", "".join(hits))
    tiny_writer(folder / "t5", "t5")
    tiny_model(folder / "model")
    train = ["rerank-queries", "train", "labelled.jsonl", "--queries", "queries.jsonl", "--model", "model", "-o", "rd"]
    named = [str(folder / word) if (folder / word).exists() or word == "rd" else word for word in train]
    options = ["--scorer", "rd", "--max-length", "32", "--steps", "2", "--device", "cpu", "-q"]
    app([*named, *options], standalone_mode=False)
    return folder


READ = ("read", "{run}", "--corpus", "{corpus.jsonl}", "--queries", "{queries.jsonl}", "--model", "{t5}")
WRITTEN = ("expand-queries", "{queries.jsonl}", "--model", "{t5}", "--kind", "answer", "--n", "4")
TAKEN = ("expand-queries", "{queries.jsonl}", "--from-run", "{run}", "--corpus", "{corpus.jsonl}")
CHOSEN = (
    "rerank-queries",
    "apply",
    "{expansions.jsonl}",
    "--queries",
    "{queries.jsonl}",
    "--model",
    "{rd}",
    "--top",
    "4",
)


@pytest.mark.parametrize(
    ("call", "estimate"),
    [
        ((*READ, "--max-new-tokens", "6"), "score"),
        ((*WRITTEN, "--max-new-tokens", "6"), None),
        pytest.param(TAKEN, None, marks=pytest.mark.slow),
        ((*CHOSEN, "--index", "{bm25s}"), "estimates"),  # each worker opens the index, and asks it
        pytest.param((*CHOSEN, "--index", "{bm25}"), "estimates", marks=pytest.mark.slow),  # in a JVM of its own
    ],
    ids=["read", "expand-queries --model", "expand-queries --from-run", "apply", "apply with Lucene"],
)
def test_what_is_asked_on_two_workers_is_what_is_asked_here(
    asked: Path,
    here: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ray: object,
    call: tuple[str, ...],
    estimate: str | None,
) -> None:
    if "{bm25}" in call:
        need_lucene()
        command(capfd, "index", asked / "corpus.jsonl", "--type", "bm25", "-o", asked / "bm25", "-q")
    for module in ("read", "expand_queries", "rerank_queries_apply"):
        monkeypatch.setattr(f"drtk.cli.{module}.WINDOW", 5)
    named = [str(asked / word[1:-1]) if word[0] == "{" else word for word in call]
    command(capfd, *named, "-o", "local", "-q")
    command(capfd, *named, "-o", "ray", *RAY)
    made, expected = ([*map(json.loads, lines_made(here / name))] for name in ("ray", "local"))
    assert len(expected) >= 24
    for one, other in zip(made, expected, strict=True):
        if estimate is not None:
            assert one.pop(estimate) == pytest.approx(other.pop(estimate), abs=1e-4)  # added up in another order
        assert one == other
    counts = [read_json(manifest_path(name))["counts"] for name in ("local", "ray")]
    assert counts[0] == counts[1]


def lines_made(output: Path) -> list[str]:
    """The lines of a file, or of what was chosen in a folder."""
    return (output / "choices.jsonl" if output.is_dir() else output).read_text().splitlines()


@pytest.mark.parametrize("call", [READ, TAKEN, CHOSEN], ids=["read", "expand-queries", "apply"])
def test_an_input_that_is_not_there_is_told_before_ray_starts(
    asked: Path, here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, call: tuple[str, ...]
) -> None:
    monkeypatch.setattr("drtk.runtime.run_ray._connect", lambda _: pytest.fail("Ray was started"))
    missing = "{expansions.jsonl}" if call == CHOSEN else "{run}"
    named = ["nowhere" if word == missing else str(asked / word[1:-1]) if word[0] == "{" else word for word in call]
    with pytest.raises(DrtkError, match=r"^nowhere: No such file or directory$"):
        command(capfd, *named, "-o", "out", *RAY)
    assert not (here / "out").is_file()


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
    from drtk.text.config import ChunkSettings

    return ChunkSettings(policy="words", sentences=False), 100, None, None, False
