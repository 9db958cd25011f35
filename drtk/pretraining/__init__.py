"""Pre-training of encoders with a composition of objectives, defined in a preset's TOML.

Vocabulary: a *view* selects a text of a corpus row, such as the passage, a random span of it, or one of its queries. A *slot* is
an input of the encoder: a view with its masking and corruption. An *objective* is a loss: a decoder predicts a *target* at the
tokens of slots, or the text vectors of two slots are compared. Here are the registries of objectives and targets.
"""

from __future__ import annotations

from drtk.registry import Registry

# A target is an nn.Module, created as Target(objective, parts) from a TokenObjective and the SharedModules of objectives.py.
# Its method `select_positions(slot)` returns the labeled positions, (batch, tokens) bool. Its method
# `sum_losses(hidden, slot, input_ids)` returns the sum of the losses at the labeled positions.
# slot: SlotBatch    hidden: (batch, tokens, width), decoder output
# input_ids: (batch, tokens), with the tokens of the generator
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
            "whether a token was replaced, was inserted, or follows a deleted token",
        ),
        "corrected": (
            "drtk.pretraining.objectives:CorrectiveLM",
            "the original token at all positions, with a copy gate",
        ),
    },
)


# An objective is a subclass of drtk.pretraining.composition.Objective; `implementation` names the code that computes it.
# If `compares_vectors` is True, the implementation is a function (objective, vectors, present) -> scalar loss, with vectors
# (batch, hidden) and present (batch,) bool by slot. The loss must not depend on rows that are not present. If no row is
# present, the loss is 0 and has a graph. If `compares_vectors` is False, the implementation is an nn.Module, created as
# Implementation(objective, parts). Its methods are those of TokenLoss in objectives.py: `count_labels`, `forward` and
# `reduce`.
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
