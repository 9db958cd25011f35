"""A batch and what the encoder, the projectors and the generator compute from it, each once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from drtk.models.encoder import pool
from drtk.pretraining.batch import Batch, SlotBatch
from drtk.pretraining.composition import Composition, Corruption, Generator
from drtk.pretraining.decoders.transformer import DecoderInput


class Projector(nn.Module):
    """Project vectors to vectors of the same width; used in training only.

    kind: "bn" is Linear(H, 2H) - batch norm - ReLU - Linear(2H, H) - batch norm without scale and shift, the linear layers
    without bias (2,362,368 parameters for H = 768); "tanh" is Linear(H, H) - tanh; "none" changes nothing.
    Batch statistics are those of all rows of a call, so both views go through in one; several devices share them after
    `SyncBatchNorm.convert_sync_batchnorm`. Weights are normal(0, .02).
    """

    def __init__(self, width: int, *, kind: Literal["bn", "tanh", "none"] = "bn") -> None:
        super().__init__()
        parts: dict[str, list[nn.Module]] = {
            "bn": [
                nn.Linear(width, 2 * width, bias=False),
                nn.BatchNorm1d(2 * width),
                nn.ReLU(),
                nn.Linear(2 * width, width, bias=False),
                nn.BatchNorm1d(width, affine=False),
            ],
            "tanh": [nn.Linear(width, width), nn.Tanh()],
            "none": [],
        }
        self.layers = nn.Sequential(*parts[kind])
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, 0.0, 0.02)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, vectors: Tensor) -> Tensor:
        """(N, H) to (N, H)."""
        projected: Tensor = self.layers(vectors)
        return projected


def fill_masks(slot: SlotBatch, corruption: Corruption, model: Any, settings: Generator) -> Tensor:
    """Return the input ids of a slot, (batch, tokens), with the generator's tokens if its corruption wants them.

    model: the generator (token_generator.py)    settings: those of the composition
    Padding and the first token stay. A generator with scope "all" also replaces [SEP], as released DiffCSE does (methods:
    section 5.10); of insertions only the inserted tokens are filled.
    """
    if corruption not in ("replaced", "inserted", "any") or slot.noise is None:
        return slot.given
    with torch.no_grad():
        filled: Tensor = model.fill(
            slot.given,
            slot.attention,
            slot.hidden,
            noise=slot.noise,
            decode=settings.decode,
            scope="masked" if corruption == "inserted" else settings.scope,
            types=slot.types,
        )
    kept = ~slot.attention.bool()
    kept[:, 0] = True
    if corruption == "any" and slot.edited is not None:  # rows with insertions or deletions
        kept = kept | ((slot.edited >= 0) & ~slot.hidden)
    return torch.where(kept, slot.given, filled)


class EncodedBatch:
    """Input ids, states, vectors and projected vectors of a batch by slot, each computed when first used.

    anatomy: the encoder's parts    projectors: by name    generator: None, or the model that proposes tokens
    vectors: vectors that exist already, (batch, hidden) by slot
    """

    def __init__(
        self,
        batch: Batch,
        composition: Composition,
        *,
        anatomy: Any,
        projectors: Any,
        generator: Any = None,
        vectors: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.batch = batch
        self._composition, self._anatomy, self._projectors, self._generator = (
            composition,
            anatomy,
            projectors,
            generator,
        )
        self._ids: dict[str, Tensor] = {}
        self._states: dict[str, list[Tensor]] = {}
        self._vectors: dict[str, Tensor] = dict(vectors or {})
        self._projected: dict[str, dict[str, Tensor]] = {}

    def decoder_input(self, name: str) -> DecoderInput:
        """Return what a reader gets of a slot."""
        slot = self.batch[name]
        return DecoderInput(
            anatomy=self._anatomy,
            ids=self.ids(name),
            clean_ids=slot.clean,
            attention=slot.attention,
            types=slot.types,
            states=lambda: self.states(name),
            visible=slot.visible,
        )

    def ids(self, name: str) -> Tensor:
        """Return the input ids of a slot, (batch, tokens), with the generator's tokens."""
        if name not in self._ids:
            slot, settings = self.batch[name], self._composition.generator
            if settings is None or self._generator is None:
                self._ids[name] = slot.given
            else:
                corruption = self._composition.slots[name].corruption
                self._ids[name] = fill_masks(slot, corruption, self._generator, settings)
        return self._ids[name]

    def states(self, name: str) -> list[Tensor]:
        """Return the states after the embeddings and after each layer, (batch, tokens, hidden) each."""
        if name not in self._states:
            slot = self.batch[name]
            self._states[name] = self._anatomy.encode(self.ids(name), slot.attention, slot.types)
        return self._states[name]

    def vector(self, name: str, projector: str = "") -> Tensor:
        """Return the vectors of a slot, (batch, hidden), through a projector if one is named.

        The projector sees the rows of all its slots together.
        """
        if projector:
            if projector not in self._projected:
                slots = self._composition.projectors[projector].slots
                rows = torch.cat([self.vector(each) for each in slots])
                parts = self._projectors[projector](rows).chunk(len(slots))
                self._projected[projector] = dict(zip(slots, parts, strict=True))
            return self._projected[projector][name]
        if name not in self._vectors:
            last, pooling = self.states(name)[-1], self._composition.pooling
            self._vectors[name] = last[:, 0] if pooling == "cls" else pool(last, self.batch[name].attention, (pooling,))
        return self._vectors[name]
