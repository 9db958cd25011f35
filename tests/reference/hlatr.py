"""HLATR's forward pass for one list, item by item: vector and rank in, a logit out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.reference.bert import attended, normalized


@dataclass(frozen=True)
class Layer:
    """The weights of one layer over the list; matrices are (out, in), as nn.Linear has them."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    mixed: nn.Linear
    first_norm: nn.LayerNorm
    up: nn.Linear
    down: nn.Linear
    second_norm: nn.LayerNorm


def linear(module: nn.Linear, row: Tensor) -> Tensor:
    """W x + b."""
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
    """A logit () for each candidate; the vectors are in the order of retrieval, so that place i has rank i."""
    rows = [normalized(linear(project, vector) + ranks.weight[rank], norm) for rank, vector in enumerate(vectors)]
    everyone = [list(range(len(rows)))] * len(rows)
    for layer in layers:
        asked = [linear(layer.query, row) for row in rows]
        keys = [linear(layer.key, row) for row in rows]
        values = [linear(layer.value, row) for row in rows]
        mixed = attended(asked, keys, values, everyone, heads=heads)
        middle = [
            normalized(row + linear(layer.mixed, mix), layer.first_norm) for row, mix in zip(rows, mixed, strict=True)
        ]
        wide = [torch.nn.functional.gelu(linear(layer.up, row)) for row in middle]
        rows = [
            normalized(row + linear(layer.down, more), layer.second_norm)
            for row, more in zip(middle, wide, strict=True)
        ]
    return [linear(head, row)[0] for row in rows]


def of_transformer(layers: nn.ModuleList) -> list[Layer]:
    """The weights of torch's TransformerEncoderLayers, whose in_proj holds query, key and value one below the other."""
    found = []
    for layer in layers:
        attention = layer.self_attn
        three = []
        for weight, bias in zip(attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True):
            part = nn.Linear(weight.shape[1], weight.shape[0])
            part.weight, part.bias = nn.Parameter(weight), nn.Parameter(bias)
            three.append(part)
        found.append(
            Layer(*three, attention.out_proj, layer.norm1, layer.linear1, layer.linear2, layer.norm2)  # type: ignore[arg-type]
        )
    return found
