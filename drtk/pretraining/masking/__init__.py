"""Registry of masking strategies, which select the tokens of a slot (an input text of the encoder) to mask.

A strategy is a function (MaskInput of masking/strategies.py, **options) -> (tokens,) bool, True at masked tokens. Special
tokens are never masked.
"""

from __future__ import annotations

from drtk.registry import Registry

_HERE = "drtk.pretraining.masking.strategies"
MASKING = Registry(
    "masking strategy",
    {
        "random": (f"{_HERE}:mask_random_tokens", "tokens sampled uniformly"),
        "bernoulli": (f"{_HERE}:mask_bernoulli", "each token independently with the same probability (DiffCSE)"),
        "whole-word": (f"{_HERE}:mask_whole_words", "whole words"),
        "rom": (f"{_HERE}:mask_rom", "tokens with the largest sum of weight and uniform random number (ROM)"),
        "keyword": (f"{_HERE}:mask_keywords", "words sampled in proportion to their weight (MASTER)"),
        "extension": (
            f"{_HERE}:mask_extension",
            "the tokens that another slot masks, and more words (SimLM's decoder)",
        ),
        "complement": (f"{_HERE}:mask_complement", "the tokens that another slot does not mask (MASTER)"),
    },
)
