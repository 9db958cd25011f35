"""Which device a model runs on, and with which numbers."""

from __future__ import annotations

import torch

from drtk.errors import DrtkError

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
