"""The decoders of pre-training, which predict tokens from a text vector, token embeddings or states.

A decoder is an nn.Module class, created as Decoder(adapter, **options). The call decoder(inputs, source) gets a `DecoderInput`
and the text vectors `source`, (B, H), and returns hidden states, (B, L, H). Class attributes (default False):

needs_source: whether the decoder requires text vectors
predicts_next: whether the output at a token predicts the next token
uses_own_vector: whether the decoder uses the last [CLS] state of its own input as text vector if `source` is None
own_head: whether the decoder has its own `encoder`; the masked-LM head is then a copy with the embeddings of this encoder
"""

from __future__ import annotations

import math
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
from drtk.registry import Registry

_DROPOUTS = ("hidden_dropout_prob", "dropout"), ("attention_probs_dropout_prob", "attention_dropout")

DECODERS = Registry(
    "decoder",
    {
        "encoder": (f"{__name__}:EncoderOutput", "no decoder; uses the last hidden states of the encoder"),
        "decoder": (
            f"{__name__}:Decoder",
            "a shallow decoder over the text vector and the token embeddings (SimLM, CoT-MAE, MASTER)",
        ),
        "causal": (
            f"{__name__}:CausalDecoder",
            "a shallow causal decoder with a local attention window (query-as-context)",
        ),
        "two-stream": (f"{__name__}:TwoStreamDecoder", "two-stream attention over visible tokens (RetroMAE)"),
        "condenser": (
            f"{__name__}:CondenserHead",
            "layers over the last [CLS] state and the token states of an earlier layer (Condenser)",
        ),
        "discriminator": (
            f"{__name__}:Discriminator",
            "a copy of the encoder with the text vector as first token (DiffCSE)",
        ),
    },
)


@dataclass(frozen=True)
class DecoderInput:
    """The input of a decoder: the tokens of one encoder input (slot), (B, L), padded on the right.

    adapter: adapter of the encoder
    ids: token ids with masked or replaced tokens    original_ids: token ids before masking
    attention: 1 at tokens, 0 at padding    types: token types; None: all 0
    get_states: function that returns the encoder's hidden states for this input, as `BackboneAdapter.encode` does
    attention_mask: (B, L, L) bool, True at (i, j) if token i may attend to token j (decoder "two-stream" only)
    """

    adapter: BackboneAdapter
    ids: Tensor
    original_ids: Tensor
    attention: Tensor
    types: Tensor | None
    get_states: Callable[[], list[Tensor]]
    attention_mask: Tensor | None = None


def replace_first_token(source: Tensor, hidden: Tensor) -> Tensor:
    """Return `hidden`, (B, L, H), with the first token replaced by `source`, (B, H)."""
    return torch.cat([source.unsqueeze(1).to(hidden.dtype), hidden[:, 1:]], dim=1)


def run_decoder_layers(adapter: BackboneAdapter, layers: nn.ModuleList, hidden: Tensor, attention: Tensor) -> Tensor:
    """Return the output of the last layer after the encoder's final norm, if it has one, (B, L, H).

    hidden: (B, L, H), input of the first layer    attention: (B, L), 0 at padding
    """
    states = adapter.run_layers(layers, hidden, adapter.build_attention_mask(attention))
    return adapter.apply_final_norm(states[-1])


def check_position_embeddings(adapter: BackboneAdapter, decoder: str) -> None:
    """Raise MismatchError if the encoder has no position embeddings. decoder: name for the error message"""
    if not adapter.has_positions:
        raise MismatchError(
            f"decoder '{decoder}' requires position embeddings, which {adapter.family} lacks; use an encoder such as BERT"
        )


class EncoderOutput(nn.Module):
    """A decoder without parameters, which returns the last hidden states of the encoder."""

    def __init__(self, adapter: BackboneAdapter) -> None:
        super().__init__()

    def forward(self, inputs: DecoderInput, source: Tensor | None = None) -> Tensor:
        """Return the hidden states, (B, L, H). source: not used"""
        return inputs.get_states()[-1]


class Decoder(nn.Module):
    """A shallow bidirectional decoder with layers of the encoder's type, over the text vector and the token embeddings.

    The text vector replaces the first token, without position embedding or layer norm. The embeddings are shared with the encoder.

    layers: number of layers    init: "random" (CoT-MAE, MASTER), or "copy" of the encoder's last layers (SimLM)
    Raises MismatchError for init "copy" if `layers` exceeds the number of encoder layers.
    """

    needs_source = True

    def __init__(
        self, adapter: BackboneAdapter, *, layers: Count = 2, init: Literal["random", "copy"] = "random"
    ) -> None:
        super().__init__()
        self.layers = adapter.create_layers(layers, init)

    def forward(self, inputs: DecoderInput, source: Tensor) -> Tensor:
        """Return the hidden states, (B, L, H). source: text vectors, (B, H)"""
        adapter = inputs.adapter
        hidden = replace_first_token(source, adapter.embed(inputs.ids, inputs.types))
        return run_decoder_layers(adapter, self.layers, hidden, inputs.attention)


