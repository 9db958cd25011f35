"""The plots of drtk plot, by name."""

from __future__ import annotations

from drtk.registry import Registry

PLOTS = Registry(
    "plot",
    {
        "recall": ("drtk.evaluation.plots.runs:RecallCurves", "recall by depth, one line per run"),
        "training": ("drtk.evaluation.plots.training:TrainingCurves", "fields of training logs by step"),
        "differences": ("drtk.evaluation.plots.runs:Differences", "difference of two runs, one bar per query"),
        "scores": ("drtk.evaluation.plots.runs:ScoreDistributions", "scores of relevant and other documents"),
        "space": (
            "drtk.evaluation.plots.vectors:CosineDistributions",
            "cosines of matching and random pairs, alignment, uniformity",
        ),
        "cosine": ("drtk.evaluation.plots.vectors:CosineByRating", "cosines of sentence pairs by human rating"),
    },
)
