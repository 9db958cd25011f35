"""What views have in common: the corpus they look at, their options, and cutting and joining tokenised texts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from math import isfinite
from typing import Annotated, Any, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from drtk.errors import MismatchError, UsageError
from drtk.pretraining.views import VIEWS
from drtk.text.sentences import Span
from drtk.text.token_dataset import Text

Parts = dict[str, Text]
Crop = Literal["head", "random"]
Title = Literal["none", "join", "sep", "segment"]
Separator = int | Sequence[int]  # token ids between two texts; RoBERTa has two in a pair
Share = Annotated[float, 0.0, 1.0]  # an option with its bounds
Count = Annotated[int, 1, float("inf")]
View = TypeVar("View", bound=Callable[..., Parts | None])
GIVEN = ("corpus", "row", "rng", "room", "separator")  # what a view gets from its caller; the rest are options


class Corpus(Protocol):
    """What views need of a corpus; text.token_corpus.TokenCorpus is one."""

    def id(self, row: int) -> str: ...
    def text(self, row: int) -> Text: ...
    def title(self, row: int) -> Text: ...
    def queries(self, row: int) -> list[Text]: ...
    def continuations(self, row: int) -> list[Text]: ...
    def sentences(self, row: int) -> list[Span]: ...
    def document(self, row: int) -> int: ...
    def span(self, document: int) -> np.ndarray: ...
    def run(self, row: int) -> tuple[np.ndarray, int]: ...
    def following(self, row: int) -> int | None: ...


def needing(*fields: str, **by_option: Mapping[str, str]) -> Callable[[View], View]:
    """Marks a view with the fields it needs of a corpus: always, and by the value of an option."""

    def mark(view: View) -> View:
        view.needs = fields, by_option  # type: ignore[attr-defined]
        return view

    return mark


def wanted_fields(name: str, options: Mapping[str, Any]) -> set[str]:
    """The fields, of `token_fields.FIELDS`, that a view with these options needs of a corpus.

    Raises UsageError for an unknown view, an option it does not have, or a value that is none of the option's.
    """
    view = VIEWS.load(name)
    check_options(f"view '{name}'", view, options, given=GIVEN)
    always, by_option = getattr(view, "needs", ((), {}))
    return {*always, *(values[options[key]] for key, values in by_option.items() if options.get(key) in values)}


def check_options(
    what: str, function: Callable[..., Any], options: Mapping[str, Any], *, given: Collection[str]
) -> None:
    """Raises UsageError for an option that a view, masking or reader does not have, or a value of another type.

    what: how complaints call it    given: its parameters that are no options
    """
    kinds = get_type_hints(function, include_extras=True)
    known = [key for key in inspect.signature(function).parameters if key not in given]
    for key, value in options.items():
        if key not in known:
            choices = f"choose from {', '.join(known)}" if known else "it has none"
            raise UsageError(f"{what} has no option '{key}'; {choices}")
        if not _fits(value, kinds[key]):
            raise UsageError(f"{what}: {key} = {value!r} is not {_said(kinds[key])}")


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is Annotated:
        plain, low, high = get_args(kind)
        return _fits(value, plain) and low <= value <= high
    if get_args(kind):  # a choice of types
        return any(_fits(value, inner) for inner in get_args(kind))
    if isinstance(value, float) and not isfinite(value):
        return False
    return isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))


def _said(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is Annotated:
        plain, low, high = get_args(kind)
        return f"{_said(plain)} from {low} to {high}" if high < float("inf") else f"{_said(plain)} of {low} or more"
    names = {float: "a number", int: "a whole number", type(None): "nothing", str: "a string", bool: "true or false"}
    return " or ".join(names.get(inner) or _said(inner) for inner in get_args(kind) or (kind,))


def piece(text: Text, begin: int, end: int) -> Text:
    """The tokens [begin, end) of a text with their weights; words are numbered from 0 again."""
    words = text.words[begin:end]
    inside = words >= 0
    lowest = words[inside].min() if inside.any() else 0
    return Text(
        text.ids[begin:end],
        np.where(inside, words - lowest, words).astype(np.int32),
        None if text.weights is None else text.weights[begin:end],
        None if text.types is None or begin >= end else text.types[begin:end] - text.types[begin],
    )


def joined(texts: Sequence[Text], separator: Separator | None = None) -> Text:
    """Texts one after the other, with `separator` between them where one is given, whose word is -1 and weight 0.

    Words are numbered on. There are weights where all texts have them. The result is a single segment.
    """
    between = np.atleast_1d(() if separator is None else separator)
    weighted = all(text.weights is not None for text in texts)
    ids, words, weights = [], [], []
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
    if not texts:
        return Text(np.empty(0, np.int32), np.empty(0, np.int32))
    return Text(
        np.concatenate(ids).astype(np.int32),
        np.concatenate(words).astype(np.int32),
        np.concatenate(weights).astype(np.float32) if weighted else None,
    )


def cropped(text: Text, room: int, how: Crop, *, rng: np.random.Generator) -> Text:
    """A text of at most `room` tokens: its head, or a part that may begin anywhere, every place with the same chance."""
    count = len(text.ids)
    if count <= room:
        return text
    begin = int(rng.integers(count - room + 1)) if how == "random" else 0
    return piece(text, begin, begin + room)


def titled(
    corpus: Corpus, row: int, text: Text, *, title: Title, separator: Separator | None, room: int | None = None
) -> Text:
    """Put the title of passage `row` before `text`.

    title: "none" omits it, "join" puts nothing between the two, "sep" puts the separator between them, "segment" makes
    them a pair: the separator between them, token type 0 up to it and 1 after it
    room: truncate a pair to this many tokens, the longer text first, as tokenizers do
    Raises MismatchError if the text has weights and the title has none, ValueError if a required separator is missing.
    """
    if title == "none":
        return text
    if title in ("sep", "segment") and separator is None:
        raise ValueError(f'title = "{title}" needs the id of a separator')
    heading = corpus.title(row)
    if not len(heading.ids):
        return text
    if text.weights is not None and heading.weights is None:
        raise MismatchError(
            f"passage '{corpus.id(row)}' has weights but no 'title_weights'; "
            'drtk termweight --title join adds them, and title = "none" does without'
        )
    if title != "segment":
        return joined([heading, text], None if title == "join" else separator)
    if room is not None and separator is not None:
        heading, text = truncate_longest_first(heading, text, room - np.size(separator))
    found = joined([heading, text], separator)
    types = np.zeros(len(found.ids), np.int32)
    types[len(types) - len(text.ids) :] = 1
    return found._replace(types=types)


def truncate_longest_first(first: Text, second: Text, room: int) -> tuple[Text, Text]:
    """Truncate the longer text first, as tokenizers do; if both exceed half of `room`, each gets half."""
    sizes = len(first.ids), len(second.ids)
    if sum(sizes) > room:
        short = max(0, min(*sizes, room // 2))
        long = max(0, room - short)
        sizes = (short, long) if sizes[0] <= sizes[1] else (long, short)
    return piece(first, 0, sizes[0]), piece(second, 0, sizes[1])


def titled_part(
    corpus: Corpus,
    row: int,
    text: Text,
    *,
    title: Title,
    separator: Separator | None,
    room: int,
    crop: Crop,
    rng: np.random.Generator,
) -> Text:
    """Put the title of passage `row` before `text` (`titled`) and crop the result to `room` tokens (`cropped`)."""
    whole = titled(corpus, row, text, title=title, separator=separator, room=room if crop == "head" else None)
    return cropped(whole, room, crop, rng=rng)
