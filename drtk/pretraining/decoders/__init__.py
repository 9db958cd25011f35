"""Registry of the decoders of pre-training (`reader` in a preset). A decoder predicts tokens from a text vector and token states.

A decoder is an nn.Module class, created as Decoder(adapter, **options). The call decoder(inputs, source) gets a `DecoderInput`
of decoders/transformer.py and the text vectors `source`, (B, H), and returns hidden states, (B, L, H). Class attributes:

needs_source: whether the decoder requires text vectors
predicts_next: whether the output at a token predicts the next token
uses_own_vector: whether the decoder uses the [CLS] vector of its own slot as text vector
own_head: whether the decoder has an `encoder`, and a copy of the masked-LM head with the embeddings of that encoder
"""

from __future__ import annotations

from drtk.registry import Registry

_HERE = "drtk.pretraining.decoders.transformer"
DECODERS = Registry(
    "reader",
    {
        "encoder": (f"{_HERE}:EncoderOutput", "no decoder: the last hidden states of the encoder"),
        "decoder": (
            f"{_HERE}:Decoder",
            "a shallow decoder over the vector and the token embeddings (SimLM, CoT-MAE, MASTER)",
        ),
        "causal": (
            "drtk.pretraining.decoders.causal:CausalDecoder",
            "a shallow causal decoder with a local attention window (query-as-context)",
        ),
        "two-stream": (f"{_HERE}:TwoStreamDecoder", "two-stream attention over visible tokens (RetroMAE)"),
        "condenser": (f"{_HERE}:CondenserHead", "late [CLS] state with token states of an earlier layer (Condenser)"),
        "discriminator": (f"{_HERE}:Discriminator", "a copy of the encoder with the vector as first token (DiffCSE)"),
    },
)
