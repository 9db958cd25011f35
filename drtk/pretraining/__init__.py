"""Pre-training: the registries of objectives and of their targets."""

from __future__ import annotations

from drtk.registry import Registry

# A target is an nn.Module, created as Target(objective, parts) from a TokenObjective and the LossParts of objectives.py.
# It has `positions(slot)`, (batch, tokens) bool, the labeled positions, and `losses(hidden, slot, given)`, the sum of the
# losses at these positions; hidden: (batch, tokens, width), the decoder's output; given: (batch, tokens), the input ids.
TARGETS = Registry(
    "target",
    {
        "masked": ("drtk.pretraining.objectives:TokenPrediction", "the original token at masked positions"),
        "all": (
            "drtk.pretraining.objectives:TokenPrediction",
            "the original token at all positions; with a causal decoder, the next token",
        ),
        "edited": (
            "drtk.pretraining.objectives:EditDetection",
            "whether a token was replaced, inserted, or follows a deleted one",
        ),
        "corrected": (
            "drtk.pretraining.objectives:CorrectiveLM",
            "the original token at all positions, with a copy gate",
        ),
    },
)


# An objective is a subclass of drtk.pretraining.composition.Objective; `implementation` names the code that computes it.
# If `compares_vectors`, that is a function (objective, vectors, present) -> (), with vectors (batch, hidden) and present
# (batch,) bool by slot. The result must not depend on rows that are not present; without any, it is 0 with a graph.
# Otherwise it is an nn.Module, created as Implementation(objective, parts), with `count(batch)`, the number of labels;
# a call (encoded, *, other_sources) -> (), the sum of the losses; and `reduce(sum, count)`, the loss from the totals over all
# parts and processes.
OBJECTIVES = Registry(
    "objective",
    {
        "recover": (
            "drtk.pretraining.composition:TokenObjective",
            "a decoder predicts a target at the tokens of a slot",
        ),
        "contrast": (
            "drtk.pretraining.composition:ContrastiveObjective",
            "contrastive loss between the vectors of two slots, with in-batch negatives",
        ),
    },
)
