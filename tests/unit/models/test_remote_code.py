"""Models with Python code of their own: rejected by default, loaded, trained and saved with `drtk --trust-remote-code`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from drtk.errors import MismatchError
from drtk.models.checkpoint import embed_texts, load_encoder
from drtk.models.cross_encoder import load_cross_encoder
from drtk.models.seq2seq import load_generation_model
from drtk.runtime.remote_code import TRUST_VARIABLE
from tests.run_commands import Capture, run_command
from tests.tiny_models import (
    add_remote_code,
    save_tiny_cross_encoder,
    save_tiny_encoder,
    save_tiny_generator,
    write_collection,
)

TEXTS = ["rivers rivering", "engines"]


@pytest.fixture
def trust(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setenv(TRUST_VARIABLE, "1")
    monkeypatch.syspath_prepend(tmp_path / "modules")


@pytest.mark.usefixtures("trust")
def test_remote_code_computes_the_vectors(tmp_path: Path) -> None:
    plain = embed_texts(load_encoder(save_tiny_encoder(tmp_path / "plain")), TEXTS, role="query")
    own = embed_texts(load_encoder(add_remote_code(save_tiny_encoder(tmp_path / "own"))), TEXTS, role="query")
    np.testing.assert_allclose(own, 2 * plain, rtol=1e-5)


@pytest.mark.usefixtures("trust")
def test_cross_encoders_and_generators_load(tmp_path: Path) -> None:
    reranker = load_cross_encoder(add_remote_code(save_tiny_cross_encoder(tmp_path / "reranker")))
    assert type(reranker.model).__name__ == "TwiceClassifier"
    generator = load_generation_model(add_remote_code(save_tiny_generator(tmp_path / "writer", "gpt2")))
    assert type(generator.model).__name__ == "TwiceGPT2"


@pytest.mark.usefixtures("trust")
def test_a_trained_model_contains_the_code(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    write_collection(folder, 20)
    add_remote_code(save_tiny_encoder(folder / "m"))
    monkeypatch.delenv(TRUST_VARIABLE)
    files = ["--corpus", "corpus.jsonl", "--queries", "queries.jsonl"]
    call = [
        "train-retriever",
        "examples.jsonl",
        *files,
        "--model",
        "m",
        "--max-steps",
        "1",
        "--batch-size",
        "4",
        "-o",
        "out",
    ]
    with pytest.raises(MismatchError, match=r"give `trust_remote_code` \(before the command\)"):
        run_command(capfd, *call)
    run_command(capfd, "--trust-remote-code", *call)
    run_command(capfd, "encode", "corpus.jsonl", "--model", "out", "-o", "vectors")
    monkeypatch.delenv(TRUST_VARIABLE)
    with pytest.raises(MismatchError, match="requires remote code"):
        load_encoder(folder / "out")
