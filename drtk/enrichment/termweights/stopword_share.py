"""Compute the share of stop words and punctuation among tokens masked by weight (ROM; methods: section 4.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from drtk.enrichment.termweights.reading import Reading
from drtk.text.draws import generator
from drtk.text.masking.budget import mask_budget
from drtk.text.masking.rom import largest_first, scaled
from drtk.text.word_pieces import Pieces, owners
from drtk.text.word_spans import plain
from drtk.text.words import stop_words

RATE = 0.15
_ROWS = {
    "hidden by chance": "random masking",
    "highest weights": "the highest weights alone",
    "hidden, max": "ROM, weights divided by their maximum",
    "hidden, minmax": "ROM, weights from minimum to maximum",
    "hidden, sum": "ROM, weights with a sum of 1",
}


def counted(reading: Reading, pieces: Pieces, weights: Sequence[float], seed: int) -> dict[str, int]:
    """Of a passage's text: pieces, those hidden at a rate of 15% and, of each way to choose them, the stop words and marks.

    pieces: of the text; weights: one each
    """
    empty = np.array(_says_nothing(reading.passage.text, pieces), dtype=bool)
    values = np.array(weights, dtype=np.float64)
    chance = generator(seed, reading.passage.id, "rom").random(len(values))
    scores = {
        "hidden by chance": chance,
        "highest weights": values,
        **{f"hidden, {how}": scaled(values, how) + chance for how in ("max", "minmax", "sum")},
    }
    budget = mask_budget(RATE, len(values))
    counts = {
        "passages": 1,
        "pieces": len(values),
        "hidden": budget,
        "stop words": int(empty.sum()),
    }
    return counts | {name: int(empty[largest_first(each)[:budget]].sum()) for name, each in scores.items()}


def _says_nothing(text: str, pieces: Pieces) -> list[bool]:
    spans = plain(text, pieces)
    listed = stop_words()
    words = [text[begin:end].lower().replace("’", "'") for begin, end in spans]
    said = [word not in listed and any(map(str.isalnum, word)) for word in words]
    return [owner < 0 or not said[owner] for owner in owners(pieces, spans)]


def lines(counts: Mapping[str, Any], method: str) -> list[str]:
    """The table of all passages' counts, added up."""
    if not counts.get("hidden"):
        return []
    such = counts["stop words"] / counts["pieces"]
    title = (
        f"{method}: stop words and punctuation among the {RATE:.0%} of word pieces that would be hidden "
        f"({counts['passages']:,} passages, {counts['pieces']:,} pieces, {such:.1%} of them such)"
    )
    return [title, *(f"  {counts[name] / counts['hidden']:6.1%}  {words}" for name, words in _ROWS.items())]
