"""Bidirectional decoders: shallow decoder, Condenser's head, RetroMAE's decoder, DiffCSE's discriminator."""

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
    """The input of a decoder: the tokens of a slot, (B, L) each, padded on the right.

    adapter: adapter of the encoder
    ids: input ids, with masked or replaced tokens    clean_ids: original ids
    attention: 1 at tokens, 0 at padding    types: token types; None: all 0
    states: returns the encoder's hidden states of these tokens, as `BackboneAdapter.encode` does
    visible: (B, L, L) bool, the tokens that each token may see; for "two-stream" only
    """

    adapter: BackboneAdapter
    ids: Tensor
    clean_ids: Tensor
    attention: Tensor
    types: Tensor | None
    states: Callable[[], list[Tensor]]
    visible: Tensor | None = None


def replace_first(source: Tensor, hidden: Tensor) -> Tensor:
    """Return `hidden`, (B, L, H), with the first token replaced by `source`, (B, H)."""
    return torch.cat([source.unsqueeze(1).to(hidden.dtype), hidden[:, 1:]], dim=1)


class EncoderOutput(nn.Module):
    """Return the last hidden states of the encoder. It has no parameters and uses no vector."""

    def __init__(self, adapter: BackboneAdapter) -> None:
        super().__init__()

    def forward(self, view: DecoderInput, source: Tensor | None = None) -> Tensor:
        """Return (B, L, H)."""
        return view.states()[-1]


class Decoder(nn.Module):
    """Run [source ; embed(ids)[:, 1:]] through `layers` bidirectional layers of the encoder's type.

    The embeddings are the encoder's; the vector gets no position embedding and no norm.

    init: "random" (CoT-MAE, MASTER), or "copy" of the encoder's last layers (SimLM)
    Raises MismatchError for more copies than the encoder has layers.
    """

    needs_source = True

    def __init__(
        self, adapter: BackboneAdapter, *, layers: Count = 2, init: Literal["random", "copy"] = "random"
    ) -> None:
        super().__init__()
        self.layers = adapter.create_layers(layers, init)

    def forward(self, view: DecoderInput, source: Tensor) -> Tensor:
        """Return (B, L, H). source: (B, H)"""
        adapter = view.adapter
        hidden = replace_first(source, adapter.embed(view.ids, view.types))
        return adapter.apply_final_norm(
            adapter.run_layers(self.layers, hidden, adapter.build_attention_mask(view.attention))[-1]
        )


class CondenserHead(nn.Module):
    """Run [states[-1][:, 0] ; states[skip][:, 1:]] through `layers` layers of the encoder's type.

    own_vector: its bottleneck is the slot's own [CLS] vector, so the composition names no source
    skip: layer whose output is used for the other tokens; 0: the embeddings; "half": half the depth
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
            raise MismatchError(
                f"decoder 'condenser': skip = {self.skip} is not a layer of the encoder, which has {adapter.depth}"
            )
        self.layers = adapter.create_layers(layers, init)

    def forward(self, view: DecoderInput, source: Tensor | None = None) -> Tensor:
        """Return (B, L, H). source: (B, H), replaces the slot's own vector to measure the bottleneck gain"""
        states, adapter = view.states(), view.adapter
        first = states[-1][:, :1] if source is None else source.unsqueeze(1)
        hidden = torch.cat([first, states[self.skip][:, 1:]], dim=1)
        return adapter.apply_final_norm(
            adapter.run_layers(self.layers, hidden, adapter.build_attention_mask(view.attention))[-1]
        )


class Discriminator(nn.Module):
    """A separate copy of the encoder with the vector as its first embedding (DiffCSE)."""

    needs_source = True
    own_head = True

    def __init__(self, adapter: BackboneAdapter) -> None:
        super().__init__()
        self.encoder = deepcopy(adapter.backbone)
        if getattr(self.encoder, "pooler", None) is not None:  # not used, so its parameters would have no gradient
            self.encoder.pooler = None
        self.encoder.requires_grad_(True)
        self._adapter = BackboneAdapter(self.encoder)

    def forward(self, view: DecoderInput, source: Tensor) -> Tensor:
        """Return (B, L, H). source: (B, H)"""
        own = self._adapter
        hidden = replace_first(source, own.embed(view.ids, view.types))
        return own.apply_final_norm(own.run_layers(own.layers, hidden, own.build_attention_mask(view.attention))[-1])


class TwoStreamDecoder(nn.Module):
    """RetroMAE's decoder: one layer of two-stream attention.

    Queries are vector + position embedding; keys and values are [source ; embed(original ids)[:, 1:]].

    visible: share of the other tokens that a position may see (docs/methods/retromae.md)
    Raises MismatchError for an encoder without position embeddings.
    """

    needs_source = True

    def __init__(self, adapter: BackboneAdapter, *, visible: Share = 0.5) -> None:
        super().__init__()
        if not adapter.has_positions:
            raise MismatchError(
                f"decoder 'two-stream' needs position embeddings; an encoder of type {adapter.family} has none"
            )
        self.layer: Any = adapter.create_layers(1)[0]
        self._heads = int(adapter.config.num_attention_heads)

    def forward(self, view: DecoderInput, source: Tensor) -> Tensor:
        """Return (B, L, H), undefined at position 0. source: (B, H)"""
        assert view.visible is not None
        adapter = view.adapter
        content = replace_first(source, adapter.embed(view.clean_ids, view.types))  # (B, L, H)
        query = content[:, :1] + adapter.embed_positions(content.shape[1])  # (B, 1, H) + (L, H)
        visible = build_visible_mask(view.visible, view.attention)
        layer = self.layer
        if adapter.family == "distilbert":
            attention = layer.attention
            context = self._attend(
                attention.q_lin(query), attention.k_lin(content), attention.v_lin(content), visible, attention.dropout.p
            )
            mixed = layer.sa_layer_norm(attention.out_lin(context) + query)
            states: Tensor = layer.output_layer_norm(layer.ffn(mixed) + mixed)
            return states
        attention = layer.attention.self
        context = self._attend(
            attention.query(query), attention.key(content), attention.value(content), visible, attention.dropout.p
        )
        output: Tensor = layer.feed_forward_chunk(layer.attention.output(context, query))
        return output

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor, dropout: float) -> Tensor:
        """Return (B, L, H). query, key, value: (B, L, H)    visible: (B, L, L) bool"""
        query, key, value = (
            part.unflatten(-1, (self._heads, -1)).transpose(1, 2)  # (B, heads, L, H / heads)
            for part in (query, key, value)
        )
        context = F.scaled_dot_product_attention(
            query, key, value, attn_mask=visible.unsqueeze(1), dropout_p=dropout if self.training else 0.0
        )
        return context.transpose(1, 2).flatten(2)


def build_visible_mask(visible: Tensor, attention: Tensor) -> Tensor:
    """Return `visible` without padding and without each token itself, (B, L, L) bool; position 0 is always visible.

    visible: (B, L, L) bool    attention: (B, L)
    """
    itself = torch.eye(visible.shape[1], dtype=torch.bool, device=visible.device)
    visible = visible & ~itself & attention.bool().unsqueeze(1)
    visible[:, :, 0] = True
    return visible
