"""The input of views (functions that select a text of a corpus row), and functions to slice, join and crop tokenized texts."""

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

    row: index of a passage in the corpus, or of a document if examples are documents
    max_tokens: maximum length of each text, without the special tokens before and after it
    separator: token ids between two texts
    """

    corpus: TokenCorpus
    row: int
    rng: np.random.Generator
    max_tokens: int
    separator: Separator | None = None

    def choose(self, choices: Sequence[Any]) -> Any:
        """Return one of `choices`, sampled uniformly, or None if `choices` is empty."""
        return choices[int(self.rng.integers(len(choices)))] if len(choices) else None

    def crop(self, text: Text, how: Crop, max_tokens: int | None = None) -> Text:
        """Crop a text to `max_tokens` tokens: to its first tokens ("head"), or to a random span ("random")."""
        count, max_tokens = len(text.ids), self.max_tokens if max_tokens is None else max_tokens
        if count <= max_tokens:
            return text
        begin = int(self.rng.integers(count - max_tokens + 1)) if how == "random" else 0
        return slice_text(text, begin, begin + max_tokens)

    def build_passage(
        self, row: int, title: Title, crop: Crop, *, text: Text | None = None, max_tokens: int | None = None
    ) -> Text:
        """Return a passage with its title, cropped to `max_tokens` tokens.

        title: see `add_title`    text: text to use instead of the passage's text
        """
        text, max_tokens = (
            self.corpus.get_text(row) if text is None else text,
            self.max_tokens if max_tokens is None else max_tokens,
        )
        pair_max_tokens = max_tokens if crop == "head" else None
        return self.crop(
            add_title(self.corpus, row, text, title, self.separator, max_tokens=pair_max_tokens), crop, max_tokens
        )


def needs_fields(*fields: str, **by_option: Mapping[str, str]) -> Callable[[View], View]:
    """Decorator that declares the corpus fields that a view needs.

    by_option: {option: {value: field}}, fields that are needed only for a value of an option
    """

    def mark(view: View) -> View:
        view.needs = fields, by_option  # type: ignore[attr-defined]
        return view

    return mark


def list_needed_fields(view: Callable[..., Any], options: Mapping[str, Any]) -> set[str]:
    """Return the corpus fields that a view needs with the given options."""
    always, by_option = getattr(view, "needs", ((), {}))
    return {*always, *(values[options[key]] for key, values in by_option.items() if options.get(key) in values)}


def slice_text(text: Text, begin: int, end: int) -> Text:
    """Return the tokens [begin, end) of a text, with word indices from 0."""
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
    """Concatenate texts, with `separator` between them (word index -1, weight 0) and without token types.

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
    corpus: TokenCorpus,
    row: int,
    text: Text,
    title: Title,
    separator: Separator | None,
    *,
    max_tokens: int | None = None,
) -> Text:
    """Add the title of passage `row` before `text`.

    title: "none": no title; "join": title and text; "sep": title, separator and text; "segment": title, separator and text,
        with token type 1 for the text
    max_tokens: maximum length of title, separator and text (title "segment" only); the longer text is truncated first
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
            'run `drtk termweight` with `title` join, or use title = "none"'
        )
    if title != "segment":
        return join_texts([heading, text], None if title == "join" else separator)
    if max_tokens is not None and separator is not None:
        heading, text = truncate_longest_first(heading, text, max_tokens - np.size(separator))
    joined = join_texts([heading, text], separator)
    types = np.zeros(len(joined.ids), np.int32)
    types[len(types) - len(text.ids) :] = 1
    return joined._replace(types=types)


def truncate_longest_first(first: Text, second: Text, max_tokens: int) -> tuple[Text, Text]:
    """Truncate two texts to `max_tokens` tokens in total, the longer text first; if both are longer than half, each gets half."""
    sizes = len(first.ids), len(second.ids)
    if sum(sizes) > max_tokens:
        short = max(0, min(*sizes, max_tokens // 2))
        long = max(0, max_tokens - short)
        sizes = (short, long) if sizes[0] <= sizes[1] else (long, short)
    return slice_text(first, 0, sizes[0]), slice_text(second, 0, sizes[1])
