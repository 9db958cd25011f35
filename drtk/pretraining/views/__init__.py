"""Views by name: which text of a corpus row a slot shows.

A view is a function (corpus, row, *, rng, room, separator, **options) -> {part: Text} or None. Each part has at most
`room` tokens, without the outer special tokens; None means that the row has no such text. `views/base.py` has the contract.
"""

from __future__ import annotations

from drtk.registry import Registry

VIEWS = Registry(
    "view",
    {
        "passage": ("drtk.pretraining.views.passages:passage", "the passage itself"),
        "next": ("drtk.pretraining.views.passages:following", "the passage that follows in the document"),
        "halves": ("drtk.pretraining.views.passages:halves", "the first half of the passage, and the second"),
        "pair": ("drtk.pretraining.views.pairs:pair", "two passages, or overlapping ones, of one document"),
        "query": ("drtk.pretraining.views.passages:query", "one of the queries written to the passage"),
        "queries": ("drtk.pretraining.views.passages:queries", "the queries written to the passage, joined"),
        "continuation": ("drtk.pretraining.views.passages:continuation", "a text that goes on from the passage"),
        "crop": ("drtk.pretraining.views.pairs:crop", "a part of the passage, wherever it begins"),
        "crop-pair": ("drtk.pretraining.views.pairs:crop_pair", "two such parts, drawn independently"),
        "ict": ("drtk.pretraining.views.pairs:ict", "a sentence of the passage, and the passage mostly without it"),
    },
)
