"""Masking strategies by name: which word pieces of a slot are hidden.

A strategy is a function (MaskInput of masking/strategies.py, **options) -> (tokens,) bool, True at hidden pieces; special
tokens are never hidden. SimLM: `whole-word` for the encoder, `extension` for the decoder.
"""

from __future__ import annotations

from drtk.registry import Registry

_HERE = "drtk.pretraining.masking.strategies"
MASKING = Registry(
    "masking strategy",
    {
        "random": (f"{_HERE}:mask_random_tokens", "every token alike"),
        "bernoulli": (f"{_HERE}:mask_bernoulli", "every token with the same chance, no fixed budget (DiffCSE)"),
        "whole-word": (f"{_HERE}:mask_whole_words", "all pieces of a word together"),
        "rom": (f"{_HERE}:mask_rom", "the largest of a uniform draw plus the weight (ROM)"),
        "keyword": (f"{_HERE}:mask_keywords", "words drawn in proportion to their weight (MASTER)"),
        "extension": (f"{_HERE}:mask_extension", "a superset of another mask (SimLM decoder)"),
        "complement": (f"{_HERE}:mask_complement", "what another mask left visible (MASTER)"),
    },
)
