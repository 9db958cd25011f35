"""What an [[objective]] can be, by name."""

from drtk.registry import Registry

# A subclass of drtk.settings.composition.Objective each. What its `computed_by` names is, where it compares, a function
# (objective, vectors, present) -> (): (batch, hidden) and (batch,) bool by slot; a row that is not present must not matter, and
# where none is, the loss is 0 and has a graph.
# Else it is a module made as Kind(objective, parts) (drtk/objectives/parts.py), with `count(batch)`, the number it is a mean over;
# a call (views, *, other_sources) -> (), a sum; and `reduced(sum, count)`: sums and counts are those of all parts and processes.
OBJECTIVES = Registry(
    "objective",
    {
        "recover": ("drtk.settings.composition:Recover", "a reader predicts something at the tokens of a slot"),
        "contrast": ("drtk.settings.composition:Contrast", "two slots' vectors find each other in the batch"),
    },
)
