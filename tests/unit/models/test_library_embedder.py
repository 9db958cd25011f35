"""Encoders with modules that drtk does not implement: run by sentence-transformers."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from drtk.errors import MismatchError, UsageError
from drtk.models.config import EncodeSettings
from drtk.models.library_embedder import SentenceTransformersEmbedder, needs_sentence_transformers
from drtk.retrieval.encode import make_embedder
from drtk.runtime.progress import silence_transformers
from drtk.runtime.remote_code import TRUST_VARIABLE
from tests.run_commands import Capture, run_command
from tests.tiny_models import make_collection, save_tiny_encoder, write_collection

library = pytest.importorskip("sentence_transformers")
parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
TEXTS = [row["text"] for row in make_collection(20)[1]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model of static embeddings with prompts."""
    folder = tmp_path_factory.mktemp("static")
    tokenizer = AutoTokenizer.from_pretrained(save_tiny_encoder(folder / "bert"))
    weights = np.random.default_rng(1).normal(size=(len(tokenizer), 16)).astype(np.float32)
    with silence_transformers():
        modules = [parts.StaticEmbedding(tokenizer.backend_tokenizer, embedding_weights=weights)]
        model = library.SentenceTransformer(modules=modules, prompts={"query": "find rivers: ", "document": ""})
        model.save(str(folder / "m"))
    return folder / "m"


def make(folder: Path, role: str, **settings: object) -> SentenceTransformersEmbedder:
    embedder = make_embedder(str(folder), role=role, settings=EncodeSettings(**settings), device="cpu")  # type: ignore[arg-type]
    assert isinstance(embedder, SentenceTransformersEmbedder)
    return embedder


def test_vectors_are_those_of_sentence_transformers(folder: Path, tmp_path: Path) -> None:
    model = library.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(make(folder, "query")(TEXTS), model.encode_query(TEXTS), atol=1e-6)
    np.testing.assert_allclose(make(folder, "passage")(TEXTS), model.encode_document(TEXTS), atol=1e-6)
    short = make(folder, "query", prompt="", normalize=True, dimensions=5)
    expected = model.encode(TEXTS, truncate_dim=5, normalize_embeddings=True)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(short))(TEXTS), expected, atol=1e-6)
    assert not needs_sentence_transformers(str(save_tiny_encoder(tmp_path / "m")))
    with pytest.raises(UsageError, match="`title` segment: not supported"):
        make(folder, "passage", title="segment")
    with pytest.raises(UsageError, match="`pooling` has no effect"):
        make(folder, "query", pooling="mean")


def test_the_digest_of_a_model_includes_its_code_and_weights(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "m")
    embedder = make(tmp_path / "m", "query")
    digests = {embedder.identity["digest"]}
    for name in ("a.py", "a.onnx", "a.npz"):
        (tmp_path / "m" / name).touch()
        digests.add(embedder.identity["digest"])
    assert len(digests) == 4


def test_the_network_is_not_kept_until_it_is_needed(folder: Path) -> None:
    embedder = make_embedder(str(folder), role="query", settings=EncodeSettings(), device="cpu", load_weights=False)
    assert isinstance(embedder, SentenceTransformersEmbedder)
    assert embedder._network is None
    np.testing.assert_array_equal(embedder(TEXTS), make(folder, "query")(TEXTS))


def test_own_modules_need_trust(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder, tmp_path / "m")
    modules = (tmp_path / "m" / "modules.json").read_text()
    kind = json.loads(modules)[0]["type"]
    (tmp_path / "m" / "modules.json").write_text(modules.replace(kind, "own_module.Own"))
    package, _, name = kind.rpartition(".")
    (tmp_path / "m" / "own_module.py").write_text(f"from {package} import {name}\n\nclass Own({name}):\n    pass\n")
    with pytest.raises(MismatchError, match=r"requires remote code \(own_module\.Own\); read the code"):
        make(tmp_path / "m", "query")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setenv(TRUST_VARIABLE, "1")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    np.testing.assert_array_equal(make(tmp_path / "m", "query")(TEXTS), make(folder, "query")(TEXTS))


def test_an_index_encodes_its_queries_with_the_library(folder: Path, tmp_path: Path, capfd: Capture) -> None:
    corpus, queries, _ = write_collection(tmp_path, 20)
    run_command(capfd, "encode", corpus, "--model", folder, "--set", "dimensions=8", "-o", tmp_path / "v")
    run_command(capfd, "index", tmp_path / "v", "-o", tmp_path / "i")
    lines = [line.split() for line in run_command(capfd, "search", tmp_path / "i", queries, "-k", "1").splitlines()]
    passages = make_collection(20)[0]
    model = library.SentenceTransformer(str(folder), device="cpu", truncate_dim=8)
    documents = model.encode_document([f"{row['title']} {row['text']}" for row in passages])
    best = torch.max(model.similarity(model.encode_query(TEXTS), documents), dim=1)
    assert [line[2] for line in lines] == [passages[int(index)]["_id"] for index in best.indices]
    assert [float(line[4]) for line in lines] == pytest.approx(best.values.tolist(), abs=1e-5)
