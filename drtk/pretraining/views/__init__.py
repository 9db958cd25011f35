"""Registry of views. A view selects the text of a slot from a corpus row: the passage, a span of it, one of its queries …

A view is a function (ViewInput of views/base.py, **options) that returns a dictionary of texts, or None for a row without such a
text. The key of a single text is ""; a slot names one of several texts as VIEW.KEY, such as "pair.a".
"""

from __future__ import annotations

from drtk.registry import Registry

VIEWS = Registry(
    "view",
    {
        "passage": ("drtk.pretraining.views.passages:passage_view", "the passage itself"),
        "next": ("drtk.pretraining.views.passages:next_passage_view", "the next passage of the document"),
        "halves": ("drtk.pretraining.views.passages:halves_view", "the first half of the passage, and the second"),
        "pair": (
            "drtk.pretraining.views.passages:passage_pair_view",
            "two passages of one document, possibly overlapping",
        ),
        "query": ("drtk.pretraining.views.passages:query_view", "one of the passage's queries"),
        "queries": ("drtk.pretraining.views.passages:queries_view", "the passage's queries, joined"),
        "continuation": (
            "drtk.pretraining.views.passages:continuation_view",
            "a generated continuation of the passage",
        ),
        "crop": ("drtk.pretraining.views.passages:crop_view", "a random span of the passage"),
        "crop-pair": ("drtk.pretraining.views.passages:crop_pair_view", "two random spans of the passage"),
        "ict": (
            "drtk.pretraining.views.passages:ict_view",
            "a sentence of the passage, and the passage, usually without it (inverse cloze task)",
        ),
    },
)
