"""Views: which text a row of a token corpus shows, by name.

An entry is a function `view(corpus, row, *, rng, room, separator, …) -> {part: Text} | None`: parts without the outer special
tokens, at most `room` tokens each; None where the row has no such view. `views/base.py` has the rest of the contract.
"""

from drtk.registry import Registry

VIEWS = Registry(
    "view",
    {
        "passage": ("drtk.text.views.passages:passage", "the passage itself"),
        "next": ("drtk.text.views.passages:following", "the passage that follows in the document"),
        "halves": ("drtk.text.views.passages:halves", "the first half of the passage, and the second"),
        "pair": ("drtk.text.views.pairs:pair", "two passages, or overlapping ones, of one document"),
        "query": ("drtk.text.views.written:query", "one of the queries written to the passage"),
        "queries": ("drtk.text.views.written:queries", "the queries written to the passage, joined"),
        "continuation": ("drtk.text.views.written:continuation", "a text that goes on from the passage"),
        "crop": ("drtk.text.views.crops:crop", "a part of the passage, wherever it begins"),
        "crop-pair": ("drtk.text.views.crops:crop_pair", "two such parts, drawn independently"),
        "ict": ("drtk.text.views.crops:ict", "a sentence of the passage, and the passage mostly without it"),
    },
)
