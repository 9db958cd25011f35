"""A comparison as one HTML page that needs nothing but itself: tables, a bar a query, and the queries that moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from markupsafe import Markup

from drtk.evaluation.compare import Comparison, Move, difference
from drtk.evaluation.compare_text import (
    contrast_grid,
    headline,
    leading,
    notes,
    placed,
    readable_grid,
    scope,
    standing_grid,
)
from drtk.evaluation.significance import EXACTLY
from drtk.runtime import pages

_TEXTS = ("comparison", "system", "against")  # columns aligned to the left


def comparison_page(comparison: Comparison, moved: Sequence[Move]) -> Iterator[str]:
    """Yield the lines of the HTML page of a comparison."""
    yield from pages.page(comparison.settings.title, _parts(comparison, moved), subtitle=scope(comparison))


def _parts(comparison: Comparison, moved: Sequence[Move]) -> Iterator[Markup]:
    digits = comparison.settings.digits
    yield pages.table(*standing_grid(comparison), digits=digits, left=_TEXTS)
    yield pages.heading("Differences")
    if len(comparison.pairs) == 1:
        yield pages.paragraph(" minus ".join(reversed(comparison.pairs[0])))
    yield pages.table(*readable_grid(comparison), digits=digits, left=_TEXTS)
    yield from (pages.paragraph(note, kind="dim") for note in notes(comparison))
    measure = comparison.measures[0].name
    for first, second in comparison.pairs:
        yield pages.heading(f"{second} minus {first}, query by query")
        differences = np.sort(difference(comparison, first, second, measure))[::-1].tolist()
        yield pages.difference_bars(differences, name=measure, unit="query", digits=digits, zero=EXACTLY)
        of_pair = [move for move in moved if (move.baseline, move.system) == (first, second)]
        if of_pair:
            yield pages.heading("Queries that moved most")
        yield from (_details(move, digits) for move in of_pair)
    yield pages.heading("All figures")
    yield pages.table(*contrast_grid(comparison), digits=digits, left=_TEXTS, small=True)


def _details(move: Move, digits: int) -> Markup:
    summary = Markup('{} <code>{}</code><br><span class="{}">{}</span>').format(
        move.text or move.query_id,
        move.query_id,
        "gain" if move.after > move.before else "loss",
        headline(move, digits),
    )
    places = [(f"relevant, {placed(place)}", place) for place in move.relevant] + list(leading(move))
    return pages.details(
        summary, [pages.passage_item(what, place.id, place.title, place.snippet) for what, place in places]
    )
