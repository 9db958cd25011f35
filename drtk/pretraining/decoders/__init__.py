"""Networks that look at the tokens of a slot, helped by a vector; the registry of them."""

from __future__ import annotations

from drtk.registry import Registry

# A class made as Reader(anatomy, **options), called as reader(view, source) -> (B, L, H); see drtk/pretraining/decoders/base.py.
# `needs_source = True` says that it cannot do without the vector, `says_next = True` that its state at a token is about the next
# one, `own_head = True` that it shares no head: it has an `encoder`, and its copy of the head takes the embeddings of that.
READERS = Registry(
    "reader",
    {
        "encoder": ("drtk.pretraining.decoders.transformer:EncoderReader", "the encoder's own last states"),
        "decoder": (
            "drtk.pretraining.decoders.transformer:Decoder",
            "the vector and the embedded tokens, through a few layers",
        ),
        "causal": ("drtk.pretraining.decoders.causal:CausalReader", "the same, left to right within a window"),
        "two-stream": (
            "drtk.pretraining.decoders.two_stream:TwoStream",
            "positions ask, the visible tokens answer (RetroMAE)",
        ),
        "condenser": (
            "drtk.pretraining.decoders.transformer:Condenser",
            "the late first state and the tokens of an early layer",
        ),
        "discriminator": (
            "drtk.pretraining.decoders.transformer:Discriminator",
            "a second encoder with the vector for its first token (DiffCSE)",
        ),
    },
)
