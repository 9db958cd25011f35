"""Texts that were added to a passage: queries written for it, continuations of it."""

from __future__ import annotations

from drtk.records import Passage


def added_texts(passage: Passage, field: str) -> list[str]:
    """The strings of a field, none where the passage lacks it or it is null.

    Raises ValueError where the field holds something else than a string or a list of strings.
    """
    found = passage.extra.get(field)
    if found is None:
        return []
    if isinstance(found, str):
        return [found]
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ValueError(f"'{field}' must be a string or a list of strings, to be read as added texts")
    return found
