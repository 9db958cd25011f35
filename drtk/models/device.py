"""Which device a model runs on."""

from __future__ import annotations

import torch

from drtk.errors import DrtkError


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
