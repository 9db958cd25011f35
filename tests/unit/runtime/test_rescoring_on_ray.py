"""rerank and score with --runner ray: the lines and vectors that this process alone would have made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from drtk.data.embeddings import read_shards
from drtk.data.jsonl import read_examples
from tests.running import command
from tests.tiny import tiny_crossencoder, write_collection

RAY = ["--runner", "ray", "--ray-workers", "2", "-q"]


def test_rerank_and_score_on_ray_make_what_this_process_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], ray: object
) -> None:
    monkeypatch.chdir(tmp_path)
    write_collection(tmp_path, 60)
    tiny_crossencoder(tmp_path / "model")
    copies = (tmp_path / "queries.jsonl").read_text()
    (tmp_path / "queries.jsonl").write_text(copies + copies.replace('"q', '"again'))
    lines = [f"q{query} Q0 d{(query + at) % 60} {at + 1} {9 - at} t\n" for query in range(60) for at in range(5)]
    (tmp_path / "run").write_text("".join(lines + [f"again{line[1:]}" for line in lines]))  # two windows of 64
    call = [
        "rerank",
        "run",
        "--corpus",
        "corpus.jsonl",
        "--queries",
        "queries.jsonl",
        "--model",
        "model",
        "--depth",
        "4",
    ]
    command(capfd, *call, "-o", "local", "--vectors", "v", "-q")
    command(capfd, *call, "-o", "ray", "--vectors", "w", *RAY)
    mine, theirs = ([line.split() for line in (tmp_path / name).read_text().splitlines()] for name in ("local", "ray"))
    assert [line[:4] for line in mine] == [line[:4] for line in theirs]
    np.testing.assert_allclose([float(line[4]) for line in mine], [float(line[4]) for line in theirs], atol=5e-5)
    for one, other in zip(read_shards("v"), read_shards("w"), strict=True):
        assert one.ids == other.ids
        np.testing.assert_allclose(one.vectors, other.vectors, atol=2e-3)  # stored as float16
    call = ["score", "examples.jsonl", "--corpus", "corpus.jsonl", "--queries", "queries.jsonl", "--model", "model"]
    command(capfd, *call, "-o", "local.jsonl", "-q")
    command(capfd, *call, "-o", "ray.jsonl", *RAY)
    for one, other in zip(read_examples("local.jsonl"), read_examples("ray.jsonl"), strict=True):
        assert (one.query_id, one.positives, one.negatives) == (other.query_id, other.positives, other.negatives)
        assert one.scores is not None
        assert other.scores is not None
        for side in ("positives", "negatives"):
            assert one.scores[side] == pytest.approx(other.scores[side], abs=5e-5)
