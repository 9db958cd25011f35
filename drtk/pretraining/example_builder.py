"""Build pre-training examples: for each slot, sample a view (a text of the corpus row), then mask and corrupt its tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from drtk.errors import MismatchError, UsageError
from drtk.pretraining.composition import EDITS, Composition, format_choices
from drtk.pretraining.config import check_options, list_needed_fields, list_option_names, prefix_errors
from drtk.pretraining.masking import (
    MASKING,
    MaskInput,
    Vocabulary,
    WordGroups,
    corrupt_tokens,
    delete_tokens,
    group_words,
    insert_masks,
)
from drtk.pretraining.parse import SLOT_KEYS
from drtk.pretraining.views import VIEWS, ViewInput
from drtk.text.rng import create_generator, sample_uniform, seed_generator
from drtk.text.token_dataset import TokenizedText


class TokenizedSlot(NamedTuple):
    """The tokens of a slot (an encoder input) in one example. Arrays are (tokens,) and include special tokens.

    original_ids: token ids before masking; with insertions or deletions, the ids of the edited text
    input_ids: token ids after masking; for corruption "replaced", the input of the generator
    content: False at special tokens    masked: True at masked and inserted tokens
    edited: 1 at tokens that were inserted or follow a deletion, else 0; None without insertions and deletions
    noise: random numbers in [0, 1) for the generator; None if the generator is not used
    present: False for an example without a text for this slot; the arrays then hold special tokens only
    types: token types; None: all 0
    """

    original_ids: np.ndarray
    input_ids: np.ndarray
    content: np.ndarray
    masked: np.ndarray
    edited: np.ndarray | None
    noise: np.ndarray | None
    present: bool
    types: np.ndarray | None = None


class SpecialTokens(NamedTuple):
    """The special tokens and the vocabulary of a tokenizer.

    first, last: ids before and after a text    between: ids between the two texts of a pair
    has_types: whether the two texts of a pair have different token types
    """

    first: int
    last: int
    vocabulary: Vocabulary
    between: tuple[int, ...]
    has_types: bool

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> SpecialTokens:
        """Return the special tokens of a transformers tokenizer."""
        first, *text, last = tokenizer("a")["input_ids"]
        pair = tokenizer("a", "a", return_token_type_ids=True)
        between = pair["input_ids"][1 + len(text) : -1 - len(text)]
        has_types = "token_type_ids" in tokenizer.model_input_names and any(pair["token_type_ids"])
        vocabulary = Vocabulary(len(tokenizer), tokenizer.mask_token_id, frozenset(tokenizer.all_special_ids))
        return cls(first, last, vocabulary, tuple(between), has_types)

    def add_to(self, text: TokenizedText) -> TokenizedText:
        """Add special tokens before and after a text, with the token types of the first and last token of the text."""
        weights = None if text.weights is None else _pad(text.weights, 0, 0)
        types = None
        if self.has_types and text.types is not None and len(text.types):
            types = _pad(text.types, text.types[0], text.types[-1])
        return TokenizedText(_pad(text.ids, self.first, self.last), _pad(text.words, -1, -1), weights, types)


def _pad(values: np.ndarray, first: Any, last: Any) -> np.ndarray:
    """Return `values`, (tokens,), with a value before and a value after them; ten times as fast as `np.pad`."""
    padded = np.empty(len(values) + 2, values.dtype)
    padded[0], padded[1:-1], padded[-1] = first, values, last
    return padded


class SlotView(NamedTuple):
    """A view (a function that selects a text of a corpus row) of a slot, and the options of the view.

    name, key: "pair" and "a" for the view "pair.a", which uses the text "a" of the result of view "pair"
    """

    name: str
    key: str
    function: Callable[..., Mapping[str, TokenizedText] | None]
    options: dict[str, Any]


class ExampleBuilder:
    """Builder of training examples, one tokenized encoder input per slot, from the passages or documents of a corpus.

    Sampling depends on (seed, epoch, id) only; for slots that sample one of several views per step, also on the step.

    max_length: maximum length, in tokens, of slots that set no `max_length`
    Raises UsageError for an unknown masking, view or option.
    """

    def __init__(
        self, composition: Composition, corpus: Any, special: SpecialTokens, *, max_length: int, seed: int
    ) -> None:
        self._composition, self._corpus, self._special = composition, corpus, special
        self._max_length, self._seed, self._rng = max_length, seed, create_generator()
        slots = composition.slots
        self._order: list[str] = []  # slot names; a slot comes after the slot that its `of` names
        while len(self._order) < len(slots):
            ready = ("", *self._order)
            self._order += [name for name, slot in slots.items() if name not in self._order and slot.of in ready]
        self._views = {name: load_views(composition, name) for name in slots}
        self._samples = {  # keys of sampled texts; slots with equal keys share a text
            name: [
                (view.name, slots[name].compute_max_text_length(max_length), *sorted(view.options.items()))
                for view in views
            ]
            for name, views in self._views.items()
        }
        self._maskings = {
            name: load_masking(composition, name) for name, slot in slots.items() if slot.masking != "none"
        }

    @property
    def rows(self) -> np.ndarray:
        """Indices of the passages, or of the documents with at least two passages, that become examples."""
        is_document = self._composition.example == "document"
        return self._corpus.multi_passage_documents if is_document else np.arange(len(self._corpus))

    def get_id(self, row: int) -> str:
        """Return the id of a passage, or the id of the first passage of a document."""
        is_document = self._composition.example == "document"
        return str(self._corpus.get_id(int(self._corpus.get_document_passages(row)[0]) if is_document else row))

    def __call__(self, row: int, *, epoch: int, step: int) -> dict[str, TokenizedSlot]:
        """Return the tokenized inputs of a training example, {slot name: TokenizedSlot}.

        row: index of the passage or document
        Raises MismatchError if a masking needs token weights and the text has none, UsageError for an unknown VIEW.KEY.
        """
        key = (self._seed, epoch, self.get_id(row))
        texts: dict[Any, Mapping[str, tuple[TokenizedText, WordGroups]] | None] = {}  # by key in `_samples`
        slots: dict[str, TokenizedSlot] = {}
        for name in self._order:
            slots[name] = self._build_slot(name, row, key, step, texts, slots)
        return slots

    def _build_slot(
        self,
        name: str,
        row: int,
        key: tuple[Any, ...],
        step: int,
        texts: dict[Any, Any],
        slots: Mapping[str, TokenizedSlot],
    ) -> TokenizedSlot:
        slot, vocabulary = self._composition.slots[name], self._special.vocabulary
        text_and_words = self._get_text(name, row, key, step, texts)
        if text_and_words is None:
            ids, nothing = np.array([self._special.first, self._special.last], dtype=np.int32), np.zeros(2, dtype=bool)
            return TokenizedSlot(ids, ids, nothing, nothing, None, None, present=False)
        text, words = text_and_words
        rng = seed_generator(self._rng, *key, "slot", name)
        corruption: Any = slot.corruption
        if corruption == "any":
            corruption = EDITS[int(sample_uniform(*key, "edit", name) * len(EDITS))]
        if corruption in ("inserted", "deleted"):
            if corruption == "inserted":
                edit = insert_masks(text, slot.rate, rng, vocabulary)
            else:
                edit = delete_tokens(text, slot.rate, rng)
            text, masked, edited = edit
            noise = rng.random(len(text.ids), dtype=np.float32) if masked.any() else None
            return TokenizedSlot(text.ids, text.ids, text.words >= 0, masked, edited, noise, True, text.types)
        masked = np.zeros(len(text.ids), dtype=bool)
        if slot.masking != "none":
            counted = len(text.ids) if slot.count == "with-specials" else int(np.count_nonzero(words.content))
            inputs = MaskInput(text, words, slot.rate, rng, counted)
            if slot.of:
                inputs = inputs._replace(other=slots[slot.of].masked, other_rate=self._composition.slots[slot.of].rate)
            try:
                masked = self._maskings[name](inputs, **slot.masking_options)
            except ValueError as error:  # a text without weights
                place = f"[slots.{name}]: passage {self.get_id(row)!r}"
                raise MismatchError(f"{place}: masking '{slot.masking}' {error}") from error
        generator = self._composition.generator
        token_corruption = generator.reads if corruption == "replaced" and generator is not None else corruption
        input_ids = corrupt_tokens(text.ids, masked, token_corruption, rng, vocabulary)
        noise = rng.random(len(text.ids), dtype=np.float32) if corruption == "replaced" else None
        return TokenizedSlot(text.ids, input_ids, words.content, masked, None, noise, True, text.types)

    def _get_text(
        self, name: str, row: int, key: tuple[Any, ...], step: int, texts: dict[Any, Any]
    ) -> tuple[TokenizedText, WordGroups] | None:
        """Return the text of a slot with special tokens, and its words; None for a row without such a text."""
        slot, choice = self._composition.slots[name], 0
        if len(slot.view) > 1:
            sampled_for = (self._seed, "step", step) if slot.draw == "step" else key
            choice = int(sample_uniform(*sampled_for, "mixed", *slot.view) * len(slot.view))
        view, sample = self._views[name][choice], self._samples[name][choice]
        if sample not in texts:
            rng = seed_generator(self._rng, *key, "view", view.name)
            separator = self._special.between if view.options.get("title") == "segment" else self._special.last
            max_length = slot.compute_max_text_length(self._max_length)
            views = view.function(ViewInput(self._corpus, row, rng, max_length, separator), **view.options)
            complete = {part: self._special.add_to(text) for part, text in (views or {}).items()}
            parts = {part: (text, group_words(text.words)) for part, text in complete.items()}
            texts[sample] = None if views is None else parts
        result = texts[sample]
        if result is not None and view.key not in result:
            choices = ", ".join(f"{view.name}.{part}".rstrip(".") for part in result)
            raise UsageError(f"[slots.{name}]: there is no view '{slot.view[choice]}'; choose from {choices}")
        return None if result is None else result[view.key]


def load_views(composition: Composition, name: str) -> list[SlotView]:
    """Load the views of the slot `name` with their options.

    Raises UsageError for an unknown view or option, or if only one of example = "document" and spans = "distinct" is set.
    """
    slot = composition.slots[name]
    defaults: dict[str, Any] = {"title": composition.title, "crop": composition.crop}
    if composition.example == "document":
        defaults["spans"] = "distinct"
    views: list[SlotView] = []
    all_known: set[str] = set()
    for full_name in slot.view:
        view, _, key = full_name.partition(".")
        with prefix_errors(f"[slots.{name}]"):
            function = VIEWS.load(view)
        known = list_option_names(function)
        all_known.update(known)
        options = {key: value for key, value in defaults.items() if key in known and value is not None}
        options |= {key: value for key, value in slot.view_options.items() if key in known}
        check_options(f"[slots.{name}]: view '{view}'", function, options)
        if (options.get("spans") == "distinct") != (composition.example == "document"):
            raise UsageError(
                f'[slots.{name}]: example = "document" and view "pair" with spans = "distinct" must be set together'
            )
        views.append(SlotView(view, key, function, options))
    for key in slot.view_options:
        if key not in all_known:
            raise UsageError(
                f"[slots.{name}]: neither the slot nor its view has a key '{key}'; {format_choices(SLOT_KEYS | all_known)}"
            )
    return views


def load_masking(composition: Composition, name: str) -> Callable[..., np.ndarray]:
    """Load the masking strategy of the slot `name`. Raises UsageError for an unknown strategy or option."""
    slot = composition.slots[name]
    with prefix_errors(f"[slots.{name}]"):
        strategy: Callable[..., np.ndarray] = MASKING.load(slot.masking)
        check_options(f"masking '{slot.masking}'", strategy, slot.masking_options)
    return strategy


def list_corpus_fields(composition: Composition) -> set[str]:
    """Return the corpus fields that a composition needs besides texts and titles.

    Raises UsageError for an unknown view, masking or option.
    """
    corpus_fields: set[str] = set()
    for name, slot in composition.slots.items():
        if slot.masking != "none":
            corpus_fields |= list_needed_fields(load_masking(composition, name), slot.masking_options)
        for view in load_views(composition, name):
            corpus_fields |= list_needed_fields(view.function, view.options)
    if "weights" in corpus_fields and composition.title != "none":
        corpus_fields.add("title_weights")
    return corpus_fields
