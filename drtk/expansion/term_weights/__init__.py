"""Ways to weigh the words of a passage, by name; each loads when used."""

from __future__ import annotations

from drtk.registry import Registry

TERM_WEIGHTS = Registry(
    "term weighting method",
    {
        "bprop": (
            "drtk.expansion.term_weights.bprop:Bprop",
            "attention, against that in the whole collection (B-PROP)",
        ),
        "tfidf": (
            "drtk.expansion.term_weights.counted:TfIdf",
            "share of the passage times log(passages / its passages)",
        ),
        "inv-freq": (
            "drtk.expansion.term_weights.counted:InverseFrequency",
            "1 / occurrences in the collection (MASTER)",
        ),
        "idf": ("drtk.expansion.term_weights.counted:Idf", "rarity alone, as BM25 has it"),
        "bm25": ("drtk.expansion.term_weights.counted:Bm25", "what the word adds to a BM25 score"),
        "deepct": (
            "drtk.expansion.term_weights.learned:DeepCT",
            "how likely questions have the word, learned (DeepCT)",
        ),
        "deepimpact": (
            "drtk.expansion.term_weights.learned:DeepImpact",
            "what the word adds to a score, learned (DeepImpact)",
        ),
    },
)
