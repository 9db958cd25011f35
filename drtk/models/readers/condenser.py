"""Condenser's head: what the first token knows late, with what the others knew early (methods: section 5.2)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.models.anatomy import Anatomy
from drtk.models.readers.base import Count, View


class Condenser(nn.Module):
    """[states[-1][:, 0] ; states[skip][:, 1:]] through `layers` layers of the encoder's kind.

    own_vector: its bottleneck is the late first token of the slot itself; a composition names no source for it

    skip: the layer whose output the other tokens take, 0 for the embeddings; "half" is half the depth (6 of 12).
    Raises MismatchError where the encoder has no such layer.
    """

    own_vector = True

    def __init__(
        self,
        anatomy: Anatomy,
        *,
        layers: Count = 2,
        skip: int | Literal["half"] = "half",
        init: Literal["random", "copy"] = "random",
    ) -> None:
        super().__init__()
        self.skip = anatomy.depth // 2 if skip == "half" else skip
        if not 0 <= self.skip <= anatomy.depth:
            raise MismatchError(f"the encoder has {anatomy.depth} layers; condenser was to skip from layer {self.skip}")
        self.layers = anatomy.new_layers(layers, init)

    def forward(self, view: View, source: Tensor | None = None) -> Tensor:
        """(B, L, H)

        source: (B, H), to stand in place of the slot's own vector: another passage's shows what the own one is worth
        """
        states, anatomy = view.states(), view.anatomy
        first = states[-1][:, :1] if source is None else source.unsqueeze(1)
        hidden = torch.cat([first, states[self.skip][:, 1:]], dim=1)
        return anatomy.finish(anatomy.run(self.layers, hidden, anatomy.mask(view.attention))[-1])
