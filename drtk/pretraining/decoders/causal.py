"""The causal decoder of query-as-context's released code (docs/methods/cotmae.md)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.models.backbone import BackboneAdapter
from drtk.pretraining.config import Count
from drtk.pretraining.decoders.transformer import DecoderInput, replace_first

_DROPOUTS = ("hidden_dropout_prob", "dropout"), ("attention_probs_dropout_prob", "attention_dropout")


class CausalDecoder(nn.Module):
    """A shallow causal decoder: `layers` GPT-2 blocks and a final norm over the text vector and the token embeddings.

    The text vector replaces the first token. A token attends to the text vector and to the last `window` tokens including itself.
    The output at position t predicts token t + 1. Raises MismatchError for an encoder without position embeddings.
    """

    needs_source = True
    predicts_next = True

    def __init__(self, adapter: BackboneAdapter, *, layers: Count = 1, window: Count = 3) -> None:
        super().__init__()
        if not adapter.has_positions:
            raise MismatchError(
                f"decoder 'causal' requires position embeddings, which {adapter.family} lacks; use an encoder such as BERT"
            )
        self.window = window
        config = adapter.config
        residual_dropout, attention_dropout = (
            float(next(getattr(config, name) for name in names if hasattr(config, name))) for names in _DROPOUTS
        )
        with torch.device(adapter.backbone.device):
            self.blocks = nn.ModuleList(
                [
                    _GPT2Block(
                        adapter.hidden_size,
                        int(config.num_attention_heads),
                        inner=int(getattr(config, "intermediate_size", None) or config.hidden_dim),
                        residual_dropout=residual_dropout,
                        attention_dropout=attention_dropout,
                    )
                    for _ in range(layers)
                ]
            )
            self.norm = nn.LayerNorm(adapter.hidden_size, eps=1e-5)
        self._init_weights(float(config.initializer_range))
        self.to(adapter.backbone.dtype)

    @torch.no_grad()
    def _init_weights(self, std: float) -> None:
        """Initialize as GPT-2: normal(0, std), divided by sqrt(2 layers) in layers that write to the residual stream."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = math.sqrt(2 * len(self.blocks)) if name.endswith(("out.weight", "down.weight")) else 1.0
                parameter.normal_(0.0, std / scale)
            elif name.endswith("bias"):
                parameter.zero_()

    def forward(self, inputs: DecoderInput, source: Tensor) -> Tensor:
        """Return the hidden states, (B, L, H). source: text vectors, (B, H)"""
        hidden = replace_first(source, inputs.adapter.embed(inputs.ids, inputs.types))
        visible = self.build_visible_mask(inputs.attention)
        for block in self.blocks:
            hidden = block(hidden, visible)
        output: Tensor = self.norm(hidden)
        return output

    def build_visible_mask(self, attention: Tensor) -> Tensor:
        """Return the attention mask, (B, 1, L, L) bool, True if the row attends to the column. attention: (B, L)"""
        position = torch.arange(attention.shape[1], device=attention.device)
        distance = position.unsqueeze(1) - position.unsqueeze(0)  # row - column
        visible = ((distance >= 0) & (distance < self.window)) & attention.bool().unsqueeze(1)
        visible[:, :, 0] = True
        return visible.unsqueeze(1)


class _GPT2Block(nn.Module):
    """A pre-norm GPT-2 block: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(
        self, width: int, heads: int, *, inner: int, residual_dropout: float, attention_dropout: float
    ) -> None:
        super().__init__()
        self.heads, self.attention_dropout = heads, attention_dropout
        self.first_norm, self.second_norm = nn.LayerNorm(width, eps=1e-5), nn.LayerNorm(width, eps=1e-5)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.dropout = nn.Dropout(residual_dropout)

    def forward(self, hidden: Tensor, visible: Tensor) -> Tensor:
        """Return the hidden states after the block, (B, L, H). hidden: (B, L, H)    visible: (B, 1, L, L) bool"""
        batch, length, width = hidden.shape
        split = self.qkv(self.first_norm(hidden)).view(batch, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (B, heads, L, H / heads)
        dropout = self.attention_dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=dropout)
        hidden = hidden + self.dropout(self.out(context.transpose(1, 2).reshape(batch, length, width)))
        inner = F.gelu(self.up(self.second_norm(hidden)), approximate="tanh")
        output: Tensor = hidden + self.dropout(self.down(inner))
        return output
