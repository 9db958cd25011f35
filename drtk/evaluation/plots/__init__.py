"""Pictures by name: each says what it takes, computes the numbers it shows, and draws them."""

from drtk.registry import Registry

PLOTS = Registry(
    "picture",
    {
        "recall": ("drtk.evaluation.plots.recall:RecallCurves", "recall by depth, a line a run"),
        "training": (
            "drtk.evaluation.plots.training:TrainingCurves",
            "loss or a measure by training step, a line a log",
        ),
        "differences": (
            "drtk.evaluation.plots.differences:Differences",
            "what a run gains over another, a bar a query",
        ),
        "scores": ("drtk.evaluation.plots.scores:ScoreDistributions", "scores of relevant and other documents"),
        "space": (
            "drtk.evaluation.plots.space:VectorSpace",
            "vectors: alignment, uniformity, and a plane through them",
        ),
        "cosine": ("drtk.evaluation.plots.cosine:CosineByRating", "cosines of sentence pairs by human rating"),
    },
)
