"""Combine passages and queries with the texts that expansion added."""

from __future__ import annotations

from drtk.records import Passage


def get_added_texts(passage: Passage, field: str) -> list[str]:
    """Return the strings in a field of a passage; [] if the field is missing or null.

    Raises ValueError for a field that is neither a string nor a list of strings.
    """
    value = passage.extra.get(field)
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"'{field}' must be a string or a list of strings, because it is added to the text")
    return value


def normalize_question_mark(question: str) -> str:
    """Return `question` with " ?" at its end, in place of its final question mark, if any.

    Queries with and without expansions then differ only by the expansion (docs/methods/gar.md).
    """
    return f"{question.strip().removesuffix('?').rstrip()} ?"


def expand_query(question: str, *expansions: str) -> str:
    """Append one expansion (GAR, EAR) or several expansions (GAR's concatenation) to a question.

    >>> expand_query("who wrote hamlet?", "william shakespeare")
    'who wrote hamlet ? william shakespeare'
    """
    return " ".join(
        [
            normalize_question_mark(question),
            *(text for expansion in expansions if (text := " ".join(expansion.split()))),
        ]
    )
