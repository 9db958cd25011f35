"""What is predicted at the tokens of a slot, by name."""

from drtk.registry import Registry

# A function (objective, parts) -> module each, of a Recover and drtk/objectives/parts.py. The module has `positions(slot)`, (batch,
# tokens) bool, and `losses(hidden, slot, given)`, the sum of the losses there: hidden (batch, tokens, width), given the ids read.
TARGETS = Registry(
    "target",
    {
        "masked": ("drtk.objectives.targets:masked", "the original token, where it is hidden"),
        "all": ("drtk.objectives.targets:every", "the original token, everywhere; of a causal reader the next one"),
        "edited": ("drtk.objectives.targets:edited", "whether the token was replaced, inserted, or follows a deletion"),
        "corrected": ("drtk.objectives.targets:corrected", "the original token everywhere, through a copy gate"),
    },
)
