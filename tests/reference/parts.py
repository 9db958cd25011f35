"""Small random models and modules to try the references on; weights drawn so wide that every term has its own value."""

from __future__ import annotations

import torch
from torch import nn

CLS, SEP, MASK, VOCABULARY = 2, 3, 4, 40  # 0 is [PAD], 1 [UNK], words start at 5


def redrawn(module: nn.Module, *, seed: int) -> nn.Module:
    """The module in eval mode with every weight drawn anew, norms and biases too: nothing stays 0 or 1 by luck."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(module.named_parameters()):
            middle = 1.0 if weight.dim() == 1 and name.endswith("weight") else 0.0
            weight.copy_(middle + 0.3 * torch.randn(weight.shape, generator=draw))
    return module.eval()
