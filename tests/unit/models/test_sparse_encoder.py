"""Sparse encoders: term weights equal to sentence-transformers, folders of either program, rejected models."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drtk.errors import MismatchError, UsageError
from drtk.models.checkpoint import load_encoder, save_encoder
from drtk.models.config import SPARSE_POOLING, EncodeSettings
from drtk.retrieval.encode import Embedder
from tests.backbone_families import save_random_masked_lm
from tests.run_commands import Capture, run_command
from tests.tiny_models import save_tiny_encoder

sparse = pytest.importorskip("sentence_transformers.sparse_encoder")

TEXTS = ["rivers engineer", "", "violins " * 90, "Gardens MARKETED winterish", "copper-sailor, castle's: 3.14 é 水"]


def save_sparse_encoder(source: Path, folder: Path) -> Path:
    """Save a masked language model as a sparse encoder."""
    lengths = {"query_length": 40, "passage_length": 40}
    save_encoder(load_encoder(source, overrides={"pooling": SPARSE_POOLING, "similarity": "dot"} | lengths), folder)
    return folder


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lm") / "m"
    save_random_masked_lm("bert", folder)
    return folder


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_saved_sparse_encoder_has_equal_weights_in_sentence_transformers(family: str, tmp_path: Path):
    save_random_masked_lm(family, tmp_path / "lm")
    folder = save_sparse_encoder(tmp_path / "lm", tmp_path / "m")
    theirs = sparse.SparseEncoder(str(folder), device="cpu")
    expected = theirs.encode(TEXTS).to_dense().numpy()
    ours = Embedder(str(folder), role="passage")
    assert (ours.is_sparse, ours.similarity, ours.dimension) == (True, "dot", expected.shape[1])
    assert 0 < (expected > 0).mean() < 1
    np.testing.assert_allclose(ours(TEXTS), expected, atol=1e-5)
    assert theirs.similarity_fn_name == "dot"


def test_model_saved_by_sentence_transformers_has_equal_weights(masked_lm: Path, tmp_path: Path):
    modules = sparse.modules
    first = modules.Transformer(str(masked_lm), transformer_task="fill-mask", max_seq_length=12)
    theirs = sparse.SparseEncoder(modules=[first, modules.SpladePooling("max")], device="cpu")
    theirs.save(str(tmp_path / "m"))
    ours = Embedder(str(tmp_path / "m"), role="query")
    np.testing.assert_allclose(ours(TEXTS), theirs.encode(TEXTS).to_dense().numpy(), atol=1e-5)
    assert (ours.similarity, ours.encoding.query_length) == ("dot", 12)
    path = tmp_path / "m" / "1_SpladePooling" / "config.json"
    for name, value in (("pooling_strategy", "sum"), ("activation_function", "log1p_relu")):
        path.write_text(json.dumps({name: value}))
        with pytest.raises(MismatchError, match=f"{name} {value} is not supported"):
            Embedder(str(tmp_path / "m"), role="query")


def test_a_plain_masked_lm_is_sparse_if_told_so(masked_lm: Path):
    ours = Embedder(str(masked_lm), role="query", settings=EncodeSettings(pooling="splade"))
    theirs = sparse.SparseEncoder(str(masked_lm), device="cpu")
    np.testing.assert_allclose(ours(TEXTS), theirs.encode(TEXTS).to_dense().numpy(), atol=1e-5)
    half = EncodeSettings(pooling="splade", precision="bfloat16")
    np.testing.assert_allclose(Embedder(str(masked_lm), role="query", settings=half)(TEXTS), ours(TEXTS), atol=0.05)


def test_impacts_are_rounded_hundredths_of_the_largest_weights(masked_lm: Path):
    ours = Embedder(str(masked_lm), role="query", settings=EncodeSettings(pooling="splade"))
    pieces = ours._tokenizer.convert_ids_to_tokens(range(ours.dimension))
    impacts = ours.compute_impacts(ours.tokenize(TEXTS[:1]))[0]
    weights = dict(zip(pieces, ours(TEXTS[:1])[0].tolist(), strict=True))
    assert impacts == {term: round(100 * weight) for term, weight in weights.items() if round(100 * weight)}
    assert list(impacts.values()) == sorted(impacts.values(), reverse=True)
    few = Embedder(str(masked_lm), role="query", settings=EncodeSettings(pooling="splade", max_active_dims=3))
    assert few.compute_impacts(few.tokenize(TEXTS[:1]))[0] == dict(list(impacts.items())[:3])


def test_a_model_without_a_trained_head_is_rejected(tmp_path: Path):
    folder = save_tiny_encoder(tmp_path / "m")
    with pytest.raises(MismatchError, match="has no trained masked-LM head; train one with `drtk pretrain`"):
        load_encoder(folder, overrides={"pooling": SPARSE_POOLING})
    with pytest.raises(UsageError, match="unknown pooling 'splade'"):
        load_encoder(folder, overrides={"pooling": "cls+splade"})


def test_gradients_reach_the_head_and_the_encoder(masked_lm: Path):
    model = load_encoder(masked_lm, overrides={"pooling": SPARSE_POOLING})
    inputs: Any = model.tokenizer(TEXTS[:1], return_tensors="pt")
    model.encoder(inputs["input_ids"], inputs["attention_mask"]).sum().backward()
    for name in ("head.bias", "head.dense.weight", "backbone.embeddings.word_embeddings.weight"):
        assert torch.count_nonzero(model.encoder.get_parameter(name).grad) > 0, name


def test_a_sparse_encoder_is_not_exported(masked_lm: Path, tmp_path: Path, capfd: Capture) -> None:
    model = save_sparse_encoder(masked_lm, tmp_path / "sparse")
    with pytest.raises(MismatchError, match="is a sparse encoder, which cannot be exported"):
        run_command(capfd, "export", model, "-o", tmp_path / "out")
