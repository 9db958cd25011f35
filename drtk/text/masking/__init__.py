"""Which word pieces of a text are hidden, by name."""

from drtk.registry import Registry

# A Strategy of drtk/text/masking/base.py each: (text, rate, *, rng, counted, other, **options) -> (tokens,) bool.
MASKING = Registry(
    "masking strategy",
    {
        "random": ("drtk.text.masking.random:random_tokens", "every token alike"),
        "bernoulli": (
            "drtk.text.masking.random:bernoulli",
            "every token with the same chance, no fixed budget (DiffCSE)",
        ),
        "whole-word": ("drtk.text.masking.whole_word:whole_words", "all pieces of a word together"),
        "rom": ("drtk.text.masking.rom:rom", "the largest of a uniform draw plus the weight (ROM)"),
        "keyword": ("drtk.text.masking.keyword:keyword", "words drawn in proportion to their weight (MASTER)"),
        "extension": ("drtk.text.masking.extension:extension", "a superset of another mask (SimLM decoder)"),
        "complement": ("drtk.text.masking.complement:complement", "what another mask left visible (MASTER)"),
    },
)
