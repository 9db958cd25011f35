"""Sparse retrievers on the command line: train-retriever --head sparse, encode, index --type impact, search."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from drtk.cli.main import app
from drtk.errors import MismatchError, RecordError, UsageError
from drtk.indexing.vectors import iter_impact_passages
from drtk.models.checkpoint import load_masked_lm, save_lm_head
from drtk.retrieval.encode import Embedder
from drtk.runtime.integrity import read_json
from drtk.training.grad_cache import RetrieverTrainer
from tests.bm25_data import skip_without_lucene
from tests.expansion_collection import read_rows
from tests.pretraining_setup import randomize_weights
from tests.run_commands import cut_off_before_step, read_log, run_command
from tests.tiny_models import save_tiny_encoder

FLOPS = "--set query_flops_weight=0.1 --set passage_flops_weight=0.05 --set flops_warmup=3"


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save an encoder with a masked-LM head."""
    folder = save_tiny_encoder(tmp_path_factory.mktemp("sparse") / "start")
    _, head, _ = load_masked_lm(folder)
    randomize_weights(head, seed=4)
    save_lm_head(head, folder)
    return folder


def train(data: Path, model: Path, output: Path, more: str = "") -> dict[str, Any]:
    call = f"train-retriever {data}/examples.jsonl --corpus {data}/corpus.jsonl --queries {data}/queries.jsonl -q "
    call += f"--model {model} -o {output} --device cpu --batch-size 8 --negatives 1 --learning-rate 1e-3 --max-steps 4 "
    app([*call.split(), *"--set log_steps=1 --set save_steps=2".split(), *more.split()], standalone_mode=False)
    return read_json(output / "meta.json")


