"""What a reader sees of a slot whose hidden tokens a generator fills."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from drtk.objectives.batch import SlotBatch
from drtk.settings.composition import Corruption, Generator


def filled(slot: SlotBatch, corruption: Corruption, generator: Any, wanted: Generator) -> Tensor:
    """The ids of a slot, (batch, tokens), with the generator's tokens where its corruption wants them.

    Padding and the first token stay; of the other special ones what stands between or after texts does not, where the generator
    is to fill everything: released DiffCSE replaces [SEP] too (methods: section 5.10). Of insertions the inserted tokens alone are filled, whatever the generator's scope.
    """
    if corruption not in ("replaced", "inserted", "any") or slot.noise is None:
        return slot.given
    scope = "masked" if corruption == "inserted" else wanted.scope
    with torch.no_grad():
        found: Tensor = generator.fill(
            slot.given,
            slot.attention,
            slot.hidden,
            noise=slot.noise,
            decode=wanted.decode,
            scope=scope,
            types=slot.types,
        )
    kept = ~slot.attention.bool()
    kept[:, 0] = True
    if corruption == "any" and slot.edited is not None:  # rows with insertions or deletions, where scope was "all"
        kept = kept | ((slot.edited >= 0) & ~slot.hidden)
    return torch.where(kept, slot.given, found)
