"""What numbers a command computes with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook


@contextmanager
def record_linear_dtypes() -> Iterator[set[torch.dtype]]:
    """The types of what all linear layers give out meanwhile."""
    found: set[torch.dtype] = set()

    def note(module: nn.Module, given: Any, output: Any) -> None:
        if isinstance(module, nn.Linear):
            found.add(output.dtype)

    handle = register_module_forward_hook(note)
    try:
        yield found
    finally:
        handle.remove()
