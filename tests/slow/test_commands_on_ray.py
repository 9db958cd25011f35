"""Commands with --runner ray write the same output as with --runner local, also after a worker was killed."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drtk.data.embeddings import read_shards
from drtk.data.readers import read_examples
from drtk.data.rows import dump
from drtk.errors import RecordError
from drtk.retrieval import encode as embeddings
from drtk.retrieval.encode import Embedder, RecordEncoder
from drtk.runtime.integrity import read_json
from drtk.runtime.runners import BatchFunction
from drtk.text import chunking
from drtk.text.chunking import ChunkFunction
from tests.contract.collection import make_documents
from tests.run_commands import run_command
from tests.tiny_models import (
    make_passages,
    save_tiny_cross_encoder,
    save_tiny_encoder,
    save_tiny_generator,
    write_collection,
)

pytestmark = pytest.mark.slow
RAY = ["--runner", "ray", "--set", "runner_workers=2", "-q"]


class KillingFunction(BatchFunction):
    """A batch function that kills the first process that receives the record `victim`."""

    def __init__(self, build: type[BatchFunction], victim: str, marker: Path, *arguments: Any) -> None:
        self._inner, self._victim, self._marker = build(*arguments), victim, marker

    def prepare(self, records: list[Any]) -> Any:
        if any(record.id == self._victim for record in records) and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self._inner.prepare(records)

    def __call__(self, prepared: Any) -> Any:
        return self._inner(prepared)


def test_encode_on_ray_writes_each_shard_once_and_loads_no_weights_in_the_driver(folder, capfd, monkeypatch, ray):
    save_tiny_encoder(folder / "model")
    (folder / "c.jsonl").write_bytes(b"".join(map(dump, make_passages(120))))
    call = ["encode", "c.jsonl", "--model", "model", "--set", "shard_size=16"]
    run_command(capfd, *call, "-o", "local", "-q")
    monkeypatch.setattr(embeddings, "RecordEncoder", partial(KillingFunction, RecordEncoder, "d61", folder / "killed"))
    monkeypatch.setattr(Embedder, "load", lambda _: pytest.fail("the driver needs no weights"))
    run_command(capfd, *call, "-o", "ray", *RAY)
    assert (folder / "killed").exists()
    local_shards, ray_shards = read_shards("local"), read_shards("ray")
    assert [shard.num_rows for shard in ray_shards] == [16] * 7 + [8]
    for one, other in zip(local_shards, ray_shards, strict=True):
        assert one.ids == other.ids
        np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-5)  # several cores may sum in another order
    manifests = [read_json(folder / name / "meta.json") for name in ("local", "ray")]
    for fact in ("settings", "encoder", "dimension", "shards", "counts", "encoding"):
        assert manifests[0][fact] == manifests[1][fact]


def test_a_local_chunk_run_resumes_on_ray_with_the_same_sentence_model(folder, capfd, monkeypatch, ray):
    monkeypatch.setattr(chunking, "BATCH_SIZE", 20)
    whole = make_documents(300)
    (folder / "whole.jsonl").write_bytes(whole)
    call = ["--max-words", "20", "--save-punkt", "punkt.json"]
    run_command(capfd, "chunk", "whole.jsonl", "-o", "expected", *call, "-q")
    lines = whole.splitlines(keepends=True)
    (folder / "c.jsonl").write_bytes(b"".join(lines[:130]) + b"torn\n")
    call = ["chunk", "c.jsonl", "-o", "made", *call[:2], "--punkt-model", "punkt.json"]
    with pytest.raises(RecordError, match=r"c\.jsonl:131"):
        run_command(capfd, *call, "-q")
    assert not (folder / "made").exists()
    (folder / "c.jsonl").write_bytes(whole)
    monkeypatch.setattr(chunking, "ChunkFunction", partial(KillingFunction, ChunkFunction, "d205", folder / "killed"))
    run_command(capfd, *call, "--resume", *RAY)
    assert (folder / "killed").exists()
    assert (folder / "made").read_bytes() == (folder / "expected").read_bytes()
    counts = [read_json(folder / f"{name}.meta.json")["counts"] for name in ("expected", "made")]
    assert counts[0] == counts[1]
    assert counts[0]["in"] == 300


def test_generated_queries_on_ray_equal_local_ones(folder, capfd, ray):
    save_tiny_generator(folder / "t5", "t5")
    (folder / "c.jsonl").write_bytes(b"".join(map(dump, make_passages(30))))
    call = ["doc2query", "c.jsonl", "--model", "t5", "--n", "2", "--max-new-tokens", "6"]
    assert run_command(capfd, *call, *RAY) == run_command(capfd, *call, "-q")


def test_rerank_and_score_on_ray_equal_local_runs(folder, capfd, ray):
    write_collection(folder, 60)
    save_tiny_cross_encoder(folder / "model")
    copies = (folder / "queries.jsonl").read_text()
    (folder / "queries.jsonl").write_text(copies + copies.replace('"q', '"again'))
    lines = [f"q{query} Q0 d{(query + at) % 60} {at + 1} {9 - at} t\n" for query in range(60) for at in range(5)]
    (folder / "run").write_text("".join(lines + [f"again{line[1:]}" for line in lines]))  # two batches of 64
    call = "rerank run --corpus corpus.jsonl --queries queries.jsonl --model model --depth 4".split()
    run_command(capfd, *call, "-o", "local", "--save-vectors", "v", "-q")
    run_command(capfd, *call, "-o", "ray", "--save-vectors", "w", *RAY)
    local_lines, ray_lines = (
        [line.split() for line in (folder / name).read_text().splitlines()] for name in ("local", "ray")
    )
    assert [line[:4] for line in local_lines] == [line[:4] for line in ray_lines]
    np.testing.assert_allclose(
        [float(line[4]) for line in local_lines], [float(line[4]) for line in ray_lines], atol=5e-5
    )
    for one, other in zip(read_shards("v"), read_shards("w"), strict=True):
        assert one.ids == other.ids
        np.testing.assert_allclose(one.vectors, other.vectors, atol=2e-3)  # stored as float16
    call = ["score", "examples.jsonl", "--corpus", "corpus.jsonl", "--queries", "queries.jsonl", "--model", "model"]
    run_command(capfd, *call, "-o", "local.jsonl", "-q")
    run_command(capfd, *call, "-o", "ray.jsonl", *RAY)
    for one, other in zip(read_examples("local.jsonl"), read_examples("ray.jsonl"), strict=True):
        assert (one.query_id, one.positives, one.negatives) == (other.query_id, other.positives, other.negatives)
        assert one.scores is not None
        assert other.scores is not None
        for side in ("positives", "negatives"):
            assert one.scores[side] == pytest.approx(other.scores[side], abs=5e-5)
