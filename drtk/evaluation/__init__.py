"""Measures that drtk computes from grades by rank, by name; all others are in metrics.RANK_MEASURES, pytrec_eval or ir_measures."""

from __future__ import annotations

from drtk.registry import Registry

METRICS = Registry(
    "measure",
    {
        "Answer": ("drtk.evaluation.metrics:has_answer", "whether one of the first k passages contains an answer"),
        "num_rel": ("drtk.evaluation.metrics:count_relevant", "number of relevant documents"),
        "iprec_at_recall": (
            "drtk.evaluation.metrics:precision_at_recall",
            "highest precision at or above a recall level",
        ),
        "11pt_avg": (
            "drtk.evaluation.metrics:eleven_point_average",
            "interpolated precision averaged over recall levels",
        ),
        "rbp": ("drtk.evaluation.metrics:rank_biased_precision", "rank-biased precision"),
        "rbp_resid": ("drtk.evaluation.metrics:rank_biased_residual", "what unjudged documents could add to rbp"),
        "unj": ("drtk.evaluation.metrics:share_unjudged", "share of the first k that is not judged"),
        "utility": ("drtk.evaluation.metrics:utility", "weighted counts of documents found and missed"),
        "relstring": ("drtk.evaluation.metrics:relevance_string", "grades of the first k as a string"),
    },
)
