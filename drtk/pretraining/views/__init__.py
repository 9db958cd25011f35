"""Views by name: which text of a corpus row a slot shows.

A view is a function (ViewInput of views/base.py, **options) -> {part: Text}, or None if the row has no such text.
"""

from __future__ import annotations

from drtk.registry import Registry

VIEWS = Registry(
    "view",
    {
        "passage": ("drtk.pretraining.views.passages:passage_view", "the passage itself"),
        "next": ("drtk.pretraining.views.passages:next_passage_view", "the passage that follows in the document"),
        "halves": ("drtk.pretraining.views.passages:halves_view", "the first half of the passage, and the second"),
        "pair": (
            "drtk.pretraining.views.passages:passage_pair_view",
            "two passages, or overlapping ones, of one document",
        ),
        "query": ("drtk.pretraining.views.passages:query_view", "one of the queries written to the passage"),
        "queries": ("drtk.pretraining.views.passages:queries_view", "the queries written to the passage, joined"),
        "continuation": ("drtk.pretraining.views.passages:continuation_view", "a text that goes on from the passage"),
        "crop": ("drtk.pretraining.views.passages:crop_view", "a part of the passage, wherever it begins"),
        "crop-pair": ("drtk.pretraining.views.passages:crop_pair_view", "two such parts, drawn independently"),
        "ict": (
            "drtk.pretraining.views.passages:ict_view",
            "a sentence of the passage, and the passage mostly without it",
        ),
    },
)
