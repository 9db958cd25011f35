"""Mining policies by name; each loads when used."""

from drtk.registry import Registry

MINING = Registry(
    "mining policy",
    {
        "msmarco": (
            "drtk.retrieval.mining.policies:MSMARCO",
            "200 drawn, filled up to 210 with random passages (SimLM)",
        ),
        "tevatron": ("drtk.retrieval.mining.policies:TEVATRON", "128 drawn, nothing filled (Tevatron)"),
        "nq": (
            "drtk.retrieval.mining.policies:NQ",
            "all of 100 without an answer; those with one become positives (SimLM)",
        ),
        "sbert": (
            "drtk.retrieval.mining.policies:SBERT",
            "the first 5 of each system that a cross-encoder puts 3 below the positives (BEIR)",
        ),
    },
)
