"""Random weights for small models in tests of the references, with a variance that makes all loss terms differ."""

from __future__ import annotations

import torch
from torch import nn

CLS, SEP, MASK, VOCABULARY = 2, 3, 4, 40  # 0 is [PAD], 1 [UNK], words start at 5


def randomize(module: nn.Module, *, seed: int) -> nn.Module:
    """Randomize all weights of a module, including norms and biases; return the module in eval mode."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(module.named_parameters()):
            middle = 1.0 if weight.dim() == 1 and name.endswith("weight") else 0.0
            weight.copy_(middle + 0.3 * torch.randn(weight.shape, generator=draw))
    return module.eval()