@pytest.fixture(scope="module")
def sparse(data: Path, start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a sparse retriever, and encode corpus and queries."""
    folder = tmp_path_factory.mktemp("trained")
    train(data, start, folder / "m", f"--head sparse {FLOPS}")
    for role, name in (("passage", "corpus"), ("query", "queries")):
        call = ["encode", f"{data}/{name}.jsonl", "--model", f"{folder}/m", "--role", role, "-o", f"{folder}/{name}"]
        app([*call, "--set", "shard_size=40", "-q"], standalone_mode=False)
    return folder


def test_flops_weights_rise_quadratically_and_the_folder_is_a_sparse_encoder(sparse: Path):
    log = read_log(sparse / "m")
    assert len(log) == 4
    for entry, factor in zip(log, (1 / 9, 4 / 9, 1.0, 1.0), strict=True):
        penalty = 0.1 * entry["query_flops"] + 0.05 * entry["passage_flops"]
        assert entry["loss"] == pytest.approx(entry["contrastive"] + factor * penalty, rel=1e-4)
        assert entry["passage_flops"] > 0.1
    encoding = read_json(sparse / "m" / "meta.json")["encoding"]
    assert (encoding["pooling"], encoding["similarity"], encoding["normalize"]) == (["splade"], "dot", False)
    assert 'model = SparseEncoder("FOLDER")' in (sparse / "m" / "README.md").read_text()


def test_an_interrupted_training_resumes_to_the_same_weights(data: Path, start: Path, sparse: Path, tmp_path: Path):
    with cut_off_before_step(RetrieverTrainer, 4):
        train(data, start, tmp_path / "m", f"--head sparse {FLOPS}")
    train(data, start, tmp_path / "m", f"--head sparse {FLOPS} --resume")
    whole = load_file(sparse / "m" / "model.safetensors")
    again = load_file(tmp_path / "m" / "model.safetensors")
    assert all(torch.equal(again[name], whole[name]) for name in whole)
    assert read_log(tmp_path / "m") == read_log(sparse / "m")


def test_scores_are_dot_products_of_the_impacts_for_texts_and_stored_queries(
    data: Path, sparse: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    skip_without_lucene()
    index = tmp_path / "index"
    run_command(capfd, "index", sparse / "corpus", "-o", index)
    assert read_json(index / "meta.json")["type"] == "impact"
    run = run_command(capfd, "search", index, data / "queries.jsonl", "-k", "60")
    assert run_command(capfd, "search", index, sparse / "queries", "-k", "60") == run
    texts = {name: read_rows(data / f"{name}.jsonl") for name in ("queries", "corpus")}
    st = pytest.importorskip("sentence_transformers.sparse_encoder")
    theirs = st.SparseEncoder(str(sparse / "m"), device="cpu")
    queries = theirs.encode([row["text"] for row in texts["queries"]]).to_dense().numpy()
    theirs.max_seq_length = 64
    passages = theirs.encode([f"{row['title']} {row['text']}" for row in texts["corpus"]]).to_dense().numpy()
    expected = np.rint(100 * queries) @ np.rint(100 * passages).T
    rows = [line.split() for line in run.splitlines()]
    assert len(rows) == 60 * 60
    for query, _, passage, _, score, _ in rows:
        assert float(score) == pytest.approx(expected[int(query[1:]), int(passage[1:])], rel=2e-3)
    paths = [path for name in ("corpus", "queries") for path in (sparse / name).glob("*.jsonl")]
    impacts = {row["_id"]: row["impacts"] for path in paths for row in read_rows(path)}
    for query, _, passage, _, score, _ in rows[:200]:
        assert float(score) == sum(value * impacts[passage].get(term, 0) for term, value in impacts[query].items())
    printed = run_command(capfd, "search", index, "--query", texts["queries"][0]["text"], "-k", "1")
    assert printed.split()[1] == f"{float(rows[0][4]):.4f}"
    named = ["--queries", data / "queries.jsonl", "--qrels", data / "qrels.tsv", "--corpus", data / "corpus.jsonl"]
    mined = run_command(capfd, "mine-negatives", index, *named, "--negatives", "2", "--depth", "10")
    assert len(mined.splitlines()) == len(texts["queries"])


def test_two_sparse_encoders_load_in_sentence_transformers(data: Path, start: Path, tmp_path: Path):
    st = pytest.importorskip("sentence_transformers.sparse_encoder")
    train(data, start, tmp_path / "m", "--head sparse --set untied=true --max-steps 1")
    theirs = st.SparseEncoder(str(tmp_path / "m"), device="cpu")
    texts = ["rivers engineer", "violins gardens"]
    for role, encode in (("query", theirs.encode_query), ("passage", theirs.encode_document)):
        ours = Embedder(str(tmp_path / "m"), role=role)(texts)
        np.testing.assert_allclose(encode(texts).to_dense().numpy(), ours, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("encode {corpus} --model {sparse}/m --vector-dtype float16 -o {out}", "`vector_dtype` has no effect on"),
        ("encode {corpus} --model {start} --set max_active_dims=3 -o {out}", "`max_active_dims` has no effect on"),
        ("index {sparse}/corpus --type exact -o {out}", "contains sparse embeddings; use `type` impact"),
        ("index {sparse}/corpus --type bm25s -o {out}", "contains sparse embeddings; use `type` impact"),
        ("index {sparse}/queries -o {out}", "contains vectors of queries; give passage embeddings"),
        ("train-retriever {train} --model {sparse}/m", "is a sparse encoder; set `head` sparse"),
        ("train-retriever {train} --model {start} --set query_flops_weight=1", "requires --head sparse"),
        ("train-retriever {train} --model {start} --head sparse --set matryoshka=8", "be combined with --head sparse"),
        ("train-retriever {train} --model {data}/encoder --head sparse", "has no trained masked-LM head"),
    ],
)
def test_what_does_not_fit_a_sparse_or_a_dense_encoder_is_rejected(
    data: Path, start: Path, sparse: Path, tmp_path: Path, call: str, message: str
):
    corpus, out = f"{data}/corpus.jsonl", tmp_path / "out"
    named = (
        f"{data}/examples.jsonl --corpus {corpus} --queries {data}/queries.jsonl --batch-size 8 --negatives 1 -o {out}"
    )
    call = call.format(corpus=corpus, data=data, start=start, sparse=sparse, train=named, out=out)
    with pytest.raises((UsageError, MismatchError), match=re.escape(message)):
        app([*call.split(), "-q"], standalone_mode=False)


def test_invalid_impacts_are_named_by_file_and_line(sparse: Path, tmp_path: Path):
    shutil.copytree(sparse / "corpus", tmp_path / "c")
    shard = tmp_path / "c" / "00001.jsonl"
    lines = shard.read_text().splitlines()
    shard.write_text("\n".join([lines[0], '{"_id": "d41", "impacts": {"river": 0.5}}', *lines[2:]]) + "\n")
    manifest = read_json(tmp_path / "c" / "meta.json")
    for name in ("files", "manifest_digest"):
        manifest.pop(name, None)
    (tmp_path / "c" / "meta.json").write_text(json.dumps(manifest))
    with pytest.raises(RecordError, match=r"00001\.jsonl:2: the impact of 'river' must be an integer, got 0\.5"):
        list(iter_impact_passages(str(tmp_path / "c")))
