"""The string that BM25 is asked with: a question, alone or followed by an expansion (GAR, EAR)."""

from __future__ import annotations


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
