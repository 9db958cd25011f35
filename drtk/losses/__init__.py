"""Losses as pure functions of tensors, and the registry of those that train a retriever."""

from drtk.registry import Registry

# (queries, passages, *, similarity, temperature, barred) -> scalar; see drtk/losses/contrastive.py for the shapes.
RETRIEVER_LOSSES = Registry(
    "retriever loss",
    {
        "infonce": (
            "drtk.losses.contrastive:infonce",
            "cross-entropy of a query's positive against every other passage of the batch (DPR, coCondenser)",
        ),
    },
)
