"""What a token corpus takes of a passage beside its text: the fields asked for, checked, and the command that adds each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from drtk.errors import MismatchError, RecordError
from drtk.io.intake import Intake
from drtk.io.rows import strings_of
from drtk.io.sources import document_of
from drtk.records import Passage
from drtk.text.sentences import Span

FIELDS = {  # what may be wanted -> where it comes from
    "queries": "drtk doc2query adds them",
    "continuations": "drtk continue-text adds them",
    "weights": "drtk termweight adds them",
    "title_weights": "drtk termweight --title join adds them",
    "sentences": "drtk chunk notes where they lie",
    "documents": "drtk chunk cuts documents into passages that know theirs",
}


class Fields(NamedTuple):
    """A passage with what was asked for; None where that was not, or (titles' weights, sentences) where it is not there.

    place: where complaints say it stands; tokenizer: the one its weights were made for, where it says so
    """

    place: str
    passage: Passage
    queries: tuple[str, ...] | None
    continuations: tuple[str, ...] | None
    weights: list[float] | None
    title_weights: list[float] | None
    tokenizer: str | None
    sentences: list[Span] | None
    document: str
    position: int | None


def fields_of(passages: Iterable[tuple[str, Passage]], wants: Collection[str], *, intake: Intake) -> Iterator[Fields]:
    """The (place, passage) pairs with their fields; an ill-formed field goes to the intake.

    Raises MismatchError where a passage has no queries, continuations or weights and those are wanted.
    """
    for place, passage in passages:
        try:
            yield _fields(place, passage, wants)
        except ValueError as error:
            intake.forgive(RecordError(place, str(error)))


def _fields(place: str, passage: Passage, wants: Collection[str]) -> Fields:
    for name in ("queries", "continuations", "weights"):
        if name in wants and passage.extra.get(name) is None:
            raise MismatchError(f"{place}: passage '{passage.id}' has no '{name}'; {FIELDS[name]}")
    metadata = passage.metadata or {}
    weighted = "weights" in wants or "title_weights" in wants
    title_weights = passage.extra.get("title_weights") if weighted else None
    return Fields(
        place,
        passage,
        strings_of(passage.extra["queries"], "queries") if "queries" in wants else None,
        strings_of(passage.extra["continuations"], "continuations") if "continuations" in wants else None,
        _weights(passage.extra["weights"], "weights") if "weights" in wants else None,
        None if title_weights is None else _weights(title_weights, "title_weights"),
        _name(metadata.get("weights_tokenizer")) if weighted else None,
        _sentences(metadata.get("sentences"), len(passage.text)) if "sentences" in wants else None,
        document_of(passage) if "documents" in wants else "",
        _position(metadata.get("position"), passage.id) if "documents" in wants else None,
    )


def _weights(value: Any, field: str) -> list[float]:
    if not isinstance(value, list) or not all(_is_weight(item) for item in value):
        raise ValueError(f"'{field}' must be a list of numbers, 0 or more")
    return value


def _is_weight(item: Any) -> bool:
    return (
        isinstance(item, (int, float)) and not isinstance(item, bool) and 0 <= item < 1e38
    )  # neither NaN nor beyond float32


def _name(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError("'metadata.weights_tokenizer' must be a string")
    return value


def _sentences(value: Any, length: int) -> list[Span] | None:
    """Spans of sentences in characters, in order and within the text."""
    if value is None:
        return None
    problem = ValueError("'metadata.sentences' must be a list of [begin, end] in characters of the text, in order")
    if not isinstance(value, list):
        raise problem
    found: list[Span] = []
    last = 0
    for item in value:
        if not isinstance(item, list) or [type(part) for part in item] != [int, int]:
            raise problem
        begin, end = item
        if not last <= begin <= end <= length:
            raise problem
        found.append((begin, end))
        last = end
    return found


def _position(value: Any, id: str) -> int | None:
    """A passage's number within its document: `metadata.position`, otherwise the N of `DOC#N`."""
    if value is None:
        number = id.rpartition("#")[2] if "#" in id else ""
        return int(number) if number.isdecimal() and number.isascii() and len(number) < 10 else None
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError("'metadata.position' must be a whole number, 0 or more")
    return value
