"""What objectives are made of, beside the encoder's own layers."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from drtk.models.anatomy import Anatomy


@dataclass
class Parts:
    """anatomy: the encoder's; head: its masked-LM head; readers: by the names that objectives give them."""

    anatomy: Anatomy
    head: Any
    readers: dict[str, nn.Module]
    _heads: dict[str, Any] = field(default_factory=dict)

    def head_of(self, reader: str) -> Any:
        """The head a reader speaks through: the encoder's, or a copy for one that shares nothing (methods: section 5.0)."""
        found: Any = self.readers[reader]
        if not getattr(found, "own_head", False):
            return self.head
        if reader not in self._heads:
            own = deepcopy((self.anatomy.backbone, self.head))[
                1
            ]  # together: a copied head alone would keep the embeddings
            own._encoder = (found.encoder,)
            self._heads[reader] = own
        return self._heads[reader]
