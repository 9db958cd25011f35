"""HLATR's forward pass for one list, from vectors and ranks to logits."""

import torch
from torch import Tensor, nn

from tests.reference.bert import apply_layer_norm, attend


def logits(
    vectors: list[Tensor],
    *,
    project: nn.Linear,
    ranks: nn.Embedding,
    norm: nn.LayerNorm,
    layers: nn.ModuleList,
    head: nn.Linear,
    heads: int,
) -> Tensor:
    """Return the logit of each candidate, (candidates,); vectors[i] is the candidate of rank i. layers: TransformerEncoderLayers"""
    rows = apply_layer_norm(project(torch.stack(vectors)) + ranks.weight[: len(vectors)], norm)
    everyone = [list(range(len(rows)))] * len(rows)
    for layer in layers:
        attention = layer.self_attn
        three = zip(attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True)
        mixed = attend(*(rows @ weight.T + bias for weight, bias in three), everyone, heads=heads)
        middle = apply_layer_norm(rows + attention.out_proj(mixed), layer.norm1)
        wide = torch.nn.functional.gelu(layer.linear1(middle))
        rows = apply_layer_norm(middle + layer.linear2(wide), layer.norm2)
    return head(rows)[:, 0]
