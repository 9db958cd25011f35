"""Hard-negative mining: `mine` runs a job, `miner` is the loop, `filters` reject candidates, `policies` sample."""

from __future__ import annotations

from drtk.registry import Registry

MINING = Registry(
    "mining policy",
    {
        "msmarco": (
            "drtk.mining.policies:MSMARCO",
            "200 drawn, filled up to 210 with random passages (SimLM)",
        ),
        "tevatron": ("drtk.mining.policies:TEVATRON", "128 drawn, nothing filled (Tevatron)"),
        "nq": (
            "drtk.mining.policies:NQ",
            "all of 100 without an answer; those with one become positives (SimLM)",
        ),
        "sbert": (
            "drtk.mining.policies:SBERT",
            "the first 5 of each system that a cross-encoder puts 3 below the positives (BEIR)",
        ),
    },
)
