"""Measures drtk computes itself, by name; pytrec_eval and ir_measures have the others."""

from __future__ import annotations

from drtk.registry import Registry

METRICS = Registry(
    "measure",
    {
        "RR": ("drtk.evaluation.metrics:reciprocal_rank", "reciprocal rank of the first relevant document (MRR)"),
        "Answer": ("drtk.evaluation.metrics:answered", "whether one of the first k passages contains an answer"),
        "nDCG": ("drtk.evaluation.metrics:ndcg", "discounted cumulative gain, with gains of one's choice"),
        "num_rel": ("drtk.evaluation.metrics:relevant", "number of relevant documents"),
        "iprec_at_recall": ("drtk.evaluation.metrics:interpolated_precision", "best precision from a recall level on"),
        "11pt_avg": (
            "drtk.evaluation.metrics:averaged_precision",
            "interpolated precision averaged over recall levels",
        ),
        "rbp": ("drtk.evaluation.metrics:rank_biased_precision", "rank-biased precision"),
        "rbp_resid": ("drtk.evaluation.metrics:rank_biased_residual", "what unjudged documents could add to rbp"),
        "unj": ("drtk.evaluation.metrics:unjudged", "share of the first k that is not judged"),
        "utility": ("drtk.evaluation.metrics:utility", "weighted counts of what was found and missed"),
        "relstring": ("drtk.evaluation.metrics:relevance_string", "grades of the first k as a string"),
    },
)
