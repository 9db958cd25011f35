"""Export the backbone of a text encoder to ONNX, in float32 or quantized to int8."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drtk.errors import DrtkError, MissingDependency, format_pip_command
from drtk.models.checkpoint import TextEncoder

ONNX_FILES = {"none": "onnx/model.onnx", "int8": "onnx/model_qint8.onnx"}  # names of sentence-transformers
_TOLERANCE = 1e-3  # of hidden states; float32 differs by 1e-5


class _BackboneModule(nn.Module):
    """The backbone as a function of positional inputs that returns its hidden states, (texts, tokens, width)."""

    def __init__(self, backbone: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.backbone, self._names = backbone, names

    def forward(self, *inputs: Tensor) -> Tensor:
        hidden: Tensor = self.backbone(**dict(zip(self._names, inputs, strict=True))).last_hidden_state
        return hidden


def export_onnx(model: TextEncoder, folder: Path, *, quantize: str) -> str:
    """Write the backbone to an ONNX file in a model folder; return the path of the file in the folder.

    quantize: "int8": dynamic quantization of linear layers, one scale per output, and of embeddings; "none": float32
    Raises DrtkError if the float32 export computes other hidden states, MissingDependency without onnx and onnxruntime.
    """
    try:
        import onnx  # noqa: F401
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise MissingDependency("onnx", "exporting", format_pip_command("onnx", "onnxruntime")) from error
    name = ONNX_FILES[quantize]
    path = folder / name
    path.parent.mkdir()
    full = path if quantize == "none" else path.with_name("float32.onnx")
    _write_onnx(model, full)
    if full != path:
        logging.disable(logging.WARNING)  # a hint at a preparation that dynamic quantization does not need
        try:
            quantize_dynamic(full, path, weight_type=QuantType.QInt8, per_channel=True)
        finally:
            logging.disable(logging.NOTSET)
        full.unlink()
    return name


def _write_onnx(model: TextEncoder, path: Path) -> None:
    """Write the backbone in float32; compare its hidden states with the original ones on inputs of another shape."""
    import onnxruntime

    names = ["input_ids", "attention_mask"]
    names += ["token_type_ids"] * ("token_type_ids" in model.tokenizer.model_input_names)
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
