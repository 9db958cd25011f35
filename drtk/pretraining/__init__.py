"""What an [[objective]] can be, by name."""

from __future__ import annotations

from drtk.registry import Registry

# A function (objective, parts) -> module each, of a Recover and drtk/pretraining/objectives.py. The module has `positions(slot)`, (batch,
# tokens) bool, and `losses(hidden, slot, given)`, the sum of the losses there: hidden (batch, tokens, width), given the ids read.
TARGETS = Registry(
    "target",
    {
        "masked": ("drtk.pretraining.objectives:masked", "the original token, where it is hidden"),
        "all": ("drtk.pretraining.objectives:every", "the original token, everywhere; of a causal reader the next one"),
        "edited": (
            "drtk.pretraining.objectives:edited",
            "whether the token was replaced, inserted, or follows a deletion",
        ),
        "corrected": ("drtk.pretraining.objectives:corrected", "the original token everywhere, through a copy gate"),
    },
)


# A subclass of drtk.pretraining.composition.Objective each. What its `computed_by` names is, where it compares, a function
# (objective, vectors, present) -> (): (batch, hidden) and (batch,) bool by slot; a row that is not present must not matter, and
# where none is, the loss is 0 and has a graph.
# Else it is a module made as Kind(objective, parts) (drtk/pretraining/objectives.py), with `count(batch)`, the number it is a mean over;
# a call (views, *, other_sources) -> (), a sum; and `reduced(sum, count)`: sums and counts are those of all parts and processes.
OBJECTIVES = Registry(
    "objective",
    {
        "recover": ("drtk.pretraining.composition:Recover", "a reader predicts something at the tokens of a slot"),
        "contrast": ("drtk.pretraining.composition:Contrast", "two slots' vectors find each other in the batch"),
    },
)
