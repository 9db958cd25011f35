"""The layers between an encoder's vector and a contrastive loss (DiffCSE, Chuang's thesis, appendix A.1; methods: section 5.10)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn


class Projector(nn.Module):
    """Vectors to vectors of the same width, used in training only.

    kind: "bn" is Linear(H, 2H) - batch norm - ReLU - Linear(2H, H) - batch norm without scale and shift, the linear layers
    without bias (2,362,368 parameters for H = 768); "tanh" is Linear(H, H) - tanh; "none" changes nothing.
    Statistics are those of all rows of a call, so both views go through in one; several devices share them after
    `SyncBatchNorm.convert_sync_batchnorm`. Weights are drawn normal(0, .02) from torch's generator.
    """

    def __init__(self, width: int, *, kind: Literal["bn", "tanh", "none"] = "bn") -> None:
        super().__init__()
        parts: dict[str, list[nn.Module]] = {
            "bn": [
                nn.Linear(width, 2 * width, bias=False),
                nn.BatchNorm1d(2 * width),
                nn.ReLU(),
                nn.Linear(2 * width, width, bias=False),
                nn.BatchNorm1d(width, affine=False),
            ],
            "tanh": [nn.Linear(width, width), nn.Tanh()],
            "none": [],
        }
        self.layers = nn.Sequential(*parts[kind])
        with torch.no_grad():
            for layer in self.layers:
                if isinstance(layer, nn.Linear):
                    layer.weight.normal_(0.0, 0.02)
                    if layer.bias is not None:
                        layer.bias.zero_()

    def forward(self, vectors: Tensor) -> Tensor:
        """(N, H) to (N, H)"""
        projected: Tensor = self.layers(vectors)
        return projected
