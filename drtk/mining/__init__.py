"""Hard-negative mining from runs, indexes and training examples; mining policies by name."""

from __future__ import annotations

from drtk.registry import Registry

MINING = Registry(
    "mining policy",
    {
        "msmarco": (
            "drtk.mining.policies:MSMARCO",
            "sample 200 negatives, fill up to 210 with random passages (SimLM)",
        ),
        "tevatron": ("drtk.mining.policies:TEVATRON", "sample 128 negatives (Tevatron)"),
        "nq": (
            "drtk.mining.policies:NQ",
            "keep all of the top 100 without an answer; the others become positives (SimLM)",
        ),
        "sbert": (
            "drtk.mining.policies:SBERT",
            "keep the top 5 of each source that score at least 3 below the positives by cross-encoder (BEIR)",
        ),
    },
)
