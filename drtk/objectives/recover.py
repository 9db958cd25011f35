"""A reader predicts a target at every position of its slots: SimLM, MASTER, CoT-MAE, Condenser differ only in the arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from drtk.objectives.batch import Batch
from drtk.objectives.views import Views
from drtk.settings.composition import Recover


class Recovery(nn.Module):
    """The term of one [[objective]] of kind recover."""

    def __init__(self, wanted: Recover, reader: nn.Module, target: Any) -> None:
        super().__init__()
        self.wanted, self.reader, self.target = wanted, reader, target

    @property
    def bottlenecked(self) -> bool:
        """Whether the reader is helped by a vector: of another slot, or late in the encoder of its own."""
        return bool(self.wanted.source) or self._own_vector

    @property
    def _own_vector(self) -> bool:
        return getattr(self.reader, "own_vector", False)

    def count(self, batch: Batch) -> Tensor:
        """How many positions of a batch have a label, ()."""
        return torch.stack([self.target.positions(batch[name]).sum() for name in self.wanted.slot]).sum().float()

    def reduced(self, total: Tensor, count: Tensor) -> Tensor:
        """A sum of losses as its reduction has it, (): by the count of all parts and processes, or as it is."""
        return total if self.wanted.reduction == "sum" else total / count.clamp(min=1)

    def forward(self, views: Views, *, other_sources: bool = False) -> Tensor:
        """The sum of the losses of the labelled positions, ().

        other_sources: with the vector of another example in place of the right one, to see what the vector is worth
        """
        wanted = self.wanted
        sources = wanted.source if len(wanted.source) != 1 else wanted.source * len(wanted.slot)
        total = None
        for number, name in enumerate(wanted.slot):
            vector = None
            if sources:
                vector = views.source(wanted.projector, sources[number])
                vector = vector.roll(1, dims=0) if other_sources else vector
            elif other_sources and self._own_vector:
                vector = views.states(name)[-1][:, 0].roll(1, dims=0)
            hidden = self.reader(views.view(name), vector)
            losses = self.target.losses(hidden, views.batch[name], views.ids(name))
            total = losses if total is None else total + losses
        assert total is not None
        return total
