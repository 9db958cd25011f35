"""drtk export, and encoders in ONNX and OpenVINO files: the vectors of the weights, in an index and its queries."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import DistilBertConfig, DistilBertModel

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError
from drtk.models import export
from drtk.models.checkpoint import load_encoder, save_pretrained_model
from drtk.models.config import EncodeSettings
from drtk.models.exported_backbone import _load_onnx
from drtk.retrieval.encode import Embedder
from drtk.runtime.integrity import read_json
from tests.run_commands import Capture, run_command
from tests.tiny_models import save_tiny_encoder, write_collection
from tests.unit.evaluation.test_dev_evaluation import write_collection as write_dev_collection

onnx = pytest.importorskip("onnx", reason="the export extra is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the export extra is not installed")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TEXTS = ["rivers rivering rivered", "engines", "", "violins " * 80]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_encoder(tmp_path_factory.mktemp("encoder") / "m")


@pytest.fixture(scope="module")
def folder(model: Path) -> Path:
    """Return a model folder with onnx/model.onnx."""
    output = model.parent / "out"
    app(["export", str(model), "--quantize", "none", "-o", str(output)], standalone_mode=False)
    return output


def embed(folder: Path, model_file: str | None = None) -> np.ndarray:
    return Embedder(str(folder), role="query", settings=EncodeSettings(model_file=model_file), device="cpu")(TEXTS)


def test_float32_files_compute_the_vectors(folder: Path, model: Path, tmp_path: Path, capfd: Capture) -> None:
    np.testing.assert_allclose(embed(folder), embed(model), atol=1e-6)
    np.testing.assert_allclose(embed(folder, "onnx/model.onnx"), embed(model), atol=1e-5)
    pytest.importorskip("openvino")
    output, file = tmp_path / "out", "openvino/openvino_model.xml"
    run_command(capfd, "export", model, "--format", "openvino", "--quantize", "none", "-o", output)
    np.testing.assert_allclose(embed(output, file), embed(model), atol=1e-5)
    assert {path.stem for path in (output / file).parent.iterdir()} == {"openvino_model"}


def test_a_backbone_without_segments_is_exported(model: Path, tmp_path: Path, capfd: Capture) -> None:
    tokenizer = load_encoder(model).tokenizer  # it returns segments
    config = DistilBertConfig(vocab_size=len(tokenizer), dim=32, n_layers=1, n_heads=4, hidden_dim=32)
    save_pretrained_model(DistilBertModel(config), tokenizer, tmp_path / "model")
    run_command(capfd, "export", tmp_path / "model", "--quantize", "none", "-o", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out" / "onnx").iterdir()] == ["model.onnx"]
    np.testing.assert_allclose(embed(tmp_path / "out", "onnx/model.onnx"), embed(tmp_path / "model"), atol=1e-5)


@pytest.mark.parametrize(
    ("file", "tolerance"),
    [("onnx/model_qint8.onnx", 0.1), ("openvino/openvino_model_qint8_quantized.xml", 0.02)],
)
def test_int8_is_close(file: str, tolerance: float, model: Path, tmp_path: Path, capfd: Capture) -> None:
    pytest.importorskip(f"{Path(file).parent}")
    collection = write_dev_collection(tmp_path / "dev")
    run_command(capfd, "export", model, "--format", Path(file).parent, "--dev", collection, "-o", tmp_path / "out")
    vectors, quantized = embed(model), embed(tmp_path / "out", file)
    difference = np.abs(vectors - quantized).max()
    assert 0 < difference < tolerance * np.abs(vectors).max()
    recorded = read_json(tmp_path / "out" / "meta.json")["export"]
    assert recorded["file"] == file
    assert f"--set model_file={file}" in (tmp_path / "out" / "README.md").read_text()
    assert set(recorded["figures"]) == {"weights", file}
    for figures in recorded["figures"].values():
        low, high = figures["interval"]
        assert low <= figures["nDCG@10"] <= high


def test_rejected_models(model: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for role in ("query", "passage"):
        save_tiny_encoder(tmp_path / "untied" / role)
    with pytest.raises(MismatchError, match=r"has two encoders; export .*/query and .*/passage"):
        run_command(capfd, "export", tmp_path / "untied", "-o", tmp_path / "out")
    monkeypatch.setattr(export, "_TOLERANCE", 0.0)
    with pytest.raises(DrtkError, match=r"the hidden states differ by .* from the original ones"):
        run_command(capfd, "export", model, "-o", tmp_path / "out")


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_onnx_runs_on_the_device_of_the_inputs(folder: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{name}ExecutionProvider" for name in ("Tensorrt", "CUDA", "CPU")]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    create, providers_given = onnxruntime.InferenceSession, []

    def create_on_cpu(path: Path, providers: Sequence[object]) -> object:
        providers_given.extend(providers)
        return create(path, providers=names[-1:])

    monkeypatch.setattr(onnxruntime, "InferenceSession", create_on_cpu)
    _load_onnx(folder / "onnx" / "model.onnx", torch.device(device))
    assert providers_given == [(names[1], {"device_id": 1})] * (device != "cpu") + names[-1:]


def test_queries_are_encoded_by_the_file_of_the_index(folder: Path, tmp_path: Path, capfd: Capture) -> None:
    corpus, queries, _ = write_collection(tmp_path, 20)
    for name, settings in (("plain", []), ("onnx", ["--set", "model_file=onnx/model.onnx"])):
        run_command(capfd, "encode", corpus, "--model", folder, *settings, "-o", tmp_path / name)
        run_command(capfd, "index", tmp_path / name, "-o", tmp_path / f"{name}-index")
    # a query encoder that ignores the file differs from the encoder of the index
    assert len(run_command(capfd, "search", tmp_path / "onnx-index", queries, "-k", "3").splitlines()) == 60
    with pytest.raises(MismatchError, match="it has another encoder"):
        run_command(capfd, "search", tmp_path / "plain-index", tmp_path / "onnx-index", queries)


def save_onnx(path: Path, *, inputs: Sequence[str] = INPUTS, output: str = "last_hidden_state") -> None:
    """Save a model that looks token ids up in a table of a single row."""
    helper, integer, real = onnx.helper, onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], [output])],
        "lookup",
        [helper.make_tensor_value_info(name, integer, ["texts", "tokens"]) for name in inputs],
        [helper.make_tensor_value_info(output, real, ["texts", "tokens", 32])],
        [helper.make_tensor("table", real, [1, 32], [0.0] * 32)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_files_that_cannot_be_run_are_rejected(folder: Path) -> None:
    pytest.importorskip("openvino")
    files = folder / "onnx"
    save_onnx(files / "small.onnx")
    save_onnx(files / "pooled.onnx", output="sentence_embedding")
    save_onnx(files / "positions.onnx", inputs=("input_ids", "attention_mask", "position_ids"))
    for name in ("damaged.onnx", "damaged.xml"):
        (files / name).write_bytes(b"x")
    for name, message in (
        ("a.onnx", r"`model_file` onnx/a\.onnx: no such .* file; choose from onnx/.*, onnx/model\.onnx"),
        ("pooled.onnx", "has no output last_hidden_state"),
        ("damaged.onnx", r"damaged\.onnx: cannot be loaded"),
        ("damaged.xml", r"damaged\.xml: cannot be loaded: .*; export the model again$"),
        ("small.onnx", r"small\.onnx: cannot be run: .*; export the model again$"),
        ("positions.onnx", "requires the inputs position_ids"),
    ):
        with pytest.raises(DrtkError, match=message):
            embed(folder, f"onnx/{name}")
