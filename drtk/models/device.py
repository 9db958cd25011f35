"""Choose device, precision and attention implementation; run batches sorted by length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from drtk.errors import DrtkError, MismatchError, MissingDependency, pip_install

_HALF_OVERFLOWS = ("t5", "mt5", "umt5")  # their activations leave the range of float16


def choose_device(name: str) -> torch.device:
    """The device called `name`; "auto" is the GPU where there is one. Raises DrtkError where it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise DrtkError(f"--device {name}: not available: {str(error).splitlines()[0]}") from error
    return device


def choose_dtype(name: str, device: torch.device, *, kind: str) -> torch.dtype:
    """The numbers called `name`; "auto" is float32 on a CPU, float16 on a GPU, bfloat16 for kinds of models that overflow in it."""
    if name == "auto":
        if device.type == "cpu":
            return torch.float32
        return torch.bfloat16 if kind in _HALF_OVERFLOWS else torch.float16
    found: torch.dtype = getattr(torch, name)
    return found


@dataclass(frozen=True)
class Attention:
    """What was asked for, and where it is to run.

    name: auto, or an implementation by transformers' name; half: whether its numbers have 16 bits
    """

    name: str
    device: torch.device
    half: bool

    def check(self) -> None:
        """Raise DrtkError where this machine, or what is installed on it, cannot do what was asked for."""
        if not self.name.startswith("flash"):
            return
        if self.device.type != "cuda":
            raise DrtkError(f"--attention {self.name}: needs a CUDA GPU; sdpa runs everywhere")
        if not self.half:
            raise DrtkError(f"--attention {self.name}: computes with 16 bits; --precision bfloat16 goes with it")
        if not _installed(self.name):
            package, built = _PACKAGES[self.name]
            raise MissingDependency(
                package, f"--attention {self.name}", built or pip_install(package, "--no-build-isolation")
            )

    def given_to(self, backbone: Any) -> str:
        """Let an encoder attend so, before its layers are copied; returns the implementation's name.

        auto: flash attention, which computes nothing for padding, where device, numbers and packages allow it and the
        encoder's class knows it; as it was loaded (sdpa) elsewhere. Raises MismatchError where the encoder cannot.
        """
        name = self.name
        if name == "auto":
            quick = self.device.type == "cuda" and self.half and getattr(backbone, "_supports_flash_attn", False)
            name = next(
                (each for each in _PACKAGES if quick and _installed(each)), backbone.config._attn_implementation
            )
        try:
            backbone.set_attn_implementation(name)
        except (ValueError, ImportError) as error:
            raise MismatchError(f"--attention {name}: {str(error).splitlines()[0]}") from error
        found = str(backbone.config._attn_implementation)
        if found != name:
            raise MismatchError(f"--attention {name}: an encoder of type {backbone.config.model_type} has {found}")
        return found


_PACKAGES = {  # in the order in which auto tries them: the package, and how it is installed where pip cannot
    "flash_attention_2": ("flash-attn", ""),
    "flash_attention_3": ("flash-attn-3", "setup.py in the folder hopper of github.com/Dao-AILab/flash-attention"),
}


def _installed(name: str) -> bool:
    from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

    return bool(
        {"flash_attention_2": is_flash_attn_2_available, "flash_attention_3": is_flash_attn_3_available}[name]()
    )
