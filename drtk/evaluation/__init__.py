"""Evaluate runs, answers and sentence vectors."""

from __future__ import annotations

from drtk.registry import Registry

METRICS = Registry(
    "measure",
    {
        "Answer": ("drtk.evaluation.metrics:success", "whether a top-k passage contains an answer"),
        "num_rel": ("drtk.evaluation.metrics:count_relevant", "number of relevant documents"),
        "iprec_at_recall": ("drtk.evaluation.metrics:precision_at_recall", "interpolated precision at a recall level"),
        "11pt_avg": (
            "drtk.evaluation.metrics:eleven_point_average",
            "interpolated precision averaged over recall levels",
        ),
        "rbp": ("drtk.evaluation.metrics:rank_biased_precision", "rank-biased precision"),
        "rbp_resid": ("drtk.evaluation.metrics:rank_biased_residual", "possible gain of rbp by unjudged documents"),
        "unj": ("drtk.evaluation.metrics:compute_unjudged_share", "share of unjudged documents in the top k"),
        "utility": ("drtk.evaluation.metrics:utility", "weighted counts of retrieved and missed documents"),
        "relstring": ("drtk.evaluation.metrics:relevance_string", "grades of the top k as a string"),
    },
)
