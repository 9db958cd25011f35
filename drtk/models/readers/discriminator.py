"""A second encoder that is told the sentence by its vector and finds what was changed (DiffCSE; methods: section 5.10)."""

from __future__ import annotations

from copy import deepcopy

from torch import Tensor, nn

from drtk.models.anatomy import Anatomy
from drtk.models.readers.base import View, with_source


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
