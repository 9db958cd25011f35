"""Record the dtypes in which a model computes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook


@contextmanager
def record_linear_dtypes() -> Iterator[set[torch.dtype]]:
    """Yield a set that collects the output dtypes of all linear layers during the block."""
    dtypes: set[torch.dtype] = set()

    def record(module: nn.Module, given: Any, output: Any) -> None:
        if isinstance(module, nn.Linear):
            dtypes.add(output.dtype)

    handle = register_module_forward_hook(record)
    try:
        yield dtypes
    finally:
        handle.remove()
