"""Loss functions, and the registry of retriever losses."""

from __future__ import annotations

from drtk.registry import Registry

# A contrastive loss is a function (queries, passages, *, similarity, temperature, mask) -> scalar; for the shapes see
# drtk/losses/contrastive.py. A distillation loss takes `teacher` and `teacher_temperature` instead of `mask`; see
# drtk/losses/distillation.py.
RETRIEVER_LOSSES = Registry(
    "retriever loss",
    {
        "infonce": (
            "drtk.losses.contrastive:infonce",
            "cross-entropy of the positive; all other passages of the batch are negatives (DPR, coCondenser)",
        ),
        "simlm-paper": (
            "drtk.losses.contrastive:simlm_paper",
            "infonce, with passage-passage similarities as additional negatives (SimLM, Eq. 3)",
        ),
        "simlm-full": (
            "drtk.losses.contrastive:simlm_full",
            "infonce, with query-query, passage-query and passage-passage negatives (SimLM's released code)",
        ),
        "kl": (
            "drtk.losses.distillation:kl_divergence",
            "KL divergence from the teacher's distribution over each query's candidates (SimLM)",
        ),
        "margin-mse": (
            "drtk.losses.distillation:margin_mse",
            "squared error of the margins between positive and negatives, compared with the teacher (Hofstätter 2020)",
        ),
    },
)
