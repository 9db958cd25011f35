"""The figures of a report as tables of text, for a terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from drtk.retrieval.mining.audit import SUSPICIONS
from drtk.retrieval.mining.figures import RANKS, Figures

MEASURES = {
    "gap": "score of the positive less the negative's, in one source",
    "ce": "score by cross-encoder",
    "ce_gap": "the same gap by cross-encoder",
    "overlap": "overlap with the nearest positive, in runs of three words",
    "cosine": "cosine with the nearest positive",
}
FILTERS = {
    "rank": "ranks before --from-rank",
    "max-score": "score above --max-score",
    "min-score": "score below --min-score",
    "margin": "less than --margin below the positive",
    "max-share": "more than --max-share of the positive's score",
    "unretrieved": "the source has not found the positive",
    "overlap": "the words of a positive (--max-overlap)",
    "cosine": "near a positive (--max-cosine)",
    "ce": "too good for the cross-encoder (--ce-margin, --ce-max)",
}


@dataclass(frozen=True)
class Table:
    """A heading, names of columns, and rows whose first cell is text."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def tables(figures: Figures) -> list[Table]:
    """What there is to say, only of what happened."""
    found = [_overview(figures)]
    if figures.kept:
        found += [_origins(figures), _ranks(figures), _measures(figures)]
    found += [_dropped(figures), _suspicious(figures)]
    return [table for table in found if table.rows]


def text_lines(figures: Figures) -> Iterator[str]:
    """Lines for a terminal."""
    for number, table in enumerate(tables(figures)):
        if number:
            yield ""
        yield table.title
        rows = [table.header, *table.rows]
        widths = [max(len(row[at]) for row in rows) for at in range(len(table.header))]
        for row in rows if any(table.header) else table.rows:
            cells = [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
            yield "  " + "  ".join(cells).rstrip()


def _overview(figures: Figures) -> Table:
    rows = [("queries", f"{figures.queries:,}"), ("examples", f"{figures.examples:,}")]
    rows += [(f"left out: {what.replace('_', ' ')}", f"{count:,}") for what, count in figures.left_out.most_common()]
    if figures.examples:
        negatives = figures.negatives
        rows += [
            ("positives", f"{figures.positives:,}"),
            ("negatives", f"{figures.kept:,}"),
            ("negatives of a query, fewest", f"{negatives.least:,.0f}"),
            ("negatives of a query, mean", f"{negatives.mean:,.1f}"),
            ("negatives of a query, most", f"{negatives.most:,.0f}"),
            ("candidates that were not drawn", f"{figures.not_drawn:,}"),
        ]
    if figures.random_refused:
        rows.append(("random passages that a filter refused", f"{figures.random_refused:,}"))
    if figures.promoted:
        rows.append(("candidates that became positives", f"{figures.promoted:,}"))
    return Table("Mined", ("", ""), rows)


def _origins(figures: Figures) -> Table:
    rows = []
    for source, count in figures.sources.most_common():
        found = figures.retrieved.get(source)
        finds = "" if found is None else _share(found, figures.examples)
        rows.append((source, f"{count:,}", _share(count, figures.kept), finds))
    return Table("Where they are from", ("source", "negatives", "share", "queries whose positive it found"), rows)


def _ranks(figures: Figures) -> Table:
    total = sum(figures.ranks.values())
    rows = []
    for lower, upper in zip(RANKS, [*RANKS[1:], None], strict=True):
        count = figures.ranks[lower]
        if count:
            name = f"{lower} to {upper - 1}" if upper else f"{lower} and deeper"
            rows.append((name, f"{count:,}", _share(count, total)))
    return Table("How hard: their ranks", ("rank", "negatives", "share"), rows)


def _measures(figures: Figures) -> Table:
    rows = [
        (
            MEASURES[name],
            f"{spread.count:,}",
            *(f"{value:z.4g}" for value in spread.quantiles(0.05, 0.25, 0.5, 0.75, 0.95)),
        )
        for name, spread in figures.measures.items()
    ]
    return Table("How hard: beside the positive", ("", "known", "5%", "25%", "half", "75%", "95%"), rows)


def _dropped(figures: Figures) -> Table:
    rows = [
        (FILTERS.get(name, name), f"{count:,}", f"{figures.losing[name]:,}")
        for name, count in figures.dropped.most_common()
    ]
    return Table("Dropped", ("why", "candidates", "queries"), rows)


def _suspicious(figures: Figures) -> Table:
    rows = [
        (said, f"{figures.suspicious[name]:,}", _share(figures.suspicious[name], figures.checked[name]))
        for name, said in SUSPICIONS.items()
        if figures.checked[name]
    ]
    if rows:
        rows.append(("any of these", f"{figures.suspects:,}", _share(figures.suspects, figures.kept)))
    return Table(
        "Suspicious: may be positives that nobody judged", ("a negative that", "negatives", "of those tested"), rows
    )


def _share(count: int, total: int) -> str:
    return f"{count / total:.1%}" if total else ""
