"""Choose device, precision and attention implementation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from drtk.errors import DrtkError, MismatchError, MissingDependency, format_pip_command

_HALF_OVERFLOWS = ("t5", "mt5", "umt5")  # their activations exceed the range of float16


def choose_device(name: str) -> torch.device:
    """Return the device called `name`; "auto" is the GPU if there is one. Raises DrtkError if it is not available."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise DrtkError(f"`device` {name}: not available: {str(error).splitlines()[0]}") from error
    return device


def choose_dtype(name: str, device: torch.device, *, half: str = "float16", kind: str = "") -> torch.dtype:
    """Return the dtype called `name`; "auto" is float32 on a CPU, `half` on a GPU.

    kind: the type of the model; models that overflow in float16 get bfloat16
    """
    if name == "auto":
        name = "float32" if device.type == "cpu" else "bfloat16" if kind in _HALF_OVERFLOWS else half
    dtype: torch.dtype = getattr(torch, name)
    return dtype


@dataclass(frozen=True)
class AttentionBackend:
    """A choice of attention implementation.

    name: auto, or transformers' name of an implementation; half: whether the model computes in 16 bits
    """

    name: str
    device: torch.device
    half: bool

    def check(self) -> None:
        """Raise DrtkError if the machine or the installed packages do not support the choice."""
        if not self.name.startswith("flash"):
            return
        if self.device.type != "cuda":
            raise DrtkError(f"`attention` {self.name}: needs a CUDA GPU; sdpa runs everywhere")
        if not self.half:
            raise DrtkError(f"`attention` {self.name}: computes in 16 bits; use `precision` bfloat16")
        if not _is_installed(self.name):
            package, command = _PACKAGES[self.name]
            raise MissingDependency(
                package, f"`attention` {self.name}", command or format_pip_command(package, "--no-build-isolation")
            )

    def apply(self, backbone: Any) -> str:
        """Set an encoder's attention implementation, before its layers are copied; return the implementation's name.

        auto: flash attention, which skips padding, if device, precision, packages and the encoder's class support it;
        otherwise unchanged (sdpa). Raises MismatchError if the encoder does not support the choice.
        """
        name = self.name
        if name == "auto":
            quick = self.device.type == "cuda" and self.half and getattr(backbone, "_supports_flash_attn", False)
            name = next(
                (each for each in _PACKAGES if quick and _is_installed(each)), backbone.config._attn_implementation
            )
        try:
            backbone.set_attn_implementation(name)
        except (ValueError, ImportError) as error:
            raise MismatchError(f"`attention` {name}: {str(error).splitlines()[0]}") from error
        actual = str(backbone.config._attn_implementation)
        if actual != name:
            raise MismatchError(f"`attention` {name}: an encoder of type {backbone.config.model_type} has {actual}")
        return actual


_PACKAGES = {  # in the order of preference: the package, and how to install it if pip cannot
    "flash_attention_2": ("flash-attn", ""),
    "flash_attention_3": ("flash-attn-3", "setup.py in the folder hopper of github.com/Dao-AILab/flash-attention"),
}


def _is_installed(name: str) -> bool:
    from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

    return bool(is_flash_attn_2_available() if name == "flash_attention_2" else is_flash_attn_3_available())
