"""Passages without a text: nothing can be found in them, or read, and whoever goes on does so without a word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drtk.io.progress import warn

PASSAGES, TEXTLESS = "passages", "without a text"  # counts: of passages that were used, and of those among them


def all_textless(counts: Mapping[str, Any], corpus: str) -> str | None:
    """What is wrong where passages were used, and none of them had a text; None where one had."""
    if not counts.get(PASSAGES) or counts.get(TEXTLESS, 0) < counts[PASSAGES]:
        return None
    return f"{corpus}: none of the {counts[PASSAGES]:,} passages looked up there has a text: is it the right file?"


def warn_of_textless(counts: Mapping[str, Any], corpus: str) -> None:
    """Warn, with numbers, where some of the passages had no text."""
    if counts.get(TEXTLESS):
        warn(f"{corpus}: {counts[TEXTLESS]:,} of the {counts[PASSAGES]:,} passages looked up there have no text")
