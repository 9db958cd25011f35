"""Which word pieces of a text are hidden, by name."""

from __future__ import annotations

from drtk.registry import Registry

# A Strategy of drtk/pretraining/masking/base.py each: (text, rate, *, rng, counted, other, **options) -> (tokens,) bool.
MASKING = Registry(
    "masking strategy",
    {
        "random": ("drtk.pretraining.masking.strategies:random_tokens", "every token alike"),
        "bernoulli": (
            "drtk.pretraining.masking.strategies:bernoulli",
            "every token with the same chance, no fixed budget (DiffCSE)",
        ),
        "whole-word": ("drtk.pretraining.masking.strategies:whole_words", "all pieces of a word together"),
        "rom": ("drtk.pretraining.masking.strategies:rom", "the largest of a uniform draw plus the weight (ROM)"),
        "keyword": (
            "drtk.pretraining.masking.strategies:keyword",
            "words drawn in proportion to their weight (MASTER)",
        ),
        "extension": ("drtk.pretraining.masking.strategies:extension", "a superset of another mask (SimLM decoder)"),
        "complement": ("drtk.pretraining.masking.strategies:complement", "what another mask left visible (MASTER)"),
    },
)
