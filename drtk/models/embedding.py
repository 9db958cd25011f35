"""Vectors by an encoder that is in memory, in the midst of training for instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from drtk.models.checkpoint import TextEncoder
from drtk.models.recipe import Role
from drtk.text.batching import batches_by_length

_TOKENS = 1 << 14


@torch.inference_mode()
def embedded(model: TextEncoder, items: Sequence[Any], *, role: Role) -> np.ndarray:
    """The vectors of passages, queries or plain texts in their order, (items, dimension) float32, in evaluation mode."""
    encoder = model.encoder
    device = next(encoder.parameters()).device
    was = encoder.training
    encoder.eval()
    try:
        tokenizing = model.tokenizing(role)
        tokens = tokenizing(items)
        found = np.empty((len(tokens), encoder.dimension), dtype=np.float32)
        for rows in batches_by_length(tokens.lengths, budget=_TOKENS):
            batch = tokens.padded(rows, pad=tokenizing.pad, left=tokenizing.left)
            inputs = {name: torch.from_numpy(values).to(device) for name, values in batch.items()}
            found[rows] = encoder(**inputs, prompt_length=model.prompt_length(role)).float().cpu().numpy()
    finally:
        encoder.train(was)
    return found


def compared(towers: Mapping[str, TextEncoder], items: Sequence[Any], role: Role) -> np.ndarray:
    """`embedded` by the tower of a role, of length 1 where vectors are compared by cosine: inner products then do."""
    tower = towers.get(role, towers["passage"])
    rows = embedded(tower, items, role=role)
    if tower.recipe.similarity == "cosine":
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return rows
