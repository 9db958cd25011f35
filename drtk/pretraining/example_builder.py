"""Build pre-training examples from views and masks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from drtk.errors import MismatchError, UsageError
from drtk.pretraining.composition import EDITS, Composition, Slot, choices
from drtk.pretraining.corruption import Vocabulary, corrupted, deleted, inserted
from drtk.pretraining.masking import MASKING
from drtk.pretraining.masking.base import GIVEN as STRATEGY_GIVEN
from drtk.pretraining.masking.base import Other, needs_weights
from drtk.pretraining.parse import SLOT_KEYS
from drtk.pretraining.views import VIEWS
from drtk.pretraining.views.base import GIVEN, check_options, wanted_fields
from drtk.text.rng import generator, uniform
from drtk.text.token_dataset import Text


class Slotted(NamedTuple):
    """One slot of one example; (tokens,) each, special tokens around.

    clean:   the tokens as they were; where tokens were inserted or deleted, what is left
    given:   what is looked at; of a slot to be replaced, what the generator sees
    content: False at special tokens; hidden: what is masked
    edited:  1 at tokens that were inserted or follow a deletion; None where such a thing was not done
    noise:   numbers in [0, 1) for the generator's draws; None where there are none
    present: False for an example without such a view; a placeholder stands for it
    types: token types; None where all are 0
    """

    clean: np.ndarray
    given: np.ndarray
    content: np.ndarray
    hidden: np.ndarray
    edited: np.ndarray | None
    noise: np.ndarray | None
    present: bool
    types: np.ndarray | None = None


class Frame(NamedTuple):
    """Ids of the special tokens around a text, and the vocabulary that corruption needs.

    between: ids of the special tokens between the two texts of a pair
    has_types: whether the second text of a pair has another token type than the first
    """

    first: int
    last: int
    vocabulary: Vocabulary
    between: tuple[int, ...]
    has_types: bool

    def around(self, text: Text) -> Text:
        """Return the text with its special tokens, which get the token type of their neighbor."""
        weights = None if text.weights is None else np.pad(text.weights, 1)
        types = None
        if self.has_types and text.types is not None and len(text.types):
            types = np.pad(text.types, 1, mode="edge")
        return Text(
            np.concatenate([[self.first], text.ids, [self.last]]).astype(np.int32),
            np.pad(text.words, 1, constant_values=-1),
            weights,
            types,
        )


def frame_of(tokenizer: Any) -> Frame:
    """The frame of a tokenizer of transformers."""
    first, *text, last = tokenizer("a")["input_ids"]
    pair = tokenizer("a", "a", return_token_type_ids=True)
    between = pair["input_ids"][1 + len(text) : -1 - len(text)]
    has_types = "token_type_ids" in tokenizer.model_input_names and any(pair["token_type_ids"])
    vocabulary = Vocabulary(len(tokenizer), tokenizer.mask_token_id, frozenset(tokenizer.all_special_ids))
    return Frame(first, last, vocabulary, tuple(between), has_types)


class SlotBuilder:
    """Examples to slots. The same (seed, epoch, id) gives the same slots in every batch, worker and process.

    ids: the id of a row of the corpus (a passage, or a document); max_length: tokens of a slot that names no length
    Raises UsageError, when made, for a masking, view or option that does not exist; later for a view without what its masking needs.
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
        self._views = {name: views_of(composition, name) for name in composition.slots}
        self._maskings = {
            name: masking_of(composition, name) for name, slot in composition.slots.items() if slot.masking != "none"
        }

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
        text = self._text(name, row, key, step, drawn)
        if text is None:
            return self._placeholder(slot)
        text = self._frame.around(text)
        rng = generator(*key, "slot", name)
        content = text.words >= 0
        corruption = _corruption(slot, *key, "edit", name)
        if corruption == "inserted" or corruption == "deleted":
            if corruption == "inserted":
                edit = inserted(text, slot.rate, rng=rng, vocabulary=self._frame.vocabulary)
            else:
                edit = deleted(text, slot.rate, rng=rng)
            noise = rng.random(len(edit.ids), dtype=np.float32) if edit.hidden.any() else None
            content = edit.words >= 0
            return Slotted(edit.ids, edit.ids, content, edit.hidden, edit.edited, noise, present=True, types=edit.types)
        hidden = np.zeros(len(text.ids), dtype=bool)
        if slot.masking != "none":
            other = Other(made[slot.of].hidden, self._composition.slots[slot.of].rate) if slot.of else None
            counted = len(text.ids) if slot.count == "with-specials" else int(content.sum())
            masking = self._maskings[name]
            try:
                hidden = masking(text, slot.rate, rng=rng, counted=counted, other=other, **slot.masking_options)
            except ValueError as error:  # a view that has no weights, say
                raise MismatchError(f"[slots.{name}]: passage {self._ids(row)!r}: {error}") from error
        shown, proposing = corruption, self._composition.generator
        if shown == "replaced" and proposing is not None:  # the generator looks first
            shown = proposing.reads
        given = corrupted(text.ids, hidden, shown, rng=rng, vocabulary=self._frame.vocabulary)
        noise = rng.random(len(text.ids), dtype=np.float32) if corruption == "replaced" else None
        return Slotted(text.ids, given, content, hidden, None, noise, present=True, types=text.types)

    def _text(self, name: str, row: int, key: tuple[Any, ...], step: int, drawn: dict[Any, Any]) -> Text | None:
        """The text of a slot; slots that read parts of one view share its draw."""
        slot = self._composition.slots[name]
        view = self._views[name][self._choice(slot, key, step)]
        room = (slot.max_length or self._max_length) - 2
        if slot.corruption in ("inserted", "any"):  # what is inserted must fit too
            room = int(room / (1 + slot.rate))
        draw = (view.name, room, *sorted(view.options.items()))
        if draw not in drawn:
            rng = generator(*key, "view", view.name)
            separator = self._frame.between if view.options.get("title") == "segment" else self._frame.last
            drawn[draw] = view.function(self._corpus, row, rng=rng, room=room, separator=separator, **view.options)
        parts = drawn[draw]
        if parts is not None and view.part not in parts:
            choices = ", ".join(f"{view.name}.{part}".rstrip(".") for part in parts)
            raise UsageError(
                f"[slots.{name}]: there is no view '{slot.view[self._choice(slot, key, step)]}'; choose from {choices}"
            )
        return None if parts is None else parts[view.part]

    def _choice(self, slot: Slot, key: tuple[Any, ...], step: int) -> int:
        if len(slot.view) == 1:
            return 0
        drawn = (self._seed, "step", step) if slot.draw == "step" else key
        return int(uniform(*drawn, "mixed", *slot.view) * len(slot.view))

    def _placeholder(self, slot: Slot) -> Slotted:
        ids = np.array([self._frame.first, self._frame.last], dtype=np.int32)
        nothing = np.zeros(2, dtype=bool)
        edited = np.zeros(2, dtype=np.int64) if slot.corruption in ("inserted", "deleted") else None  # any: of no label
        return Slotted(ids, ids, nothing, nothing, edited, None, present=False)


