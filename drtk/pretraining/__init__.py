"""Pre-training: what an [[objective]] can be, by name."""

from __future__ import annotations

from drtk.registry import Registry

# A module made as Target(objective, parts), of a `Recover` and the `LossParts` of objectives.py. It has `positions(slot)`,
# (batch, tokens) bool, and `losses(hidden, slot, given)`, the sum of the losses at those positions: hidden (batch, tokens, width),
# given the input ids.
TARGETS = Registry(
    "target",
    {
        "masked": ("drtk.pretraining.objectives:TokenPrediction", "the original token, where it is hidden"),
        "all": (
            "drtk.pretraining.objectives:TokenPrediction",
            "the original token, everywhere; of a causal reader the next one",
        ),
        "edited": (
            "drtk.pretraining.objectives:EditDetection",
            "whether the token was replaced, inserted, or follows a deletion",
        ),
        "corrected": ("drtk.pretraining.objectives:CorrectiveLM", "the original token everywhere, through a copy gate"),
    },
)


# A subclass of drtk.pretraining.composition.Objective; `implementation` names what computes it. If it compares vectors, that is a
# function (objective, vectors, present) -> (), of (batch, hidden) and (batch,) bool by slot. Rows that are not present must not
# matter; if there is none, the loss is 0 and has a graph. Otherwise it is a module made as Kind(objective, parts), with
# `count(batch)`, the number it is a mean over; a call (encoded, *, other_sources) -> (), a sum; and `reduce(sum, count)`, given sums
# and counts of all parts and processes.
OBJECTIVES = Registry(
    "objective",
    {
        "recover": (
            "drtk.pretraining.composition:TokenObjective",
            "a reader predicts something at the tokens of a slot",
        ),
        "contrast": (
            "drtk.pretraining.composition:ContrastiveObjective",
            "two slots' vectors find each other in the batch",
        ),
    },
)
