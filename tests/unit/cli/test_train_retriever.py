"""drtk train-retriever: the model folder, losses and variants, and rejected options. See also test_training.py."""

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError
from drtk.retrieval.encode import Embedder
from drtk.runtime.integrity import read_json
from tests.expansion_collection import read_rows, write_rows
from tests.run_commands import read_log
from tests.tiny_models import load_weights, save_tiny_encoder

SHORT = ("--query-length", "16", "--passage-length", "40")


def train(data: Path, output: Path, *more: str, examples: str | Path = "examples.jsonl") -> dict[str, Any]:
    call = ["train-retriever", str(data / examples), "--corpus", f"{data}/corpus.jsonl", "-o", str(output), "-q"]
    call += ["--queries", f"{data}/queries.jsonl", "--model", f"{data}/encoder", "--device", "cpu"]
    call += ["--batch-size", "8", "--negatives", "2", "--learning-rate", "1e-3", "--set", "temperature=0.1"]
    app([*call, *shlex.split(" ".join(more))], standalone_mode=False)
    return read_json(output / "meta.json")


def test_the_folder_records_encoding_settings_and_has_no_pickle(data, tmp_path):
    more = "--max-steps 3 --query-length 12 --passage-length 30 --set title=none --set similarity=dot"
    manifest = train(data, tmp_path / "m", more, "--set 'passage_prompt=castled ' --set train_fraction=0.2")
    encoding = manifest["encoding"]
    assert (manifest["kind"], manifest["counts"]["steps"], manifest["counts"]["examples"]) == ("model", 3, 12)
    assert (encoding["query_length"], encoding["passage_length"], encoding["title"]) == (12, 30, "none")
    assert (encoding["similarity"], encoding["passage_prompt"], encoding["pooling"]) == ("dot", "castled ", ["mean"])
    suffixes = {path.suffix for path in (tmp_path / "m").rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".jsonl", ".md", ".safetensors"}
    assert [entry["step"] for entry in read_log(tmp_path / "m")] == [3]  # the last entry may be of fewer steps


def test_examples_and_queries_may_be_data_sets_of_the_hub(data, tmp_path, monkeypatch):
    library = SimpleNamespace(load_dataset=lambda name, *_, **__: read_rows(data / f"{name}.jsonl"))
    monkeypatch.setattr("drtk.data.tables.require_library", lambda *_: library)
    named = ["--corpus", f"{data}/corpus.jsonl", "--model", f"{data}/encoder", "-o", str(tmp_path / "m"), "-q"]
    call = ["train-retriever", "hf:examples:of:train", "--queries", "hf:queries:of:train", "--batch-size", "8"]
    app([*call, *named, "--max-steps", "1", "--negatives", "0"], standalone_mode=False)


def test_two_encoders_load_in_sentence_transformers_alone_and_together(data, tmp_path):
    st = pytest.importorskip("sentence_transformers")
    folder = tmp_path / "m"
    prompts = "--set 'query_prompt=castled ' --set 'passage_prompt=marketed '"
    manifest = train(data, folder, "--max-steps 4 --set untied=true", prompts)
    assert manifest["towers"] == ["passage", "query"]
    texts = ["rivers engineer", "violins gardens", "copper sailor"]
    together = st.SentenceTransformer(str(folder), device="cpu")
    vectors = {"query": together.encode_query(texts), "passage": together.encode_document(texts)}
    for role, prompt in (("query", "query"), ("passage", "document")):
        ours = Embedder(str(folder), role=role)(texts)
        alone = st.SentenceTransformer(str(folder / role), device="cpu")
        np.testing.assert_allclose(alone.encode(texts, prompt_name=prompt), ours, atol=1e-5)
        np.testing.assert_allclose(vectors[role], ours, atol=1e-5)
    other = st.SentenceTransformer(str(folder / "query"), device="cpu").encode(texts, prompt_name="document")
    assert np.abs(vectors["passage"] - other).max() > 1e-4  # it is the other encoder
    assert together.similarity_fn_name == manifest["encoding"]["similarity"]
    manifest = train(data, tmp_path / "n", "--max-steps", "1", "--negatives", "1", "--model", str(folder))
    assert manifest["towers"] == ["passage", "query"]  # training continues with both


def test_training_lowers_the_loss_and_raises_the_dev_measure(data: Path, tmp_path: Path):
    dev = f"--dev {data}/dev --set dev_queries=20 --set dev_pool=50 --eval-steps 10"
    manifest = train(data, tmp_path / "m", "--max-steps 20 --set log_steps=10 --learning-rate 5e-3", dev)
    log = read_log(tmp_path / "m")
    figures = {entry["step"]: entry["dev_nDCG@10"] for entry in log if "dev_nDCG@10" in entry}
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert losses[-1] < losses[0]
    assert manifest["best"]["dev_nDCG@10"] == max(figures.values()) > figures[0] + 0.02


def test_a_student_learns_from_its_teacher(data, tmp_path):
    scores = {"positives": [4.0], "negatives": [2.0, 1.0, 0.0]}
    rows = [row | {"scores": scores} for row in read_rows(data / "examples.jsonl")]
    more = ("--preset", "simlm-distill", "--max-steps", "20", "--set", "warmup=0", "--set", "log_steps=5", *SHORT)
    train(data, tmp_path / "m", *more, examples=write_rows(tmp_path / "scored.jsonl", rows))
    log = read_log(tmp_path / "m")
    assert log[0]["loss"] == pytest.approx(log[0]["distillation"] + 0.2 * log[0]["contrastive"], rel=1e-3)
    assert log[-1]["distillation"] < 0.8 * log[0]["distillation"]
    with pytest.raises(DrtkError, match=r"examples.jsonl:1: query 'q0' has no score for 'd0'; add teacher scores"):
        train(data, tmp_path / "n", "--loss", "margin-mse")


def test_adapters_are_merged_into_a_plain_model_folder(data, tmp_path):
    pytest.importorskip("peft")
    train(data, tmp_path / "m", "--max-steps 3 --set lora=2 --set lora_target=query --set warmup=0")
    actual, start = load_weights(tmp_path / "m"), load_weights(data / "encoder")
    assert actual.keys() == start.keys()
    changed = {name for name in actual if bool((actual[name] != start[name]).any())}
    assert changed == {name for name in start if name.endswith("attention.self.query.weight")}


def test_diffcse_is_an_auxiliary_loss_and_is_not_saved(data, tmp_path):
    from drtk.models.checkpoint import load_masked_lm, save_lm_head

    generator = save_tiny_encoder(tmp_path / "g", seed=4, layers=1)
    save_lm_head(load_masked_lm(generator)[1], generator)
    more = ("--preset", "dpr-nq-roberta-shared", "--set", "aux=diffcse", "--set", f"aux_generator={generator}")
    train(data, tmp_path / "m", *more, *SHORT, "--max-steps", "2", "--set", "log_steps=1")
    for entry in read_log(tmp_path / "m"):
        parts = entry["diffcse_query"] + entry["diffcse_passage"]
        assert entry["loss"] == pytest.approx(entry["contrastive"] + 0.005 * parts, rel=1e-4)
    assert load_weights(tmp_path / "m").keys() == load_weights(data / "encoder").keys()