def _corruption(slot: Slot, *key: Any) -> Any:
    """What is done to a slot; of `any`, what is drawn for this key."""
    return EDITS[int(uniform(*key) * len(EDITS))] if slot.corruption == "any" else slot.corruption


def _by_reference(slots: Mapping[str, Slot]) -> Sequence[str]:
    """Names of slots, those referred to before those that refer."""
    order: list[str] = []
    while len(order) < len(slots):
        order += [name for name, slot in slots.items() if name not in order and (not slot.of or slot.of in order)]
    return order


class SlotView(NamedTuple):
    """A view of a slot: its name, the part of it that is read, its function and options."""

    name: str
    part: str
    function: Callable[..., Mapping[str, Text] | None]
    options: dict[str, Any]


def views_of(composition: Composition, name: str) -> list[SlotView]:
    """The views of a slot.

    Raises UsageError for a view or an option that does not exist, and for one that shows no rows of this kind: documents
    are shown by spans that are distinct, and by nothing else.
    """
    slot = composition.slots[name]
    general: dict[str, Any] = {"title": composition.title, "crop": composition.crop}
    if composition.example == "document":
        general["spans"] = "distinct"
    found = []
    for each in slot.view:
        view, _, part = each.partition(".")
        try:
            function = VIEWS.load(view)
        except UsageError as error:
            raise UsageError(f"[slots.{name}]: {error}") from error
        known = inspect.signature(function).parameters
        options = {key: value for key, value in general.items() if key in known and value is not None}
        options |= {key: value for key, value in slot.view_options.items() if key in known}
        check_options(f"[slots.{name}]: view '{view}'", function, options, given=GIVEN)
        if (options.get("spans") == "distinct") != (composition.example == "document"):
            raise UsageError(
                f'[slots.{name}]: example = "document" and view = "pair.a" or "pair.b" with distinct spans go together'
            )
        found.append(SlotView(view, part, function, options))
    for key in slot.view_options:
        if not any(key in view.options for view in found):
            of_views = {each for view in found for each in inspect.signature(view.function).parameters} - {*GIVEN}
            raise UsageError(
                f"[slots.{name}]: unknown key '{key}', of the slot and of its view; {choices(SLOT_KEYS | of_views)}"
            )
    return found


def masking_of(composition: Composition, name: str) -> Callable[..., np.ndarray]:
    """The masking strategy of a slot.

    Raises UsageError for one, or an option of it, that does not exist.
    """
    slot = composition.slots[name]
    try:
        strategy: Callable[..., np.ndarray] = MASKING.load(slot.masking)
    except UsageError as error:
        raise UsageError(f"[slots.{name}]: {error}") from error
    check_options(f"[slots.{name}]: masking '{slot.masking}'", strategy, slot.masking_options, given=STRATEGY_GIVEN)
    return strategy


def fields_of(composition: Composition) -> set[str]:
    """What a token corpus must hold beside texts and titles. Raises what `views_of` and `masking_of` raise."""
    wanted = set()
    for name, slot in composition.slots.items():
        if slot.masking != "none" and needs_weights(masking_of(composition, name)):
            wanted.add("weights")
        for view in views_of(composition, name):
            wanted |= wanted_fields(view.name, view.options)
    if "weights" in wanted and composition.title != "none":
        wanted.add("title_weights")
    return wanted
