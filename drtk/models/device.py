"""Select the device, the dtype and the attention implementation."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drtk.errors import DrtkError, MismatchError, MissingDependency, format_pip_command
from drtk.models.packing import PACKED, enable_packing
from drtk.runtime.runners import read_ahead
from drtk.text.batching import PairTokenizer, TextTokenizer, TokenizedTexts, iter_batches_by_length

_FLOAT16_OVERFLOWS = ("t5", "mt5", "umt5")  # model types whose activations exceed the range of float16
_ASYNCHRONOUS = ("cuda",)  # device types that copy pinned memory and run kernels while Python continues


def choose_device(name: str) -> torch.device:
    """Return a torch device by name; "auto": a CUDA or Apple GPU if available, else the CPU.

    Raises DrtkError if the device is not available.
    """
    if name == "auto":
        return torch.device(
            "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        )
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise DrtkError(f"`device` {name}: not available; use auto or cpu") from error
    return device


def choose_dtype(name: str, device: torch.device, *, half: str = "float16", model_type: str = "") -> torch.dtype:
    """Return a torch dtype by name; "auto": float32 on a CPU, `half` on a GPU.

    model_type: model type in transformers; for types that overflow in float16, "auto" on a GPU is bfloat16
    """
    if name == "auto":
        name = "float32" if device.type == "cpu" else "bfloat16" if model_type in _FLOAT16_OVERFLOWS else half
    return getattr(torch, name)


def move_model(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Move a model to a device and convert its weights to a dtype, in place. The frequencies of RoPE stay float32.

    In 16 bits, these frequencies give wrong rotary embeddings at later positions (ModernBERT, Llama and similar models).
    Raises DrtkError if the device is out of memory.
    """
    frequencies = {name: buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq")}
    with report_out_of_memory(device, "free memory, or use another `device` or a smaller model"):
        model.to(device, dtype)
    for name, frequency in frequencies.items():
        module, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(module), attribute, frequency.to(device))


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether a torch error is an out-of-memory error of a GPU or a CPU."""
    messages = (
        "can't allocate memory",
        "MPS backend out of memory",
        "CUDA error: out of memory",
        "CUBLAS_STATUS_ALLOC_FAILED",
    )
    return isinstance(error, torch.OutOfMemoryError) or any(message in str(error) for message in messages)


@contextmanager
def report_out_of_memory(device: torch.device | str, advice: str, *, num_tokens: int = 0) -> Iterator[None]:
    """Convert out-of-memory errors of torch to a DrtkError.

    advice: how to reduce memory, for the message    num_tokens: number of tokens in the batch, for the message; 0: unknown
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        batch = f" at {num_tokens:,} tokens" if num_tokens else ""
        raise DrtkError(f"{device}: out of memory{batch}; {advice}") from error


def copy_to_device(arrays: Mapping[str, np.ndarray], device: torch.device) -> dict[str, Tensor]:
    """Return arrays as tensors on the device. For a CUDA GPU they are copied asynchronously from pinned memory."""
    if device.type not in _ASYNCHRONOUS:
        return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    return {name: torch.from_numpy(array).pin_memory().to(device, non_blocking=True) for name, array in arrays.items()}


def iter_inputs(
    tokens: TokenizedTexts, tokenizer: TextTokenizer | PairTokenizer, *, budget: int, device: torch.device
) -> Generator[tuple[Tensor, dict[str, Tensor]], None, None]:
    """Yield batches of texts of similar length on the device: (row indices, model inputs of (texts, tokens) by name).

    On a CUDA GPU, a thread prepares the next batches. The caller must close the generator.
    budget: maximum number of tokens in a batch, including padding
    """
    is_asynchronous = device.type in _ASYNCHRONOUS

    def iter_batches() -> Generator[list[tuple[str, Tensor]], None, None]:
        for rows in iter_batches_by_length(tokens.lengths, budget=budget):
            arrays = {"rows": rows} | tokens.pad(rows, pad=tokenizer.pad, left=tokenizer.left)
            tensors = [(name, torch.from_numpy(array)) for name, array in arrays.items()]
            yield [(name, tensor.pin_memory()) for name, tensor in tensors] if is_asynchronous else tensors

    with closing(read_ahead(iter_batches()) if is_asynchronous else iter_batches()) as batches:
        for batch in batches:
            inputs = {name: tensor.to(device, non_blocking=is_asynchronous) for name, tensor in batch}
            yield inputs.pop("rows"), inputs


@dataclass(frozen=True)
class AttentionBackend:
    """The attention implementation to use.

    name: "auto", or a name of transformers, such as "sdpa"
    half: whether the model runs in a 16-bit dtype
    packed: whether "auto" may run the model without padding (drtk.models.packing)
    """

    name: str
    device: torch.device
    half: bool
    packed: bool = False

    def check(self) -> None:
        """Raise DrtkError if `name` is a flash attention that device, dtype or installed packages do not support."""
        if not self.name.startswith("flash"):
            return
        if self.device.type != "cuda":
            raise DrtkError(f"`attention` {self.name}: requires a CUDA GPU; use sdpa")
        if not self.half:
            raise DrtkError(f"`attention` {self.name}: supports 16-bit dtypes only; use `precision` bfloat16")
        if not _is_installed(self.name):
            package, command = _PACKAGES[self.name]
            raise MissingDependency(
                package, f"`attention` {self.name}", command or format_pip_command(package, "--no-build-isolation")
            )

    def apply(self, backbone: Any) -> str:
        """Set the attention implementation of a backbone, and return its name.

        Call it before layers of the backbone are copied, because copies keep their implementation.

        "auto" enables packing if `packed` is set, and device and model support it (see `enable_packing`). Otherwise it
        selects flash attention, if installed and supported, or keeps the current implementation (sdpa).
        Raises MismatchError if the model does not support the implementation.
        """
        name = self.name
        if name == "auto" and self.packed and enable_packing(backbone, self.device):
            return PACKED
        if name == "auto":
            can_flash = self.device.type == "cuda" and self.half and getattr(backbone, "_supports_flash_attn", False)
            name = next(
                (candidate for candidate in _PACKAGES if can_flash and _is_installed(candidate)),
                backbone.config._attn_implementation,
            )
        try:
            backbone.set_attn_implementation(name)
        except (ValueError, ImportError) as error:
            reason = str(error).splitlines()[0]
            raise MismatchError(f"`attention` {name}: cannot be used ({reason}); use sdpa") from error
        actual = str(backbone.config._attn_implementation)
        if actual != name:
            raise MismatchError(
                f"`attention` {name}: not supported by {backbone.config.model_type} models; use {actual}"
            )
        return actual


_PACKAGES = {  # in order of preference: (package, how to install it if not by pip)
    "flash_attention_2": ("flash-attn", ""),
    "flash_attention_3": ("flash-attn-3", "setup.py in the folder hopper of github.com/Dao-AILab/flash-attention"),
}


def _is_installed(name: str) -> bool:
    from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

    return bool(is_flash_attn_2_available() if name == "flash_attention_2" else is_flash_attn_3_available())
