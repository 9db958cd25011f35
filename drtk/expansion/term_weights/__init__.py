"""Term weighting methods by name; the class of a method is imported at its first use."""

from __future__ import annotations

from drtk.registry import Registry

TERM_WEIGHTS = Registry(
    "term weighting method",
    {
        "bprop": (
            "drtk.expansion.term_weights.bprop:Bprop",
            "attention of [CLS], contrasted with that in the collection (B-PROP)",
        ),
        "tfidf": (
            "drtk.expansion.term_weights.count_based:TfIdf",
            "term frequency times inverse document frequency (MASTER)",
        ),
        "inv-freq": (
            "drtk.expansion.term_weights.count_based:InverseFrequency",
            "1 / occurrences in the collection (MASTER's code)",
        ),
        "idf": ("drtk.expansion.term_weights.count_based:Idf", "inverse document frequency of BM25"),
        "bm25": ("drtk.expansion.term_weights.count_based:Bm25", "BM25 term score"),
        "deepct": (
            "drtk.expansion.term_weights.learned:DeepCT",
            "learned term recall: how likely questions contain the word (DeepCT)",
        ),
        "deepimpact": (
            "drtk.expansion.term_weights.learned:DeepImpact",
            "learned impact of the word on the score (DeepImpact)",
        ),
    },
)
