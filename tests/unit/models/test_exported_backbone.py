"""Encoders exported to ONNX: the vectors of the PyTorch weights, in an index and its queries."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from drtk.errors import DrtkError, MismatchError
from drtk.models.checkpoint import load_encoder
from drtk.models.config import EncodeSettings
from drtk.models.exported_backbone import _load_onnx
from drtk.retrieval.encode import Embedder
from tests.run_commands import Capture, run_command
from tests.tiny_models import save_tiny_encoder, write_collection

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TEXTS = ["rivers rivering rivered", "engines", "", "violins " * 80]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder with onnx/model.onnx."""
    folder = save_tiny_encoder(tmp_path_factory.mktemp("model") / "m")
    (folder / "onnx").mkdir()
    export(folder, folder / "onnx" / "model.onnx", output="last_hidden_state")
    return folder


def export(folder: Path, path: Path, *, output: str, names: Sequence[str] = INPUTS) -> None:
    class Backbone(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = load_encoder(folder).encoder.backbone

        def forward(
            self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
        ) -> object:
            return self.backbone(input_ids, attention_mask, token_type_ids).last_hidden_state

    axes = {name: {0: "texts", 1: "tokens"} for name in (*names, output)}
    inputs = tuple(torch.ones(2, 5, dtype=torch.long) for _ in names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Backbone(), inputs, str(path), input_names=[*names], output_names=[output], dynamic_axes=axes, dynamo=False
        )


def embed(folder: Path, model_file: str | None) -> np.ndarray:
    return Embedder(str(folder), role="query", settings=EncodeSettings(model_file=model_file), device="cpu")(TEXTS)


def test_onnx_computes_the_vectors_of_the_weights(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    np.testing.assert_allclose(embed(folder, "onnx/model.onnx"), embed(folder, None), atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_onnx_runs_on_the_device_of_the_inputs(folder: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    names = [f"{name}ExecutionProvider" for name in ("Tensorrt", "CUDA", "CPU")]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    create, providers = onnxruntime.InferenceSession, []

    def create_on_cpu(path: Path, providers_given: Sequence[object]) -> object:
        providers.extend(providers_given)
        return create(path, providers=names[-1:])

    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda path, providers: create_on_cpu(path, providers))
    _load_onnx(folder / "onnx" / "model.onnx", torch.device(device))
    assert providers == [(names[1], {"device_id": 1})] * (device != "cpu") + names[-1:]


def test_queries_are_encoded_by_the_file_of_the_index(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    write_collection(tmp_path, 20)
    for name, settings in (("plain", []), ("onnx", ["--set", "model_file=onnx/model.onnx"])):
        run_command(capfd, "encode", "corpus.jsonl", "--model", folder, *settings, "-o", f"{name}-vectors")
        run_command(capfd, "index", f"{name}-vectors", "-o", name)
    runs = [run_command(capfd, "search", name, "queries.jsonl", "-k", "3").split("\n") for name in ("plain", "onnx")]
    assert [line.split()[:3] for line in runs[0] if line] == [line.split()[:3] for line in runs[1] if line]
    with pytest.raises(MismatchError, match="it has another encoder"):
        run_command(capfd, "search", "plain", "onnx", "queries.jsonl")


def test_files_that_cannot_be_run_are_rejected(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(DrtkError, match=r"`model_file` a\.onnx: no such .* file; choose from onnx/model\.onnx"):
        embed(folder, "a.onnx")
    export(folder, folder / "onnx" / "pooled.onnx", output="sentence_embedding")
    with pytest.raises(MismatchError, match="has no output last_hidden_state"):
        embed(folder, "onnx/pooled.onnx")
    (folder / "onnx" / "damaged.onnx").write_bytes(b"x")
    with pytest.raises(DrtkError, match=r"damaged\.onnx: cannot be loaded"):
        embed(folder, "onnx/damaged.onnx")
    (folder / "onnx" / "damaged.xml").write_bytes(b"x")
    pytest.importorskip("openvino")
    with pytest.raises(DrtkError, match=r"damaged\.xml: cannot be loaded: .*; export the model again$"):
        embed(folder, "onnx/damaged.xml")
    smaller = save_tiny_encoder(tmp_path / "smaller", vocab_size=60)
    export(smaller, folder / "onnx" / "smaller.onnx", output="last_hidden_state")
    with pytest.raises(DrtkError, match=r"smaller\.onnx: cannot be run: .*; export the model again$"):
        embed(folder, "onnx/smaller.onnx")
    export(
        folder,
        folder / "onnx" / "positions.onnx",
        output="last_hidden_state",
        names=("input_ids", "attention_mask", "position_ids"),
    )
    with pytest.raises(MismatchError, match="requires the inputs position_ids"):
        embed(folder, "onnx/positions.onnx")
