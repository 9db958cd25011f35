"""The encoder as its own reader: plain masked language modelling."""

from __future__ import annotations

from torch import Tensor, nn

from drtk.models.anatomy import Anatomy
from drtk.models.readers.base import View


class EncoderReader(nn.Module):
    """The last states of the slot. It has no parameters, and takes no vector."""

    def __init__(self, anatomy: Anatomy) -> None:
        super().__init__()

    def forward(self, view: View, source: Tensor | None = None) -> Tensor:
        """(B, L, H)"""
        return view.states()[-1]
