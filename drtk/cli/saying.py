"""A composition in words: what a term of the loss asks, and what a slot shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drtk.objectives import TARGETS
from drtk.settings.composition import Composition, Contrast, Objective, Recover, Slot
from drtk.settings.objectives import OBJECTIVES

_TARGETS = {
    "masked": "the hidden tokens of",
    "all": "every token of",
    "edited": "which tokens were changed in",
    "corrected": "every token, or that it is right as it stands, of",
}
_REDUCTIONS = {"mean": "", "mean_all": "; mean over padding too", "sum": "; a sum, not a mean"}
_CORRUPTIONS = {
    "none": "shown as it is",
    "mask": "[MASK] in their place",
    "bert": "80% [MASK], 10% a random token, 10% left",
    "replaced": "a generator's tokens in their place",
}


def said_term(plan: Composition, objective: Objective) -> str:
    """What a term asks, in one line: who predicts what of which slot, or which slots find each other."""
    projected = f", through projector '{objective.projector}'" if objective.projector else ""
    if isinstance(objective, Contrast):
        return _said_contrast(objective) + projected
    if not isinstance(objective, Recover):
        return f"{OBJECTIVES[objective.use]}: {_names((*objective.tokens_of, *objective.vectors_of))}{projected}"
    reader = plan.readers[objective.reader]
    own = objective.reader.partition(" ")[0] == "reader"  # made for this objective alone: no name a person gave
    who = "the encoder" if reader.use == "encoder" else _with_options(reader.use, reader.options)
    if not own and objective.reader in plan.readers and objective.reader != reader.use:
        who = f"'{objective.reader}', {who},"
    target = _TARGETS.get(objective.target) or f"{TARGETS[objective.target]}, of"
    if reader.use == "causal":
        target = "each next token of"
    given = f", given the vector of {_names(objective.source)}" if objective.source else ""
    return f"{who} predicts {target} {_names(objective.slot)}{given}{projected}{_REDUCTIONS[objective.reduction]}"


def said_slot(slot: Slot) -> str:
    """What a slot shows, in one line: its view, what is hidden of it, and what stands there instead."""
    view = _with_options(" or ".join(slot.view), slot.view_options)
    if len(slot.view) > 1:
        view += f", drawn by the {slot.draw}"
    if slot.corruption in ("inserted", "deleted"):
        return f"{view}: {slot.rate:.0%} of its tokens {slot.corruption}"
    if slot.corruption == "any":
        return f"{view}: {slot.rate:.0%} of its tokens replaced, inserted or deleted, drawn by the example"
    if slot.masking == "none":
        return f"{view}: {_CORRUPTIONS['none']}"
    rate = "" if slot.masking == "complement" else f"{slot.rate:.0%} "
    other = f" of '{slot.of}'" if slot.of else ""
    masking = _with_options(slot.masking, slot.masking_options)
    return f"{view}: {rate}{masking}{other}, {_CORRUPTIONS[slot.corruption]}"


def read_by(plan: Composition, name: str) -> list[Recover]:
    """The terms that predict something at the tokens of a slot."""
    return [each for each in plan.objectives if isinstance(each, Recover) and name in each.slot]


def _said_contrast(objective: Contrast) -> str:
    who = (
        f"'{objective.a}' and '{objective.b}' find each other"
        if objective.symmetric
        else (f"'{objective.a}' finds '{objective.b}'")
    )
    among = "all texts" if objective.candidates == "all" else "those"
    more = f", and finds {_names(objective.extra_positives)} too" if objective.extra_positives else ""
    more += f", {_names(objective.extra_negatives)} never being right" if objective.extra_negatives else ""
    return f"{who} among {among} of the batch ({objective.similarity} / {objective.temperature:g}){more}"


def _with_options(name: str, options: Mapping[str, Any]) -> str:
    said = ", ".join(f"{key} {value}" for key, value in options.items())
    return f"{name} ({said})" if said else name


def _names(names: tuple[str, ...]) -> str:
    return " and ".join(f"'{name}'" for name in names)
