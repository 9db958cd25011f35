"""What a reader reads, and how the vector takes the place of the first token."""

from __future__ import annotations

from typing import Annotated, Protocol

import torch
from torch import Tensor

from drtk.models.backbone import Anatomy

Count = Annotated[int, 1, float("inf")]  # options with their bounds, which presets are checked for
Share = Annotated[float, 0.0, 1.0]


class View(Protocol):
    """The tokens of a slot for a batch, padded on the right, and what the encoder makes of them."""

    @property
    def ids(self) -> Tensor:
        """(B, L): input ids, hidden tokens masked or replaced"""

    @property
    def clean_ids(self) -> Tensor:
        """(B, L): the ids before anything was hidden"""

    @property
    def attention(self) -> Tensor:
        """(B, L): 1 at tokens, 0 at padding"""

    @property
    def types(self) -> Tensor | None:
        """(B, L): token types; None where all are 0"""

    @property
    def anatomy(self) -> Anatomy:
        """The encoder's parts."""

    def states(self) -> list[Tensor]:
        """The encoder's states of these tokens, as `Anatomy.encode` gives them."""

    def visibility(self, rate: float) -> Tensor:
        """(B, L, L) bool: for each row a draw of its own of the columns it may see, a share `rate` of them."""


def with_source(source: Tensor | None, hidden: Tensor, *, reader: str) -> Tensor:
    """`hidden` with the vector as it is in the first place. Raises ValueError where there is no vector.

    source: (B, H)    hidden: (B, L, H)    returns: (B, L, H)
    """
    if source is None:
        raise ValueError(f"the reader '{reader}' needs a source: the slot whose vector it starts from")
    return torch.cat([source.unsqueeze(1).to(hidden.dtype), hidden[:, 1:]], dim=1)
