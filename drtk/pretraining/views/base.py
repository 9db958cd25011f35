"""The input of views, and functions to slice, join and crop tokenized texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from drtk.errors import MismatchError
from drtk.text.token_dataset import Text, TokenCorpus

ViewTexts = dict[str, Text]
Crop = Literal["head", "random"]
Title = Literal["none", "join", "sep", "segment"]
Separator = int | Sequence[int]  # token ids between two texts; RoBERTa has two in a pair
View = TypeVar("View", bound=Callable[..., ViewTexts | None])


class ViewInput(NamedTuple):
    """The input of a view.

    row: index of a passage of the corpus, or of a document if examples are documents
    room: maximum tokens of each part, without the special tokens around it
    separator: token ids between two texts
    """

    corpus: TokenCorpus
    row: int
    rng: np.random.Generator
    room: int
    separator: Separator | None = None

    def choose(self, choices: Sequence[Any]) -> Any:
        """Sample one of `choices` uniformly; None if there are none."""
        return choices[int(self.rng.integers(len(choices)))] if len(choices) else None

    def crop(self, text: Text, how: Crop, room: int | None = None) -> Text:
        """Crop a text to `room` tokens: its first tokens ("head"), or a span with a random start ("random")."""
        count, room = len(text.ids), self.room if room is None else room
        if count <= room:
            return text
        begin = int(self.rng.integers(count - room + 1)) if how == "random" else 0
        return slice_text(text, begin, begin + room)

    def passage(self, row: int, title: Title, crop: Crop, *, text: Text | None = None, room: int | None = None) -> Text:
        """Return a passage with its title (`add_title`), cropped to `room` tokens. text: replaces the passage's text"""
        text, room = self.corpus.get_text(row) if text is None else text, self.room if room is None else room
        pair_room = room if crop == "head" else None
        return self.crop(add_title(self.corpus, row, text, title, self.separator, room=pair_room), crop, room)


def needs_fields(*fields: str, **by_option: Mapping[str, str]) -> Callable[[View], View]:
    """Declare the corpus fields that a view needs. by_option: {option: {value: field}}, needed for that value only"""

    def mark(view: View) -> View:
        view.needs = fields, by_option  # type: ignore[attr-defined]
        return view

    return mark


def fields_needed(view: Callable[..., Any], options: Mapping[str, Any]) -> set[str]:
    """Return the corpus fields that a view needs with the given options."""
    always, by_option = getattr(view, "needs", ((), {}))
    return {*always, *(values[options[key]] for key, values in by_option.items() if options.get(key) in values)}


def slice_text(text: Text, begin: int, end: int) -> Text:
    """Return the tokens [begin, end) of a text; words are renumbered from 0."""
    words = text.words[begin:end]
    is_word = words >= 0
    lowest = words[is_word].min() if is_word.any() else 0
    return Text(
        text.ids[begin:end],
        np.where(is_word, words - lowest, words).astype(np.int32),
        None if text.weights is None else text.weights[begin:end],
        None if text.types is None or begin >= end else text.types[begin:end] - text.types[begin],
    )


def join_texts(texts: Sequence[Text], separator: Separator | None = None) -> Text:
    """Concatenate texts, with `separator` between them (word -1, weight 0). All token types are 0.

    The result has weights if all texts have weights.
    """
    between = np.atleast_1d(() if separator is None else separator)
    weighted = all(text.weights is not None for text in texts)
    ids, words, weights = [np.empty(0)], [np.empty(0)], [np.empty(0)]
    first = 0
    for at, text in enumerate(texts):
        if at:
            ids.append(between)
            words.append(np.full(len(between), -1))
            weights.append(np.zeros(len(between)))
        ids.append(text.ids)
        words.append(np.where(text.words >= 0, text.words + first, -1))
        weights.append(np.zeros(0) if text.weights is None else text.weights)
        first = max(first, int(words[-1].max(initial=-1)) + 1)
    return Text(
        np.concatenate(ids).astype(np.int32),
        np.concatenate(words).astype(np.int32),
        np.concatenate(weights).astype(np.float32) if weighted else None,
    )


def add_title(
    corpus: TokenCorpus, row: int, text: Text, title: Title, separator: Separator | None, *, room: int | None = None
) -> Text:
    """Put the title of passage `row` before `text`.

    title: "none": no title; "join": title and text; "sep": with the separator between them; "segment": a pair, with the
        separator between them and token type 1 for the text
    room: truncate a pair to this many tokens, the longer text first, as tokenizers do
    Raises MismatchError if the text has weights and the title has none.
    """
    if title == "none":
        return text
    heading = corpus.get_title(row)
    if not len(heading.ids):
        return text
    if text.weights is not None and heading.weights is None:
        raise MismatchError(
            f"passage '{corpus.get_id(row)}' has weights but no 'title_weights'; "
            '`drtk termweight` with `title` join adds them; title = "none" does not need them'
        )
    if title != "segment":
        return join_texts([heading, text], None if title == "join" else separator)
    if room is not None and separator is not None:
        heading, text = truncate_longest_first(heading, text, room - np.size(separator))
    joined = join_texts([heading, text], separator)
    types = np.zeros(len(joined.ids), np.int32)
    types[len(types) - len(text.ids) :] = 1
    return joined._replace(types=types)


def truncate_longest_first(first: Text, second: Text, room: int) -> tuple[Text, Text]:
    """Truncate two texts to `room` tokens, the longer first; if both exceed half of `room`, each gets half."""
    sizes = len(first.ids), len(second.ids)
    if sum(sizes) > room:
        short = max(0, min(*sizes, room // 2))
        long = max(0, room - short)
        sizes = (short, long) if sizes[0] <= sizes[1] else (long, short)
    return slice_text(first, 0, sizes[0]), slice_text(second, 0, sizes[1])
