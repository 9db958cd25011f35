"""Views by name: which text of a corpus row a slot shows.

A view is a function (ViewInput of views/base.py, **options) -> {part: Text}, or None if the row has no such text.
"""

from __future__ import annotations

from drtk.registry import Registry

VIEWS = Registry(
    "view",
    {
        "passage": ("drtk.pretraining.views.passages:passage", "the passage itself"),
        "next": ("drtk.pretraining.views.passages:following", "the passage that follows in the document"),
        "halves": ("drtk.pretraining.views.passages:halves", "the first half of the passage, and the second"),
        "pair": ("drtk.pretraining.views.passages:pair", "two passages, or overlapping ones, of one document"),
        "query": ("drtk.pretraining.views.passages:query", "one of the queries written to the passage"),
        "queries": ("drtk.pretraining.views.passages:queries", "the queries written to the passage, joined"),
        "continuation": ("drtk.pretraining.views.passages:continuation", "a text that goes on from the passage"),
        "crop": ("drtk.pretraining.views.passages:crop", "a part of the passage, wherever it begins"),
        "crop-pair": ("drtk.pretraining.views.passages:crop_pair", "two such parts, drawn independently"),
        "ict": ("drtk.pretraining.views.passages:ict", "a sentence of the passage, and the passage mostly without it"),
    },
)
