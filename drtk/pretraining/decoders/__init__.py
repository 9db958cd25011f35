"""Decoders (`reader` in a composition) by name: modules that look at the tokens of a slot, helped by a vector.

A class made as Reader(adapter, **options) and called as reader(input, source) -> (B, L, H), with a `DecoderInput` of
decoders/transformer.py. Attributes: `needs_source`, it requires the vector; `says_next`, its state at a token predicts the next
one; `own_head`, it has an `encoder` and a copy of the masked-LM head with that encoder's embeddings.
"""

from __future__ import annotations

from drtk.registry import Registry

_HERE = "drtk.pretraining.decoders.transformer"
DECODERS = Registry(
    "reader",
    {
        "encoder": (f"{_HERE}:EncoderOutput", "the encoder's own last states"),
        "decoder": (f"{_HERE}:Decoder", "the vector and the embedded tokens, through a few layers"),
        "causal": ("drtk.pretraining.decoders.causal:CausalDecoder", "the same, left to right within a window"),
        "two-stream": (f"{_HERE}:TwoStreamDecoder", "positions ask, the visible tokens answer (RetroMAE)"),
        "condenser": (f"{_HERE}:CondenserHead", "the late first state and the tokens of an early layer"),
        "discriminator": (f"{_HERE}:Discriminator", "a second encoder with the vector for its first token (DiffCSE)"),
    },
)
