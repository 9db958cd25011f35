"""Bidirectional decoders: the encoder itself, a shallow decoder, Condenser's head, RetroMAE's decoder, a discriminator."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drtk.errors import MismatchError
from drtk.models.backbone import BackboneAdapter
from drtk.pretraining.config import Count, Share


@dataclass(frozen=True)
class DecoderInput:
    """The tokens of a slot for a batch, (B, L) each, padded on the right.

    adapter: the encoder's parts    ids: hidden tokens masked or replaced    clean_ids: the original tokens
    attention: 1 at tokens, 0 at padding    types: token types, None if all are 0
    states: returns the encoder's states of these tokens, as `BackboneAdapter.encode` does
    visible: (B, L, L) bool, the tokens that each row may see; for "two-stream" only
    """

    adapter: BackboneAdapter
    ids: Tensor
    clean_ids: Tensor
    attention: Tensor
    types: Tensor | None
    states: Callable[[], list[Tensor]]
    visible: Tensor | None = None


def replace_first(source: Tensor, hidden: Tensor) -> Tensor:
    """Return `hidden`, (B, L, H), with the vector `source`, (B, H), as its first token."""
    return torch.cat([source.unsqueeze(1).to(hidden.dtype), hidden[:, 1:]], dim=1)


class EncoderOutput(nn.Module):
    """Return the encoder's last states. It has no parameters and takes no vector."""

    def __init__(self, adapter: BackboneAdapter) -> None:
        super().__init__()

    def forward(self, view: DecoderInput, source: Tensor | None = None) -> Tensor:
        """Return (B, L, H)."""
        return view.states()[-1]


class Decoder(nn.Module):
    """Run [source ; embed(ids)[:, 1:]] through `layers` bidirectional layers of the encoder's kind.

    The embeddings are the encoder's; the vector gets neither position nor norm. init: "random" layers (CoT-MAE, MASTER) or
    a "copy" of the encoder's last ones (SimLM). Raises MismatchError for more copies than the encoder has layers.
    """

    needs_source = True

    def __init__(
        self, adapter: BackboneAdapter, *, layers: Count = 2, init: Literal["random", "copy"] = "random"
    ) -> None:
        super().__init__()
        self.layers = adapter.create_layers(layers, init)

    def forward(self, view: DecoderInput, source: Tensor) -> Tensor:
        """source: (B, H); return (B, L, H)."""
        adapter = view.adapter
        hidden = replace_first(source, adapter.embed(view.ids, view.types))
        return adapter.apply_final_norm(
            adapter.run_layers(self.layers, hidden, adapter.build_attention_mask(view.attention))[-1]
        )


class CondenserHead(nn.Module):
    """Run [states[-1][:, 0] ; states[skip][:, 1:]] through `layers` layers of the encoder's kind.

    own_vector: its bottleneck is the late first token of the slot itself; a composition names no source for it
    skip: the layer whose output the other tokens take, 0 for the embeddings; "half" is half the depth
    Raises MismatchError if the encoder has no such layer.
    """

    own_vector = True

    def __init__(
        self,
        adapter: BackboneAdapter,
        *,
        layers: Count = 2,
        skip: int | Literal["half"] = "half",
        init: Literal["random", "copy"] = "random",
    ) -> None:
        super().__init__()
        self.skip = adapter.depth // 2 if skip == "half" else skip
        if not 0 <= self.skip <= adapter.depth:
            raise MismatchError(f"the encoder has {adapter.depth} layers; condenser was to skip from layer {self.skip}")
        self.layers = adapter.create_layers(layers, init)

    def forward(self, view: DecoderInput, source: Tensor | None = None) -> Tensor:
        """Return (B, L, H). source: (B, H), replaces the slot's own vector when its gain is measured."""
        states, adapter = view.states(), view.adapter
        first = states[-1][:, :1] if source is None else source.unsqueeze(1)
        hidden = torch.cat([first, states[self.skip][:, 1:]], dim=1)
        return adapter.apply_final_norm(
            adapter.run_layers(self.layers, hidden, adapter.build_attention_mask(view.attention))[-1]
        )


