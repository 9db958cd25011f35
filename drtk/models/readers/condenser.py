"""Condenser's head: what the first token knows late, with what the others knew early (methods: section 5.2)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.models.anatomy import Anatomy
from drtk.models.readers.base import View


class Condenser(nn.Module):
    """[states[-1][:, 0] ; states[skip][:, 1:]] through `layers` layers of the encoder's kind.

    skip: the layer whose output the other tokens take, 0 for the embeddings; "half" is half the depth (6 of 12).
    Raises MismatchError where the encoder has no such layer.
    """

    def __init__(
        self,
        anatomy: Anatomy,
        *,
        layers: int = 2,
        skip: int | Literal["half"] = "half",
        init: Literal["random", "copy"] = "random",
    ) -> None:
        super().__init__()
        self.skip = anatomy.depth // 2 if skip == "half" else skip
        if not 0 <= self.skip <= anatomy.depth:
            raise MismatchError(f"the encoder has {anatomy.depth} layers; condenser was to skip from layer {self.skip}")
        self.layers = anatomy.new_layers(layers, init)

    def forward(self, view: View, source: Tensor | None = None) -> Tensor:
        """(B, L, H); the vector is the slot's own, so `source` is not looked at"""
        states, anatomy = view.states(), view.anatomy
        hidden = torch.cat([states[-1][:, :1], states[self.skip][:, 1:]], dim=1)
        return anatomy.finish(anatomy.run(self.layers, hidden, anatomy.mask(view.attention))[-1])
