"""What is in a passage's `impacts`: how much each word adds to a score, as whole numbers (methods: section 3.4)."""

from __future__ import annotations

from typing import Any

from drtk.records import Passage

FIELD = "impacts"
LARGEST = 65_535
_LONGEST = 255  # characters of a word: Lucene cuts longer ones into several


def impacts_of(passage: Passage) -> dict[str, int]:
    """The words of a passage that have an impact above 0, and not more than 255 characters.

    Raises ValueError for a passage without the field, and for what is no whole number of at most 65,535.
    """
    if FIELD not in passage.extra:
        raise ValueError(f"has no '{FIELD}'; drtk termweight --method deepimpact makes them")
    found: Any = passage.extra[FIELD]
    if not isinstance(found, dict):
        raise ValueError(f"'{FIELD}' must be an object of words and whole numbers")
    kept = {}
    for word, impact in found.items():
        if type(impact) is not int:
            raise ValueError(f"the impact of '{word}' must be a whole number, found {_shown(impact)}")
        if impact > LARGEST:
            raise ValueError(f"the impact of '{word}' is {impact:,}; {LARGEST:,} is the largest that can be indexed")
        if word.split() != [word]:
            raise ValueError(f"the word {word!r} of its '{FIELD}' is empty or contains white space")
        if impact > 0 and len(word) <= _LONGEST:
            kept[word] = impact
    return kept


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else type(value).__name__