class CondenserHead(nn.Module):
    """Condenser's head: layers over the [CLS] state of the encoder's last layer and the token states of an earlier layer.

    layers: number of layers    init: "random", or "copy" of the encoder's last layers
    skip: number of the earlier layer; 0: the embeddings; "half": the middle layer
    Raises MismatchError if the encoder has no layer `skip`, or for init "copy" if it has fewer than `layers` layers.
    """

    uses_own_vector = True

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
                f"decoder 'condenser': skip = {self.skip} must be between 0 and {adapter.depth}, the number of encoder layers"
            )
        self.layers = adapter.create_layers(layers, init)

    def forward(self, inputs: DecoderInput, source: Tensor | None = None) -> Tensor:
        """Return the hidden states, (B, L, H). source: text vectors, (B, H); None: the last [CLS] states of `inputs`"""
        states, adapter = inputs.get_states(), inputs.adapter
        first = states[-1][:, :1] if source is None else source.unsqueeze(1)
        hidden = torch.cat([first, states[self.skip][:, 1:]], dim=1)
        return run_decoder_layers(adapter, self.layers, hidden, inputs.attention)


class Discriminator(nn.Module):
    """DiffCSE's discriminator: a copy of the encoder, with the text vector as the embedding of the first token."""

    needs_source = True
    own_head = True

    def __init__(self, adapter: BackboneAdapter) -> None:
        super().__init__()
        self.encoder = deepcopy(adapter.backbone)
        if getattr(self.encoder, "pooler", None) is not None:  # not used, so its parameters would have no gradient
            self.encoder.pooler = None
        self.encoder.requires_grad_(True)
        self._adapter = BackboneAdapter(self.encoder)

    def forward(self, inputs: DecoderInput, source: Tensor) -> Tensor:
        """Return the hidden states, (B, L, H). source: text vectors, (B, H)"""
        hidden = replace_first_token(source, self._adapter.embed(inputs.ids, inputs.types))
        return run_decoder_layers(self._adapter, self._adapter.layers, hidden, inputs.attention)


class TwoStreamDecoder(nn.Module):
    """RetroMAE's decoder: one layer of two-stream attention.

    The queries are the text vector plus position embeddings. The keys and values are the embeddings of the original tokens,
    with the text vector in place of the first token.

    visible: share of the other tokens to which a token attends, in [0, 1] (docs/methods/retromae.md); used by
        PretrainingCollator, which samples the tokens
    Raises MismatchError for an encoder without position embeddings.
    """

    needs_source = True

    def __init__(self, adapter: BackboneAdapter, *, visible: Share = 0.5) -> None:
        super().__init__()
        check_position_embeddings(adapter, "two-stream")
        self.layer: Any = adapter.create_layers(1)[0]
        self._heads = int(adapter.config.num_attention_heads)

    def forward(self, inputs: DecoderInput, source: Tensor) -> Tensor:
        """Return the hidden states, (B, L, H), without meaning at position 0. source: text vectors, (B, H)"""
        assert inputs.attention_mask is not None
        adapter = inputs.adapter
        content = replace_first_token(source, adapter.embed(inputs.original_ids, inputs.types))  # (B, L, H)
        query = content[:, :1] + adapter.embed_positions(content.shape[1])  # (B, 1, H) + (L, H)
        visible = build_visible_mask(inputs.attention_mask, inputs.attention)
        layer = self.layer
        if adapter.family == "distilbert":
            attention = layer.attention
            context = self._attend(
                attention.q_lin(query), attention.k_lin(content), attention.v_lin(content), visible, attention.dropout.p
            )
            mixed = layer.sa_layer_norm(attention.out_lin(context) + query)
            return layer.output_layer_norm(layer.ffn(mixed) + mixed)
        attention = layer.attention.self
        context = self._attend(
            attention.query(query), attention.key(content), attention.value(content), visible, attention.dropout.p
        )
        return layer.feed_forward_chunk(layer.attention.output(context, query))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor, dropout: float) -> Tensor:
        """Return multi-head attention, (B, L, H). query, key, value: (B, L, H)    visible: (B, L, L) bool"""
        query, key, value = (
            part.unflatten(-1, (self._heads, -1)).transpose(1, 2)  # (B, heads, L, H / heads)
            for part in (query, key, value)
        )
        context = F.scaled_dot_product_attention(
            query, key, value, attn_mask=visible.unsqueeze(1), dropout_p=dropout if self.training else 0.0
        )
        return context.transpose(1, 2).flatten(2)


def build_visible_mask(visible: Tensor, attention: Tensor) -> Tensor:
    """Return `visible` with padding and the diagonal set to False and column 0 set to True.

    So a token attends to the text vector in column 0, but not to itself.

    visible, result: (B, L, L) bool, True at (i, j) if token i attends to token j    attention: (B, L), 0 at padding
    """
    itself = torch.eye(visible.shape[1], dtype=torch.bool, device=visible.device)
    visible = visible & ~itself & attention.bool().unsqueeze(1)
    visible[:, :, 0] = True
    return visible


class CausalDecoder(nn.Module):
    """A shallow causal decoder of GPT-2 blocks and a final norm, over the text vector and the token embeddings.

    The text vector replaces the first token. A token attends to the text vector and to the last `window` tokens including itself.
    The output at position t predicts token t + 1.

    layers: number of blocks    Raises MismatchError for an encoder without position embeddings.
    """

    needs_source = True
    predicts_next = True

    def __init__(self, adapter: BackboneAdapter, *, layers: Count = 1, window: Count = 3) -> None:
        super().__init__()
        check_position_embeddings(adapter, "causal")
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
        hidden = replace_first_token(source, inputs.adapter.embed(inputs.ids, inputs.types))
        visible = self.build_visible_mask(inputs.attention)
        for block in self.blocks:
            hidden = block(hidden, visible)
        return self.norm(hidden)

    def build_visible_mask(self, attention: Tensor) -> Tensor:
        """Return the attention mask, (B, 1, L, L) bool, True if the row attends to the column. attention: (B, L), 0 at padding"""
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
        return hidden + self.dropout(self.down(inner))
