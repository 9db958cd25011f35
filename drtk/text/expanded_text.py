"""Combine passages and queries with the texts that expansion added."""

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


def plain_query(question: str) -> str:
    """`question` as the expanded one begins: without white space around it and one question mark at its end, set apart.

    So that a plain and an expanded query differ in the expansion alone (methods, section 7.2).
    """
    return f"{question.strip().removesuffix('?').rstrip()} ?"


def expanded_query(question: str, *expansions: str) -> str:
    """`question`, a question mark, and `expansions` in their order: one (GAR, EAR), or all of them (GAR's concat).

    >>> expanded_query("who wrote hamlet?", "william shakespeare")
    'who wrote hamlet ? william shakespeare'
    """
    return " ".join([plain_query(question), *(text for each in expansions if (text := " ".join(each.split())))])
