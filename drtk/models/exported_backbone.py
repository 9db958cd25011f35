"""Backbones exported to ONNX or OpenVINO, also quantized to int8, run by onnxruntime or openvino."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from drtk.errors import DrtkError, MismatchError, convert_import_error

# Names of the output in exports of transformers, and of others
_HIDDEN_STATES = ("last_hidden_state", "token_embeddings")
Run = Callable[[Mapping[str, np.ndarray]], np.ndarray]  # inputs by name, each (texts, tokens) -> (texts, tokens, width)


class ExportedBackbone(nn.Module):
    """A backbone in an ONNX file (.onnx) or OpenVINO file (.xml), which is loaded at the first call.

    config: configuration of the transformers model
    """

    def __init__(self, path: Path, config: Any) -> None:
        super().__init__()
        self.path, self.config = path, config
        self._run: Run | None = None

    def _load(self, device: torch.device) -> Run:
        is_onnx = self.path.suffix == ".onnx"
        with convert_import_error("onnxruntime" if is_onnx else "openvino", str(self.path)):
            importlib.import_module("onnxruntime" if is_onnx else "openvino")
        with self._convert_errors("cannot be loaded"):
            return _load_onnx(self.path, device) if is_onnx else _load_openvino(self.path)

    @contextmanager
    def _convert_errors(self, problem: str) -> Iterator[None]:
        """Convert the errors of onnxruntime and openvino, which are of many types, to DrtkError."""
        try:
            yield
        except DrtkError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())
            raise DrtkError(f"{self.path}: {problem}: {reason[:300]}; export the model again") from error

    def forward(self, **inputs: Tensor) -> BaseModelOutput:
        """Return the hidden states, (texts, tokens, width). inputs: token ids, mask and segments, each (texts, tokens)"""
        device = inputs["input_ids"].device
        if self._run is None:
            self._run = self._load(device)
        with self._convert_errors("cannot be run"):
            hidden = self._run({name: values.numpy(force=True) for name, values in inputs.items()})
        return BaseModelOutput(last_hidden_state=torch.from_numpy(hidden).to(device))


def _load_onnx(path: Path, device: torch.device) -> Run:
    import onnxruntime

    # Not all available providers: TensorRT, the first of them, compiles the model for minutes.
    has_cuda = device.type == "cuda" and "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    providers: list[Any] = [("CUDAExecutionProvider", {"device_id": device.index or 0})] if has_cuda else []
    session = onnxruntime.InferenceSession(path, providers=[*providers, "CPUExecutionProvider"])
    names = _check_inputs([item.name for item in session.get_inputs()], path)
    output = _choose_output([item.name for item in session.get_outputs()], path)

    def run(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return session.run([output], _select_inputs(inputs, names))[0]

    return run


def _load_openvino(path: Path) -> Run:
    import openvino

    # By default, CPUs and GPUs compute in 16 bits if they can.
    model = openvino.Core().compile_model(path, "AUTO", {"INFERENCE_PRECISION_HINT": "f32"})
    names = _check_inputs([item.get_any_name() for item in model.inputs], path)
    output = _choose_output([name for item in model.outputs for name in item.get_names()], path)

    def run(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return model(_select_inputs(inputs, names))[output]

    return run


def _choose_output(names: list[str], path: Path) -> str:
    for name in _HIDDEN_STATES:
        if name in names:
            return name
    raise MismatchError(
        f"{path}: has no output {_HIDDEN_STATES[0]}, only {', '.join(names)}; export the model for feature extraction"
    )


def _check_inputs(names: list[str], path: Path) -> list[str]:
    """Return the names of the inputs. Raises MismatchError for one that a tokenizer does not return."""
    if unknown := sorted({*names} - {"input_ids", "attention_mask", "token_type_ids"}):
        raise MismatchError(
            f"{path}: requires the inputs {', '.join(unknown)}; export the model for feature extraction"
        )
    return names


def _select_inputs(inputs: Mapping[str, np.ndarray], names: list[str]) -> dict[str, np.ndarray]:
    """Return the inputs of an exported model; segments that the tokenizer does not return are 0."""
    return {name: inputs[name] if name in inputs else np.zeros_like(inputs["input_ids"]) for name in names}


def find_exported_file(folder: Path, backbone: Path, name: str) -> Path:
    """Return the path of the exported file `name`, which is in the model folder or in the folder of its backbone.

    name: path relative to that folder, such as onnx/model.onnx
    Raises MismatchError if it does not exist or is neither ONNX nor OpenVINO.
    """
    for path in (folder / name, backbone / name):
        if path.is_file() and path.suffix in (".onnx", ".xml"):
            return path
    exported = sorted(path for suffix in ("onnx", "xml") for path in folder.rglob(f"*.{suffix}"))
    choice = f"choose from {', '.join(str(path.relative_to(folder)) for path in exported)}" if exported else "export it"
    raise MismatchError(f"{folder}: `model_file` {name}: no such ONNX or OpenVINO file; {choice}")
