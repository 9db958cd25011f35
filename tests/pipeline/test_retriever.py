"""Training a randomly initialized retriever improves it, and the saved model gives the same vectors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from drtk.cli.main import app
from drtk.data.embeddings import read_shards
from drtk.retrieval.encode import Embedder
from tests.tiny_models import write_collection


def run(*given: str) -> None:
    app([*given, "-q"], standalone_mode=False)


def load_vectors(folder: Path) -> tuple[list[str], np.ndarray]:
    shards = read_shards(folder)
    return [id for shard in shards for id in shard.ids], np.concatenate([shard.vectors for shard in shards])


def compute_mrr(model: Path, corpus: str, queries: str, folder: Path) -> float:
    """Return the mean reciprocal rank of each query's passage (q7 -> d7) by cosine."""
    for role, source in (("passage", corpus), ("query", queries)):
        run("encode", source, "--model", str(model), "--role", role, "-o", str(folder / role))
    (ids, passage_vectors), (query_ids, query_vectors) = (
        load_vectors(folder / "passage"),
        load_vectors(folder / "query"),
    )
    passage_vectors, query_vectors = (
        rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (passage_vectors, query_vectors)
    )
    scores = query_vectors @ passage_vectors.T
    positive_scores = scores[np.arange(len(query_ids)), [ids.index("d" + id[1:]) for id in query_ids]]
    return float(np.mean(1 / (scores > positive_scores[:, None]).sum(1).__add__(1)))


def test_training_improves_the_encoder_and_the_saved_model_gives_the_same_vectors(tmp_path: Path):
    corpus, queries, examples = write_collection(tmp_path, 160)
    size = ["--layers", "2", "--hidden", "48", "--heads", "4", "--max-length", "64", "--vocab-size", "400"]
    run("init-model", corpus, "-o", str(tmp_path / "start"), *size, "--pooling", "mean")
    more = "--max-steps 60 --batch-size 16 --negatives 1 --learning-rate 4e-3 --set temperature=0.05".split()
    named = ["--corpus", corpus, "--queries", queries, "--model", str(tmp_path / "start")]
    run("train-retriever", examples, *named, "-o", str(tmp_path / "trained"), *more)

    losses = [json.loads(line)["loss"] for line in (tmp_path / "trained" / "log.jsonl").read_text().splitlines()]
    assert len(losses) == 6
    assert losses[-1] < 0.6 * losses[0]

    before = compute_mrr(tmp_path / "start", corpus, queries, tmp_path / "before")
    after = compute_mrr(tmp_path / "trained", corpus, queries, tmp_path / "after")
    assert after > before + 0.1

    texts = ["rivers riverer", "planeted gardens", ""]
    embedder = Embedder(str(tmp_path / "trained"), role="passage")
    np.testing.assert_array_equal(embedder(texts), Embedder(str(tmp_path / "trained"), role="passage")(texts))
    transformers = pytest.importorskip("sentence_transformers")
    theirs = transformers.SentenceTransformer(str(tmp_path / "trained"), device="cpu")
    np.testing.assert_allclose(theirs.encode(texts), embedder(texts), atol=1e-5)
