"""A decoder from left to right that sees the vector and a few tokens (released query-as-context; methods: section 5.4)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.models.backbone import Anatomy
from drtk.pretraining.decoders.base import Count, View, with_source

_DROPOUTS = ("hidden_dropout_prob", "dropout"), ("attention_probs_dropout_prob", "attention_dropout")


class CausalReader(nn.Module):
    """[source ; embed(ids)[:, 1:]] through `layers` blocks of GPT-2's kind, and a norm after the last.

    A token sees position 0, where the vector is, and the `window` most recent tokens, itself included. The states at
    position t are there to predict token t + 1. Raises MismatchError for an encoder without position vectors, whose
    embeddings say nothing about order.
    """

    needs_source = True
    says_next = True

    def __init__(self, anatomy: Anatomy, *, layers: Count = 1, window: Count = 3) -> None:
        super().__init__()
        if not anatomy.has_positions:
            raise MismatchError(
                f"the reader 'causal' needs position vectors; an encoder of type {anatomy.family} has none"
            )
        if window < 1:
            raise MismatchError(f"the reader 'causal' sees at least the token itself; its window was to be {window}")
        self.window = window
        config = anatomy.config
        around, inside = (
            float(next(getattr(config, name) for name in names if hasattr(config, name))) for names in _DROPOUTS
        )
        with torch.device(anatomy.backbone.device):
            self.blocks = nn.ModuleList(
                [
                    _Block(
                        anatomy.hidden_size,
                        int(config.num_attention_heads),
                        inner=int(getattr(config, "intermediate_size", None) or config.hidden_dim),
                        around=around,
                        inside=inside,
                    )
                    for _ in range(layers)
                ]
            )
            self.norm = nn.LayerNorm(anatomy.hidden_size, eps=1e-5)
        self._draw(float(config.initializer_range))
        self.to(anatomy.backbone.dtype)

    @torch.no_grad()
    def _draw(self, spread: float) -> None:
        """Weights as GPT-2's: normal, and those that write into the residual stream smaller by sqrt(2 layers)."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                narrow = math.sqrt(2 * len(self.blocks)) if name.endswith(("out.weight", "down.weight")) else 1.0
                parameter.normal_(0.0, spread / narrow)
            elif name.endswith("bias"):
                parameter.zero_()

    def forward(self, view: View, source: Tensor | None) -> Tensor:
        """source: (B, H); returns: (B, L, H)"""
        hidden = with_source(source, view.anatomy.embed(view.ids, view.types), reader="causal")
        seen = self.seen(view.attention)
        for block in self.blocks:
            hidden = block(hidden, seen)
        normed: Tensor = self.norm(hidden)
        return normed

    def seen(self, attention: Tensor) -> Tensor:
        """(B, 1, L, L) bool: True where the row sees the column. attention: (B, L)"""
        place = torch.arange(attention.shape[1], device=attention.device)
        back = place.unsqueeze(1) - place.unsqueeze(0)  # how far the column lies behind the row
        near = ((back >= 0) & (back < self.window)) & attention.bool().unsqueeze(1)
        near[:, :, 0] = True
        return near.unsqueeze(1)


class _Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), as in GPT-2."""

    def __init__(self, width: int, heads: int, *, inner: int, around: float, inside: float) -> None:
        super().__init__()
        self.heads, self.inside = heads, inside
        self.first_norm, self.second_norm = nn.LayerNorm(width, eps=1e-5), nn.LayerNorm(width, eps=1e-5)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.dropout = nn.Dropout(around)

    def forward(self, hidden: Tensor, seen: Tensor) -> Tensor:
        """hidden: (B, L, H)    seen: (B, 1, L, L)    returns: (B, L, H)"""
        batch, length, width = hidden.shape
        split = self.qkv(self.first_norm(hidden)).view(batch, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (B, heads, L, H / heads)
        dropout = self.inside if self.training else 0.0
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, dropout_p=dropout)
        hidden = hidden + self.dropout(self.out(found.transpose(1, 2).reshape(batch, length, width)))
        inner = F.gelu(self.up(self.second_norm(hidden)), approximate="tanh")
        added: Tensor = hidden + self.dropout(self.down(inner))
        return added
