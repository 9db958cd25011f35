"""Registry of the decoders of pre-training (`reader` in a composition).

A decoder is an nn.Module class, created as Decoder(adapter, **options) and called as decoder(input, source) -> (B, L, H) with
a `DecoderInput` of decoders/transformer.py and the vector `source`, (B, H). Class attributes: `needs_source`, whether it
requires the vector; `says_next`, whether its output at a token predicts the next one; `own_head`, whether it has its own
`encoder` and a copy of the masked-LM head with that encoder's embeddings.
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
