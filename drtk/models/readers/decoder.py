"""A shallow decoder that rebuilds a text from a vector (SimLM, CoT-MAE, MASTER; methods: sections 5.4, 5.6, 5.8)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from drtk.models.anatomy import Anatomy
from drtk.models.readers.base import Count, View, with_source


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
