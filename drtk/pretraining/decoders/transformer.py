"""Bidirectional decoders: encoder, shallow decoder, Condenser head, discriminator."""

from __future__ import annotations

from copy import deepcopy
from typing import Literal

import torch
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.models.backbone import Anatomy
from drtk.pretraining.decoders.base import Count, View, with_source


class EncoderReader(nn.Module):
    """The last states of the slot. It has no parameters, and takes no vector."""

    def __init__(self, anatomy: Anatomy) -> None:
        super().__init__()

    def forward(self, view: View, source: Tensor | None = None) -> Tensor:
        """(B, L, H)"""
        return view.states()[-1]


class Decoder(nn.Module):
    """[source ; embed(ids)[:, 1:]] through `layers` bidirectional layers of the encoder's kind.

    The embeddings are the encoder's; the vector gets neither position nor norm. init: "random" draws the layers (CoT-MAE,
    MASTER), "copy" takes the encoder's last ones (SimLM). Raises MismatchError for more copies than the encoder has layers.
    """

    needs_source = True

    def __init__(self, anatomy: Anatomy, *, layers: Count = 2, init: Literal["random", "copy"] = "random") -> None:
        super().__init__()
        self.layers = anatomy.new_layers(layers, init)

    def forward(self, view: View, source: Tensor | None) -> Tensor:
        """source: (B, H); returns: (B, L, H)"""
        anatomy = view.anatomy
        hidden = with_source(source, anatomy.embed(view.ids, view.types), reader="decoder")
        return anatomy.finish(anatomy.run(self.layers, hidden, anatomy.mask(view.attention))[-1])


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


class Discriminator(nn.Module):
    """An encoder that begins as a copy of the one it is made from and shares nothing with it.

    Its first embedding is the vector as it is: neither position nor norm is added.
    """

    needs_source = True
    own_head = True

    def __init__(self, anatomy: Anatomy) -> None:
        super().__init__()
        self.encoder = deepcopy(anatomy.backbone)
        if getattr(self.encoder, "pooler", None) is not None:  # it would have parameters without a gradient
            self.encoder.pooler = None
        self.encoder.requires_grad_(True)
        self._anatomy = Anatomy(self.encoder)

    def forward(self, view: View, source: Tensor | None) -> Tensor:
        """source: (B, H); returns: (B, L, H)"""
        mine = self._anatomy
        hidden = with_source(source, mine.embed(view.ids, view.types), reader="discriminator")
        return mine.finish(mine.run(mine.layers, hidden, mine.mask(view.attention))[-1])
