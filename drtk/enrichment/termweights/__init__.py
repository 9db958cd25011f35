"""Ways to weigh the words of a passage, by name; each loads when used."""

from drtk.registry import Registry

TERM_WEIGHTS = Registry(
    "term weighting method",
    {
        "bprop": (
            "drtk.enrichment.termweights.bprop:Bprop",
            "attention, against that in the whole collection (B-PROP)",
        ),
        "tfidf": (
            "drtk.enrichment.termweights.counted:TfIdf",
            "share of the passage times log(passages / its passages)",
        ),
        "inv-freq": (
            "drtk.enrichment.termweights.counted:InverseFrequency",
            "1 / occurrences in the collection (MASTER)",
        ),
        "idf": ("drtk.enrichment.termweights.counted:Idf", "rarity alone, as BM25 has it"),
        "bm25": ("drtk.enrichment.termweights.counted:Bm25", "what the word adds to a BM25 score"),
        "deepct": ("drtk.enrichment.termweights.deepct:DeepCT", "how likely questions have the word, learned (DeepCT)"),
        "deepimpact": (
            "drtk.enrichment.termweights.deepimpact:DeepImpact",
            "what the word adds to a score, learned (DeepImpact)",
        ),
    },
)
