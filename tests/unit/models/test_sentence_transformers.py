"""Vectors equal sentence-transformers, for folders written by either program and for real weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from drtk.errors import DrtkError, MismatchError
from drtk.models.checkpoint import load_encoder, save_encoder
from drtk.models.config import EncodeSettings
from drtk.records import Passage
from drtk.retrieval.encode import Embedder
from tests.tiny_models import find_minilm, save_tiny_encoder

st = pytest.importorskip("sentence_transformers")
parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")

TEXTS = [
    "rivers engineer", "", "violins " * 90, "Gardens MARKETED winterish", "copper-sailor, castle's: 3.14 é ß 水 🙂",
    "rivers\tenginer\n\nsailors", "marketed", "planets planeter planetal gardening",
]  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save an encoder without pooling settings."""
    folder = save_tiny_encoder(tmp_path_factory.mktemp("plain") / "m", lowercase=False)
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (folder / name).unlink()
    return folder


def save_and_load(
    plain: Path, folder: Path, *modules: Any, length: int | None = None, lower: bool = False, **given: Any
) -> Any:
    """Save a SentenceTransformer of the plain encoder and `modules`; load it again."""
    first = parts.Transformer(str(plain), max_seq_length=length, do_lower_case=lower)
    st.SentenceTransformer(modules=[first, *modules], device="cpu", **given).save(str(folder))
    return st.SentenceTransformer(str(folder), device="cpu")


@pytest.mark.parametrize("options", [{}, {"length": 9, "lower": True}])
def test_poolings_length_and_lowercasing(plain: Path, tmp_path: Path, options: dict[str, Any]):
    modes = ("weightedmean", "lasttoken", "mean_sqrt_len_tokens", "mean")  # others are below
    theirs = save_and_load(plain, tmp_path / "m", parts.Pooling(32, modes), **options)
    ours = Embedder(str(tmp_path / "m"), role="passage")
    np.testing.assert_allclose(ours(TEXTS), theirs.encode(TEXTS), atol=1e-5)


def test_two_poolings_dense_layers_and_normalization(plain: Path, tmp_path: Path):
    first = parts.Dense(64, 24, activation_function=torch.nn.Tanh(), use_residual=True)
    second = parts.Dense(24, 24, bias=False, activation_function=torch.nn.Identity(), use_residual=False)
    theirs = save_and_load(plain, tmp_path / "m", parts.Pooling(32, ("mean", "cls")), first, second, parts.Normalize())
    ours = Embedder(str(tmp_path / "m"), role="passage")
    found = ours(TEXTS)
    assert ours.dimension == 24
    assert ours.normalized
    np.testing.assert_allclose(found, theirs.encode(TEXTS), atol=1e-5)
    again = tmp_path / "again"
    save_encoder(load_encoder(tmp_path / "m"), again)
    np.testing.assert_allclose(st.SentenceTransformer(str(again), device="cpu").encode(TEXTS), found, atol=1e-5)
    np.testing.assert_array_equal(Embedder(str(again), role="passage")(TEXTS), found)


@pytest.mark.parametrize(("include", "name"), [(False, "document"), (True, "passage")])
def test_prompts_of_both_roles(plain: Path, tmp_path: Path, include: bool, name: str):
    prompts = {"query": "rivers engine: ", name: "castled "}
    pooling = parts.Pooling(32, "mean", include_prompt=include)
    theirs = save_and_load(plain, tmp_path / "m", pooling, prompts=prompts)
    for role, prompt in (("query", "query"), ("passage", name)):
        ours = Embedder(str(tmp_path / "m"), role=role)
        np.testing.assert_allclose(ours(TEXTS), theirs.encode(TEXTS, prompt_name=prompt), atol=1e-5)
        assert np.abs(ours(TEXTS) - theirs.encode(TEXTS, prompt="")).max() > 1e-3  # the prompt does something


