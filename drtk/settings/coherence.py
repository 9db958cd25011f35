"""Whether the parts of a composition go together."""

from __future__ import annotations

from typing import Any

from drtk.errors import UsageError
from drtk.settings.composition import (
    EDITS,
    GENERATED,
    Composition,
    Contrast,
    Generator,
    Objective,
    Recover,
    Slot,
    choices,
)

_EDITED = (*EDITS, "any")
_COVERED = ("mask", "bert", "replaced")  # what a masked language model can learn from
_REFERRING = ("extension", "complement")


def check_coherence(found: Composition, place: str) -> None:
    """Raise UsageError, beginning with `place`, for parts that are not there or do not go together."""

    def known(name: str, where: str) -> None:
        if name not in found.slots:
            raise UsageError(f"{place}: {where}: there is no slot '{name}'; {choices(found.slots)}")

    for name, slot in found.slots.items():
        if slot.of:
            known(slot.of, f"[slots.{name}] of")
            _check_reference(name, slot, found.slots[slot.of], place)
        elif slot.masking in _REFERRING:
            raise UsageError(
                f"{place}: [slots.{name}] is masked by '{slot.masking}' of another slot: of = \"…\" names it"
            )
        _check_cycle(found, name, place)
        if slot.corruption in GENERATED and found.generator is None:
            raise UsageError(f"{place}: [slots.{name}] needs tokens to put in, but there is no [generator]")
    for objective in found.objectives:
        for name in found.slots_of(objective):
            known(name, f"objective '{objective.name}'")
        if objective.weight < 0:
            raise UsageError(f"{place}: objective '{objective.name}': weight {objective.weight} is below 0")
        if objective.projector:
            _check_projected(found, objective, place)
        if isinstance(objective, Recover):
            _check_recover(found, objective, place)
        if isinstance(objective, Contrast):
            _check_contrast(objective, place)
    for name, projector in found.projectors.items():
        for slot_name in projector.slots:
            known(slot_name, f"[projectors.{name}]")
    if found.generator is not None:
        if found.generator.slot:
            known(found.generator.slot, "[generator] slot")
        _check_generator(found, found.generator, place)


def _check_reference(name: str, slot: Slot, other: Slot, place: str) -> None:
    def reading(each: Slot) -> tuple[Any, ...]:
        return each.view, each.draw, each.view_options, each.max_length

    if reading(slot) != reading(other) or other.corruption in ("inserted", "deleted", "any"):
        raise UsageError(f"{place}: [slots.{name}] refers to '{slot.of}', which reads another view")
    if slot.masking == "extension" and slot.rate < other.rate:
        raise UsageError(
            f"{place}: [slots.{name}]: rate {slot.rate} is less than the {other.rate} of '{slot.of}', which it extends"
        )


def _check_projected(found: Composition, objective: Objective, place: str) -> None:
    if objective.projector not in found.projectors:
        raise UsageError(
            f"{place}: objective '{objective.name}': there is no projector '{objective.projector}'; "
            f"{choices(found.projectors)}"
        )
    for name in objective.vectors_of:
        if name not in found.projectors[objective.projector].slots:
            raise UsageError(
                f"{place}: objective '{objective.name}': projector '{objective.projector}' leaves out slot '{name}'"
            )


def _check_cycle(found: Composition, name: str, place: str) -> None:
    seen = [name]
    while (name := found.slots[name].of) and name in found.slots:
        if name in seen:
            raise UsageError(f"{place}: slots {' -> '.join([*seen, name])} refer to each other in a circle")
        seen.append(name)


def _check_contrast(objective: Contrast, place: str) -> None:
    if not objective.temperature > 0:
        raise UsageError(f"{place}: objective '{objective.name}': temperature {objective.temperature} is not above 0")
    names = objective.vectors_of
    for name in names:
        if names.count(name) > 1:  # it is encoded once, so not even dropout would tell its two vectors apart
            raise UsageError(
                f"{place}: objective '{objective.name}': slot '{name}' is compared with itself; two readings are two slots"
            )


def _check_generator(found: Composition, wanted: Generator, place: str) -> None:
    if wanted.mode == "frozen":
        if wanted.init != "model":
            raise UsageError(
                f"{place}: [generator] init: '{wanted.init}' is how one of mode \"joint\" begins; a frozen one is its model"
            )
        return
    if not wanted.slot:
        raise UsageError(f"{place}: [generator] of mode \"joint\" lacks 'slot': the one whose hidden tokens it learns")
    if found.slots[wanted.slot].corruption not in _COVERED:
        raise UsageError(f"{place}: [generator] slot: nothing in slot '{wanted.slot}' is covered, so nothing is learnt")


def _check_recover(found: Composition, objective: Recover, place: str) -> None:
    if objective.source and len(objective.source) not in (1, len(objective.slot)):
        raise UsageError(f"{place}: objective '{objective.name}': as many sources as slots are wanted, or one")
    if objective.projector and not objective.source:
        raise UsageError(f"{place}: objective '{objective.name}': a projector is for the vector of a 'source'")
    if objective.target != "edited":
        if objective.classes != 1:
            raise UsageError(f"{place}: objective '{objective.name}': 'classes' are of target \"edited\" alone")
        if objective.reduction == "mean_all":
            raise UsageError(
                f"{place}: objective '{objective.name}': reduction 'mean_all' is of target \"edited\" alone"
            )
    for name in objective.slot:
        corruption = found.slots[name].corruption
        if objective.target == "edited" and corruption not in _EDITED:
            raise UsageError(f"{place}: objective '{objective.name}': nothing in slot '{name}' is edited")
        if objective.target != "edited" and corruption in ("inserted", "deleted", "any"):
            raise UsageError(f"{place}: objective '{objective.name}': slot '{name}' has other tokens than its view")
        if objective.target == "masked" and found.slots[name].masking == "none":
            raise UsageError(f"{place}: objective '{objective.name}': nothing in slot '{name}' is masked")
