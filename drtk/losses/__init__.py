"""Losses as pure functions of tensors, and the registry of those that train a retriever."""

from __future__ import annotations

from drtk.registry import Registry

# (queries, passages, *, similarity, temperature, mask) -> scalar; see drtk/losses/contrastive.py for the shapes.
# A loss that learns from a teacher takes `teacher` and `teacher_temperature` instead of `mask`: drtk/losses/distillation.py.
RETRIEVER_LOSSES = Registry(
    "retriever loss",
    {
        "infonce": (
            "drtk.losses.contrastive:infonce",
            "cross-entropy of a query's positive against every other passage of the batch (DPR, coCondenser)",
        ),
        "simlm-paper": (
            "drtk.losses.contrastive:simlm_paper",
            "the same, and the positive against every other passage as well (SimLM, Eq. 3)",
        ),
        "simlm-full": (
            "drtk.losses.contrastive:simlm_full",
            "queries against passages and queries, positives against queries and positives (SimLM's released code)",
        ),
        "kl": (
            "drtk.losses.distillation:kl_divergence",
            "divergence from a teacher's distribution over a query's own candidates (SimLM's distillation)",
        ),
        "margin-mse": (
            "drtk.losses.distillation:margin_mse",
            "squared error of a teacher's margins between positive and negatives (Hofstätter 2020)",
        ),
    },
)