class Discriminator(nn.Module):
    """A copy of the encoder that shares nothing with it and gets the vector for its first embedding (DiffCSE)."""

    needs_source = True
    own_head = True

    def __init__(self, adapter: BackboneAdapter) -> None:
        super().__init__()
        self.encoder = deepcopy(adapter.backbone)
        if getattr(self.encoder, "pooler", None) is not None:  # it would have parameters without a gradient
            self.encoder.pooler = None
        self.encoder.requires_grad_(True)
        self._adapter = BackboneAdapter(self.encoder)

    def forward(self, view: DecoderInput, source: Tensor) -> Tensor:
        """source: (B, H); return (B, L, H)."""
        own = self._adapter
        hidden = replace_first(source, own.embed(view.ids, view.types))
        return own.apply_final_norm(own.run_layers(own.layers, hidden, own.build_attention_mask(view.attention))[-1])


class TwoStreamDecoder(nn.Module):
    """RetroMAE's decoder: one layer with queries vector + position, and keys and values [source ; embed(clean ids)[:, 1:]].

    visible: the share of the other tokens that a position may see (docs/methods/retromae.md)
    Raises MismatchError for an encoder without position vectors.
    """

    needs_source = True

    def __init__(self, adapter: BackboneAdapter, *, visible: Share = 0.5) -> None:
        super().__init__()
        if not adapter.has_positions:
            raise MismatchError(
                f"the reader 'two-stream' needs position vectors; an encoder of type {adapter.family} has none"
            )
        self.layer: Any = adapter.create_layers(1)[0]
        self._heads = int(adapter.config.num_attention_heads)

    def forward(self, view: DecoderInput, source: Tensor) -> Tensor:
        """source: (B, H); return (B, L, H), where position 0 has no meaning."""
        assert view.visible is not None
        adapter = view.adapter
        content = replace_first(source, adapter.embed(view.clean_ids, view.types))  # (B, L, H)
        query = content[:, :1] + adapter.embed_positions(content.shape[1])  # (B, 1, H) + (L, H)
        seen = build_visible_mask(view.visible, view.attention)
        layer = self.layer
        if adapter.family == "distilbert":
            attention = layer.attention
            context = self._attend(
                attention.q_lin(query), attention.k_lin(content), attention.v_lin(content), seen, attention.dropout.p
            )
            mixed = layer.sa_layer_norm(attention.out_lin(context) + query)
            distilled: Tensor = layer.output_layer_norm(layer.ffn(mixed) + mixed)
            return distilled
        attention = layer.attention.self
        context = self._attend(
            attention.query(query), attention.key(content), attention.value(content), seen, attention.dropout.p
        )
        output: Tensor = layer.feed_forward_chunk(layer.attention.output(context, query))
        return output

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, seen: Tensor, dropout: float) -> Tensor:
        """query, key, value: (B, L, H); seen: (B, L, L); return (B, L, H)."""
        query, key, value = (
            part.unflatten(-1, (self._heads, -1)).transpose(1, 2)  # (B, heads, L, H / heads)
            for part in (query, key, value)
        )
        context = F.scaled_dot_product_attention(
            query, key, value, attn_mask=seen.unsqueeze(1), dropout_p=dropout if self.training else 0.0
        )
        return context.transpose(1, 2).flatten(2)


def build_visible_mask(visible: Tensor, attention: Tensor) -> Tensor:
    """Remove each row itself and padding from `visible`, (B, L, L) bool; position 0 is always visible.

    attention: (B, L)
    """
    itself = torch.eye(visible.shape[1], dtype=torch.bool, device=visible.device)
    seen = visible & ~itself & attention.bool().unsqueeze(1)
    seen[:, :, 0] = True
    return seen
