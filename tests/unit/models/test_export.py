"""drtk export: the vectors of the ONNX and OpenVINO files, and the figures before and after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import DistilBertConfig, DistilBertModel

from drtk.errors import DrtkError, MismatchError
from drtk.models import export
from drtk.models.checkpoint import load_encoder, save_pretrained_model
from drtk.models.config import EncodeSettings
from drtk.retrieval.encode import Embedder
from drtk.runtime.integrity import read_json
from tests.run_commands import Capture, run_command
from tests.tiny_models import save_tiny_encoder
from tests.unit.evaluation.test_dev_evaluation import write_collection

pytest.importorskip("onnx", reason="the export extra is not installed")
pytest.importorskip("onnxruntime", reason="the export extra is not installed")
TEXTS = ["rivers rivering rivered", "engines", "violins " * 40]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tiny_encoder(tmp_path / "model")


def embed(folder: Path, model_file: str | None = None) -> np.ndarray:
    return Embedder(str(folder), role="query", settings=EncodeSettings(model_file=model_file), device="cpu")(TEXTS)


@pytest.mark.parametrize("file", ["onnx/model.onnx", "openvino/openvino_model.xml"])
def test_the_float32_file_computes_the_vectors_of_the_weights(
    file: str, model: Path, tmp_path: Path, capfd: Capture
) -> None:
    pytest.importorskip(f"{Path(file).parent}")
    run_command(capfd, "export", model, "--format", Path(file).parent, "--quantize", "none", "-o", tmp_path / "out")
    np.testing.assert_allclose(embed(tmp_path / "out"), embed(model), atol=1e-6)
    np.testing.assert_allclose(embed(tmp_path / "out", file), embed(model), atol=1e-5)
    assert {path.stem for path in (tmp_path / "out" / file).parent.iterdir()} == {Path(file).stem}


def test_a_backbone_without_segments_is_exported(tmp_path: Path, capfd: Capture) -> None:
    model = load_encoder(save_tiny_encoder(tmp_path / "bert"))  # its tokenizer returns segments
    size: dict[str, Any] = {
        "vocab_size": len(model.tokenizer),
        "dim": 32,
        "n_layers": 1,
        "n_heads": 4,
        "hidden_dim": 32,
    }
    save_pretrained_model(DistilBertModel(DistilBertConfig(**size)), model.tokenizer, tmp_path / "model")
    run_command(capfd, "export", tmp_path / "model", "--quantize", "none", "-o", tmp_path / "out")
    np.testing.assert_allclose(embed(tmp_path / "out", "onnx/model.onnx"), embed(tmp_path / "model"), atol=1e-5)


@pytest.mark.parametrize(
    ("file", "tolerance"),
    [("onnx/model_qint8.onnx", 0.1), ("openvino/openvino_model_qint8_quantized.xml", 0.02)],
)
def test_int8_is_close_and_its_figures_are_recorded(
    file: str, tolerance: float, model: Path, tmp_path: Path, capfd: Capture
) -> None:
    pytest.importorskip(f"{Path(file).parent}")
    collection = write_collection(tmp_path / "dev")
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


def test_an_export_that_differs_from_the_weights_is_rejected(
    model: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_TOLERANCE", 0.0)
    with pytest.raises(DrtkError, match=r"the hidden states differ by .* from the original ones"):
        run_command(capfd, "export", model, "-o", tmp_path / "out")


def test_separate_towers_are_exported_one_by_one(tmp_path: Path, capfd: Capture) -> None:
    for role in ("query", "passage"):
        save_tiny_encoder(tmp_path / "untied" / role)
    with pytest.raises(MismatchError, match=r"has two encoders; export .*/query and .*/passage"):
        run_command(capfd, "export", tmp_path / "untied", "-o", tmp_path / "out")
