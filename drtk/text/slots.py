"""An example as the slots of a composition: texts drawn, masked and corrupted, every draw by (seed, epoch, id, what it is for)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from drtk.settings.composition import Composition, Slot
from drtk.text.corruption import Vocabulary, corrupted, deleted, inserted
from drtk.text.draws import generator, uniform
from drtk.text.masking import MASKING
from drtk.text.masking.base import Other
from drtk.text.tokenised import Text
from drtk.text.views import VIEWS


class Slotted(NamedTuple):
    """One slot of one example; (tokens,) each, special tokens around.

    clean:   the tokens as they were; where tokens were inserted or deleted, what is left
    given:   what is looked at; a slot to be replaced has masks until the generator has filled them
    content: False at special tokens; hidden: what is masked
    edited:  1 at tokens that were inserted or follow a deletion; None where nothing was
    noise:   numbers in [0, 1) for the generator's draws; None where there are none
    present: False for an example without such a view; a placeholder stands for it
    """

    clean: np.ndarray
    given: np.ndarray
    content: np.ndarray
    hidden: np.ndarray
    edited: np.ndarray | None
    noise: np.ndarray | None
    present: bool


class Frame(NamedTuple):
    """Ids of the special tokens around a text, and what corruption must know of the vocabulary."""

    first: int
    last: int
    vocabulary: Vocabulary

    def around(self, text: Text) -> Text:
        """The text between its special tokens."""
        weights = None if text.weights is None else np.pad(text.weights, 1)
        return Text(
            np.concatenate([[self.first], text.ids, [self.last]]).astype(np.int32),
            np.pad(text.words, 1, constant_values=-1),
            weights,
        )


class SlotBuilder:
    """Examples to slots. The same (seed, epoch, id) gives the same slots in every batch, worker and process.

    ids: the id of a row of the corpus (a passage, or a document); max_length: tokens of a slot that names no length
    Raises UsageError, when made, for a masking or view that does not exist.
    """

    def __init__(
        self,
        composition: Composition,
        corpus: Any,
        frame: Frame,
        *,
        ids: Callable[[int], str],
        max_length: int,
        seed: int,
    ) -> None:
        self._composition, self._corpus, self._frame, self._ids = composition, corpus, frame, ids
        self._max_length, self._seed = max_length, seed
        self._order = _by_reference(composition.slots)
        self._views = {
            name: VIEWS.load(name.partition(".")[0]) for slot in composition.slots.values() for name in slot.view
        }
        self._maskings = {
            name: MASKING.load(slot.masking) for name, slot in composition.slots.items() if slot.masking != "none"
        }
        self._base = {"title": composition.title, "crop": composition.crop, "separator": frame.last}
        if composition.example == "document":
            self._base["spans"] = "distinct"

    def __call__(self, row: int, *, epoch: int, step: int) -> dict[str, Slotted]:
        """The slots of one row of the corpus, as they are seen in an epoch and step."""
        drawn: dict[Any, Mapping[str, Text] | None] = {}
        made: dict[str, Slotted] = {}
        for name in self._order:
            made[name] = self._slot(name, row, epoch, step, drawn, made)
        return made

    def _slot(
        self, name: str, row: int, epoch: int, step: int, drawn: dict[Any, Any], made: Mapping[str, Slotted]
    ) -> Slotted:
        slot = self._composition.slots[name]
        key = (self._seed, epoch, self._ids(row))
        text = self._text(slot, row, key, step, drawn)
        if text is None:
            return self._placeholder(slot)
        text = self._frame.around(text)
        rng = generator(*key, "slot", name)
        content = text.words >= 0
        if slot.corruption in ("inserted", "deleted"):
            if slot.corruption == "inserted":
                edit = inserted(text, slot.rate, rng=rng, vocabulary=self._frame.vocabulary)
            else:
                edit = deleted(text, slot.rate, rng=rng)
            noise = rng.random(len(edit.ids), dtype=np.float32) if edit.hidden.any() else None
            return Slotted(edit.ids, edit.ids, edit.words >= 0, edit.hidden, edit.edited, noise, present=True)
        hidden = np.zeros(len(text.ids), dtype=bool)
        if slot.masking != "none":
            other = Other(made[slot.of].hidden, self._composition.slots[slot.of].rate) if slot.of else None
            counted = len(text.ids) if slot.count == "with-specials" else int(content.sum())
            hidden = self._maskings[name](
                text, slot.rate, rng=rng, counted=counted, other=other, **slot.masking_options
            )
        given = corrupted(text.ids, hidden, slot.corruption, rng=rng, vocabulary=self._frame.vocabulary)
        noise = rng.random(len(text.ids), dtype=np.float32) if slot.corruption == "replaced" else None
        return Slotted(text.ids, given, content, hidden, None, noise, present=True)

    def _text(self, slot: Slot, row: int, key: tuple[Any, ...], step: int, drawn: dict[Any, Any]) -> Text | None:
        """The text of a slot; slots that read parts of one view share its draw."""
        view, _, part = slot.view[self._choice(slot, key, step)].partition(".")
        room = (slot.max_length or self._max_length) - 2
        options = self._base | slot.view_options
        draw = (view, room, *sorted(options.items()))
        if draw not in drawn:
            drawn[draw] = self._views[view if not part else f"{view}.{part}"](
                self._corpus, row, rng=generator(*key, "view", view), room=room, **options
            )
        parts = drawn[draw]
        return None if parts is None else parts.get(part)

    def _choice(self, slot: Slot, key: tuple[Any, ...], step: int) -> int:
        if len(slot.view) == 1:
            return 0
        drawn = (self._seed, "step", step) if slot.draw == "step" else key
        return int(uniform(*drawn, "mixed", *slot.view) * len(slot.view))

    def _placeholder(self, slot: Slot) -> Slotted:
        ids = np.array([self._frame.first, self._frame.last], dtype=np.int32)
        nothing = np.zeros(2, dtype=bool)
        edited = np.zeros(2, dtype=np.int64) if slot.corruption in ("inserted", "deleted") else None
        return Slotted(ids, ids, nothing, nothing, edited, None, present=False)


def _by_reference(slots: Mapping[str, Slot]) -> Sequence[str]:
    """Names of slots, those referred to before those that refer."""
    order: list[str] = []
    while len(order) < len(slots):
        order += [name for name, slot in slots.items() if name not in order and (not slot.of or slot.of in order)]
    return order


def wanted_fields(composition: Composition) -> set[str]:
    """What the token corpus must hold beside texts and titles."""
    views = {name.partition(".")[0] for slot in composition.slots.values() for name in slot.view}
    spans = {slot.view_options.get("spans") for slot in composition.slots.values()}
    wanted = {"queries" for view in views if view in ("query", "queries")}
    wanted |= {"continuations" for view in views if view == "continuation"}
    wanted |= {"documents" for view in views if view in ("pair", "next")}
    wanted |= {"sentences" for view in views if view == "ict"} | {
        "sentences" for each in spans if each in ("overlap", "mixed")
    }
    return wanted | {"weights" for slot in composition.slots.values() if slot.masking in ("rom", "keyword")}