def test_prompts_of_other_names_are_not_used_but_named(plain: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    prompts = {"web_search_query": "rivers engine: ", "sts_query": "castled "}  # as in E5-Mistral
    theirs = save_and_load(plain, tmp_path / "m", parts.Pooling(32, "mean"), prompts=prompts)
    with caplog.at_level("WARNING", "drtk"):
        ours = Embedder(str(tmp_path / "m"), role="query")
    np.testing.assert_allclose(ours(TEXTS), theirs.encode_query(TEXTS), atol=1e-5)
    assert "queries get no prompt; to use sts_query or web_search_query" in caplog.text
    caplog.clear()
    Embedder(str(tmp_path / "m"), role="query", settings=EncodeSettings(prompt="x "))
    Embedder(str(tmp_path / "m"), role="passage")
    assert not caplog.text


def test_the_old_layout_is_read_too(plain: Path, tmp_path: Path):
    save_and_load(plain, tmp_path / "m", parts.Pooling(32, ("max", "mean")), parts.Normalize())
    old = {"word_embedding_dimension": 32, "pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}
    (tmp_path / "m" / "1_Pooling" / "config.json").write_text(json.dumps(old | {"pooling_mode_cls_token": False}))
    settings = {"max_seq_length": 12, "do_lower_case": False}
    (tmp_path / "m" / "sentence_bert_config.json").write_text(json.dumps(settings))
    theirs = st.SentenceTransformer(str(tmp_path / "m"), device="cpu")
    assert theirs.max_seq_length == 12
    np.testing.assert_allclose(Embedder(str(tmp_path / "m"), role="query")(TEXTS), theirs.encode(TEXTS), atol=1e-5)


def test_truncated_vectors_and_similarity(plain: Path, tmp_path: Path):
    pooling = parts.Pooling(32, "cls")
    theirs = save_and_load(plain, tmp_path / "m", pooling, truncate_dim=5, similarity_fn_name="dot")
    ours = Embedder(str(tmp_path / "m"), role="query")
    assert (ours.dimension, ours.similarity) == (5, "dot")
    np.testing.assert_allclose(ours(TEXTS), theirs.encode(TEXTS), atol=1e-5)


def test_a_plain_encoder_has_cls_pooling_and_dot_product_unless_told_otherwise(plain: Path):
    model, tokenizer = AutoModel.from_pretrained(plain).eval(), AutoTokenizer.from_pretrained(plain)
    inputs = tokenizer(TEXTS, padding=True, truncation=True, max_length=64, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**inputs).last_hidden_state
    ours = Embedder(str(plain), role="passage")
    assert (ours.similarity, ours.normalized) == ("dot", False)
    np.testing.assert_allclose(ours(TEXTS), hidden[:, 0].numpy(), atol=1e-5)
    chosen = EncodeSettings(pooling="mean", normalize=True, similarity="cosine")
    other = Embedder(str(plain), role="passage", settings=chosen)
    mask = inputs["attention_mask"].unsqueeze(-1)
    mean = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    np.testing.assert_allclose(other(TEXTS), mean.numpy(), atol=1e-5)
    assert other.similarity == "cosine"
    assert other.identity["digest"] != ours.identity["digest"]


def test_saved_encoders_load_in_sentence_transformers_and_transformers(tmp_path: Path):
    folder = save_tiny_encoder(tmp_path / "m", pooling="cls+max", normalize=True)
    ours = Embedder(str(folder), role="passage")(TEXTS)
    theirs = st.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS), ours, atol=1e-5)
    assert theirs.max_seq_length == 64
    assert theirs.similarity_fn_name == "cosine"
    backbone, info = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert backbone.config.hidden_size == 32
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not [path for path in folder.rglob("*") if path.suffix in (".bin", ".pt", ".pkl", ".pth")]


def test_real_weights_give_equal_vectors():
    folder = find_minilm()
    theirs = st.SentenceTransformer(folder, device="cpu")
    texts = [*TEXTS, "What is the capital of France?", "a long text that goes on and on " * 60, "中文文本", "x" * 300]
    ours = Embedder(folder, role="passage")
    found = ours(texts)
    np.testing.assert_allclose(found, theirs.encode(texts), atol=1e-5)
    assert (ours.dimension, ours.similarity, ours.normalized) == (384, "cosine", True)
    titled = ours([Passage("a", "It lies on the Seine.", "Paris"), Passage("b", "No title.")])
    np.testing.assert_allclose(titled, theirs.encode(["Paris It lies on the Seine.", "No title."]), atol=1e-5)


def test_damaged_and_foreign_folders_are_rejected_in_one_line(plain: Path, tmp_path: Path):
    save_and_load(plain, tmp_path / "norm", parts.Pooling(32, "cls"), parts.LayerNorm(32))
    with pytest.raises(MismatchError, match=r"LayerNorm is not supported"):
        Embedder(str(tmp_path / "norm"), role="query")
    with pytest.raises(MismatchError, match="not a model folder"):
        load_encoder(tmp_path)
    folder = save_tiny_encoder(tmp_path / "m")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(DrtkError, match="cannot be loaded as an encoder") as fault:
        load_encoder(folder)
    assert "\n" not in str(fault.value)
