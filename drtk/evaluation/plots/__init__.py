"""Plots by name."""

from __future__ import annotations

from drtk.registry import Registry

PLOTS = Registry(
    "picture",
    {
        "recall": ("drtk.evaluation.plots.runs:RecallCurves", "recall by depth, a line a run"),
        "training": (
            "drtk.evaluation.plots.training:TrainingCurves",
            "loss or a measure by training step, a line a log",
        ),
        "differences": ("drtk.evaluation.plots.runs:Differences", "what a run gains over another, a bar a query"),
        "scores": ("drtk.evaluation.plots.runs:ScoreDistributions", "scores of relevant and other documents"),
        "space": (
            "drtk.evaluation.plots.vectors:VectorSpace",
            "vectors: alignment, uniformity, and a plane through them",
        ),
        "cosine": ("drtk.evaluation.plots.vectors:CosineByRating", "cosines of sentence pairs by human rating"),
    },
)
