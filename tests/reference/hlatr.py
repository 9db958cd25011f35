"""HLATR's forward pass for one list, item by item: from vectors and ranks to logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.reference.bert import apply_layer_norm, attend


@dataclass(frozen=True)
class Layer:
    """Weights of one transformer layer over the list of candidates."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    mixed: nn.Linear
    first_norm: nn.LayerNorm
    up: nn.Linear
    down: nn.Linear
    second_norm: nn.LayerNorm


def linear(module: nn.Linear, row: Tensor) -> Tensor:
    """Return W x + b."""
    return module.weight @ row + module.bias


def logits(
    vectors: list[Tensor],
    *,
    project: nn.Linear,
    ranks: nn.Embedding,
    norm: nn.LayerNorm,
    layers: list[Layer],
    head: nn.Linear,
    heads: int,
) -> list[Tensor]:
    """Return the logit of each candidate, a scalar; vectors[i] is the candidate of rank i."""
    rows = [apply_layer_norm(linear(project, vector) + ranks.weight[rank], norm) for rank, vector in enumerate(vectors)]
    everyone = [list(range(len(rows)))] * len(rows)
    for layer in layers:
        asked = [linear(layer.query, row) for row in rows]
        keys = [linear(layer.key, row) for row in rows]
        values = [linear(layer.value, row) for row in rows]
        mixed = attend(asked, keys, values, everyone, heads=heads)
        middle = [
            apply_layer_norm(row + linear(layer.mixed, mix), layer.first_norm)
            for row, mix in zip(rows, mixed, strict=True)
        ]
        wide = [torch.nn.functional.gelu(linear(layer.up, row)) for row in middle]
        rows = [
            apply_layer_norm(row + linear(layer.down, more), layer.second_norm)
            for row, more in zip(middle, wide, strict=True)
        ]
    return [linear(head, row)[0] for row in rows]


def of_transformer(layers: nn.ModuleList) -> list[Layer]:
    """Convert torch's TransformerEncoderLayers, whose in_proj concatenates query, key and value weights."""
    results = []
    for layer in layers:
        attention = layer.self_attn
        three = []
        for weight, bias in zip(attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True):
            part = nn.Linear(weight.shape[1], weight.shape[0])
            part.weight, part.bias = nn.Parameter(weight), nn.Parameter(bias)
            three.append(part)
        results.append(
            Layer(*three, attention.out_proj, layer.norm1, layer.linear1, layer.linear2, layer.norm2)  # type: ignore[arg-type]
        )
    return results
