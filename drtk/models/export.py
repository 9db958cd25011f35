"""Export the backbone of a text encoder to ONNX or OpenVINO, in float32 or quantized to int8."""

from __future__ import annotations

import importlib
import inspect
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drtk.errors import DrtkError, MissingDependency, format_pip_command
from drtk.models.checkpoint import TextEncoder

FILES = {  # names of sentence-transformers
    ("onnx", "none"): "onnx/model.onnx",
    ("onnx", "int8"): "onnx/model_qint8.onnx",
    ("openvino", "none"): "openvino/openvino_model.xml",
    ("openvino", "int8"): "openvino/openvino_model_qint8_quantized.xml",
}
_TOLERANCE = 1e-3  # of hidden states; float32 differs by 1e-5


class _BackboneModule(nn.Module):
    """The backbone as a function of positional inputs that returns its hidden states, (texts, tokens, width)."""

    def __init__(self, backbone: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.backbone, self._names = backbone, names

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.backbone(**dict(zip(self._names, inputs, strict=True))).last_hidden_state


def export_backbone(model: TextEncoder, folder: Path, *, format: str, quantize: str) -> str:
    """Write the backbone to an ONNX or OpenVINO file in a model folder; return the path of the file in the folder.

    format: "onnx" or "openvino"
    quantize: "int8": quantize linear layers, one scale per output, and embeddings; "none": float32
    Raises DrtkError if the float32 export computes other hidden states, MissingDependency without onnx and onnxruntime,
    or openvino.
    """
    packages = ["onnx", "onnxruntime"] + (["openvino"] if format == "openvino" else [])
    try:
        for package in packages:
            importlib.import_module(package)
    except ImportError as error:
        raise MissingDependency(package, "exporting", format_pip_command(*packages)) from error
    name = FILES[format, quantize]
    path = folder / name
    path.parent.mkdir()
    full = path if path.name == "model.onnx" else path.with_name("float32.onnx")
    _write_onnx(model, full)
    if format == "openvino":
        _convert_to_openvino(full, path, quantize=quantize)
    elif quantize == "int8":
        _quantize_onnx(full, path)
    if full != path:
        full.unlink()
    return name


def _quantize_onnx(source: Path, path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)  # advice to preprocess the model, which dynamic quantization does not need
    try:
        quantize_dynamic(source, path, weight_type=QuantType.QInt8, per_channel=True)
    finally:
        logging.disable(logging.NOTSET)


def _convert_to_openvino(source: Path, path: Path, *, quantize: str) -> None:
    import openvino

    model = openvino.Core().read_model(source)
    if quantize == "int8":
        _compress_weights(model)
    openvino.save_model(model, path, compress_to_fp16=False)


def _compress_weights(model: Any) -> None:
    """Store the matrices of linear layers and embeddings as int8 with scales, as nncf's INT8_SYM does."""
    from openvino import Type, opset13

    for node in model.get_ordered_ops():
        if node.get_type_name() == "Constant" and node.get_element_type() == Type.f32 and len(node.shape) == 2:
            user = next(iter(node.output(0).get_target_inputs())).get_node()
            if user.get_type_name() in ("MatMul", "Gather"):
                # Linear layers have one scale per output, (inputs, outputs) unless transposed; embeddings one per row.
                axis = 0 if user.get_attributes().get("transpose_b") is False else 1
                scales = np.maximum(np.abs(node.data).max(axis, keepdims=True), 1e-12) / 127
                weights = opset13.convert(opset13.constant(np.rint(node.data / scales).astype(np.int8)), "f32")
                node.output(0).replace(opset13.multiply(weights, opset13.constant(scales)).output(0))


def _write_onnx(model: TextEncoder, path: Path) -> None:
    """Write the backbone in float32; compare its hidden states with the original ones on inputs of another shape."""
    import onnxruntime

    names = ["input_ids", "attention_mask"]
    accepted = inspect.signature(model.encoder.backbone.forward).parameters
    if "token_type_ids" in accepted and "token_type_ids" in model.tokenizer.model_input_names:
        names.append("token_type_ids")
    axes = {name: {0: "batch", 1: "sequence"} for name in (*names, "last_hidden_state")}
    module = _BackboneModule(model.encoder.backbone, names).eval()
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            _make_inputs(model.tokenizer, names, ["a text", "another, longer text"]),
            str(path),
            input_names=names,
            output_names=["last_hidden_state"],
            dynamic_axes=axes,
            dynamo=False,  # torch.export needs onnxscript
        )
        inputs = _make_inputs(model.tokenizer, names, ["one", "a much longer text than the example " * 5, "two words"])
        expected = module(*inputs)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    fed = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
    hidden = torch.from_numpy(session.run(["last_hidden_state"], fed)[0])
    difference = float((hidden - expected).abs()[inputs[1] == 1].max())
    if not difference <= _TOLERANCE:
        raise DrtkError(
            f"{path}: the hidden states differ by {difference:g} from the original ones; this type cannot be exported"
        )


def _make_inputs(tokenizer: Any, names: Sequence[str], texts: list[str]) -> tuple[Tensor, ...]:
    batch = tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="pt")
    return tuple(batch[name] for name in names)
