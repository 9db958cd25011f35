"""RetroMAE's decoder: every position asks for its token and sees others of its own choice (methods: section 5.7)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.models.backbone import Anatomy
from drtk.pretraining.decoders.base import Share, View, with_source


class TwoStream(nn.Module):
    """One layer whose queries are vector + position, and whose keys and values are [source ; embed(clean ids)[:, 1:]].

    Row i sees position 0 and those of the other tokens that its own draw leaves it, never itself, nor padding.
    visible: the share of the other tokens a row may see. Raises MismatchError for an encoder without position vectors.
    """

    needs_source = True

    def __init__(self, anatomy: Anatomy, *, visible: Share = 0.5) -> None:
        super().__init__()
        if not anatomy.has_positions:
            raise MismatchError(
                f"the reader 'two-stream' needs position vectors; an encoder of type {anatomy.family} has none"
            )
        if not 0 <= visible <= 1:
            raise MismatchError(f"the reader 'two-stream' sees a share of the tokens between 0 and 1; got {visible}")
        self.visible = visible
        self.layer: Any = anatomy.fresh(1)[0]
        self._heads = int(anatomy.config.num_attention_heads)

    def forward(self, view: View, source: Tensor | None) -> Tensor:
        """source: (B, H); returns: (B, L, H), where position 0 means nothing"""
        anatomy = view.anatomy
        content = with_source(source, anatomy.embed(view.clean_ids, view.types), reader="two-stream")  # (B, L, H)
        query = content[:, :1] + anatomy.positions(content.shape[1])  # (B, 1, H) + (L, H)
        seen = allowed(view.visibility(self.visible), view.attention)
        if anatomy.family == "distilbert":
            return self._distilbert(query, content, seen)
        attention, output = self.layer.attention.self, self.layer.attention.output
        found = self._attend(
            attention.query(query), attention.key(content), attention.value(content), seen, attention.dropout.p
        )
        asked = output(found, query)
        read: Tensor = self.layer.feed_forward_chunk(asked)
        return read

    def _distilbert(self, query: Tensor, content: Tensor, seen: Tensor) -> Tensor:
        layer, attention = self.layer, self.layer.attention
        found = self._attend(
            attention.q_lin(query), attention.k_lin(content), attention.v_lin(content), seen, attention.dropout.p
        )
        asked = layer.sa_layer_norm(attention.out_lin(found) + query)
        read: Tensor = layer.output_layer_norm(layer.ffn(asked) + asked)
        return read

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, seen: Tensor, dropout: float) -> Tensor:
        """query, key, value: (B, L, H)    seen: (B, L, L)    returns: (B, L, H)"""
        query, key, value = (
            part.unflatten(-1, (self._heads, -1)).transpose(1, 2)  # (B, heads, L, H / heads)
            for part in (query, key, value)
        )
        found = F.scaled_dot_product_attention(
            query, key, value, attn_mask=seen.unsqueeze(1), dropout_p=dropout if self.training else 0.0
        )
        return found.transpose(1, 2).flatten(2)


def allowed(visible: Tensor, attention: Tensor) -> Tensor:
    """(B, L, L) bool: the draw without the row itself and without padding, position 0 always.

    visible: (B, L, L) bool    attention: (B, L)
    """
    itself = torch.eye(visible.shape[1], dtype=torch.bool, device=visible.device)
    seen = visible & ~itself & attention.bool().unsqueeze(1)
    seen[:, :, 0] = True
    return seen
