"""HLATR's forward pass for one list, item by item: from vectors and ranks to logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.reference.bert import apply_layer_norm, attend


def linear(module: nn.Linear, row: Tensor) -> Tensor:
    """Return W x + b."""
    return module.weight @ row + module.bias


def logits(
    vectors: list[Tensor],
    *,
    project: nn.Linear,
    ranks: nn.Embedding,
    norm: nn.LayerNorm,
    layers: nn.ModuleList,
    head: nn.Linear,
    heads: int,
) -> list[Tensor]:
    """Return the logit of each candidate, a scalar; vectors[i] is the candidate of rank i. layers: TransformerEncoderLayers"""
    rows = [apply_layer_norm(linear(project, vector) + ranks.weight[rank], norm) for rank, vector in enumerate(vectors)]
    everyone = [list(range(len(rows)))] * len(rows)
    for layer in layers:
        attention = layer.self_attn
        three = zip(attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True)
        asked, keys, values = ([weight @ row + bias for row in rows] for weight, bias in three)
        mixed = attend(asked, keys, values, everyone, heads=heads)
        results = []
        for row, mix in zip(rows, mixed, strict=True):
            middle = apply_layer_norm(row + linear(attention.out_proj, mix), layer.norm1)
            wide = torch.nn.functional.gelu(linear(layer.linear1, middle))
            results.append(apply_layer_norm(middle + linear(layer.linear2, wide), layer.norm2))
        rows = results
    return [linear(head, row)[0] for row in rows]
