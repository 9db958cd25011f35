"""What the objectives of a step share: each slot is replaced, encoded and projected once, whoever asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from drtk.objectives.batch import Batch, SlotBatch

if TYPE_CHECKING:
    from drtk.models.anatomy import Anatomy
    from drtk.objectives.network import Network


class SlotView:
    """A slot as a reader sees it."""

    def __init__(self, views: Views, name: str) -> None:
        self._views, self._name = views, name
        self.slot: SlotBatch = views.batch[name]

    @property
    def ids(self) -> Tensor:
        """(batch, tokens), replaced where they are to be."""
        return self._views.ids(self._name)

    @property
    def clean_ids(self) -> Tensor:
        """(batch, tokens), the tokens as they were."""
        return self.slot.clean

    @property
    def attention(self) -> Tensor:
        """(batch, tokens), 0 at padding."""
        return self.slot.attention

    @property
    def types(self) -> Tensor | None:
        """(batch, tokens), token types; None where all are 0."""
        return self.slot.types

    @property
    def anatomy(self) -> Anatomy:
        """The encoder's parts."""
        return self._views.network.anatomy

    def states(self) -> list[Tensor]:
        """The encoder's states of this slot, embeddings first; (batch, tokens, hidden) each."""
        return self._views.states(self._name)

    def visibility(self, rate: float) -> Tensor:
        """(batch, tokens, tokens): which position may look at which; drawn where the batch was made."""
        assert self.slot.visible is not None, rate
        return self.slot.visible


class Views:
    """A batch with what the network makes of it, each once."""

    def __init__(self, batch: Batch, network: Network) -> None:
        self.batch, self.network = batch, network
        self._ids: dict[str, Tensor] = {}
        self._states: dict[str, list[Tensor]] = {}
        self._vectors: dict[str, Tensor] = {}
        self._projected: dict[str, dict[str, Tensor]] = {}

    def given(self, name: str, *, vector: Tensor) -> None:
        """Take a slot's vector from elsewhere, (batch, hidden): a term on vectors that exist already."""
        self._vectors[name] = vector

    def view(self, name: str) -> SlotView:
        """A slot as a reader sees it."""
        return SlotView(self, name)

    def ids(self, name: str) -> Tensor:
        """What is looked at, (batch, tokens): masked tokens replaced where the slot says so."""
        if name not in self._ids:
            self._ids[name] = self.network.filled(self.batch[name], name)
        return self._ids[name]

    def states(self, name: str) -> list[Tensor]:
        """States after the embeddings and after each layer, (batch, tokens, hidden) each."""
        if name not in self._states:
            slot = self.batch[name]
            self._states[name] = self.network.anatomy.encode(self.ids(name), slot.attention, slot.types)
        return self._states[name]

    def vector(self, name: str) -> Tensor:
        """The bottleneck of a slot, (batch, hidden)."""
        if name not in self._vectors:
            self._vectors[name] = self.network.pooled(self.states(name)[-1], self.batch[name])
        return self._vectors[name]

    def projected(self, projector: str, name: str) -> Tensor:
        """The bottleneck through a projector that sees the rows of all its slots together, (batch, hidden)."""
        if projector not in self._projected:
            slots = self.network.composition.projectors[projector].slots
            rows = torch.cat([self.vector(each) for each in slots])
            parts = self.network.projectors[projector](rows).chunk(len(slots))
            self._projected[projector] = dict(zip(slots, parts, strict=True))
        return self._projected[projector][name]

    def source(self, projector: str, name: str) -> Tensor:
        """A slot's vector, projected where a projector is named."""
        return self.projected(projector, name) if projector else self.vector(name)


def moved(batch: Mapping[str, Any], device: torch.device) -> Batch:
    """The batch on a device."""
    return {name: slot.to(device) for name, slot in batch.items()}
