"""The report of a mining run: figures and text."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from typing import Any

import numpy as np

from drtk.mining.audit import SUSPICIONS, Row

RANKS = (1, 11, 21, 51, 101, 201, 1001)  # lower ends of the groups that ranks are counted in
STEPS = 4000  # bins of a measure's histogram


@dataclass
class Spread:
    """Numbers in little memory: their count and sum, and as many of them, drawn by hash, as quantiles need.

    Beyond STEPS numbers, quantiles are those of a sample.
    """

    count: int = 0
    total: float = 0.0
    least: float = float("inf")
    most: float = float("-inf")
    _sample: list[tuple[int, float]] = field(default_factory=list)

    def add(self, value: float, key: str) -> None:
        """One more number; `key` decides whether it is of the sample."""
        self.count += 1
        self.total += value
        self.least, self.most = min(self.least, value), max(self.most, value)
        item = (-_hash(key), value)  # the heap's first is the largest hash
        if len(self._sample) < STEPS:
            heappush(self._sample, item)
        elif item > self._sample[0]:
            heappushpop(self._sample, item)

    @property
    def mean(self) -> float:
        return self.total / self.count

    def quantiles(self, *shares: float) -> list[float]:
        """The values below which these shares of the numbers lie."""
        found: list[float] = np.quantile([value for _, value in self._sample], shares).tolist()
        return found

    def histogram(self, bins: int) -> tuple[list[float], list[float]]:
        """(shares of the numbers, edges) of up to `bins` equal bins over the sample; of whole numbers, each has as many."""
        values = np.array([value for _, value in self._sample])
        edges: Any = bins
        if len(values) and (values == values.round()).all():
            step = max(1, -(-int(values.max() - values.min() + 1) // bins))
            edges = np.arange(values.min(), values.max() + step + 1, step) - 0.5
        counts, edges = np.histogram(values, bins=edges)
        return (counts / max(1, counts.sum())).tolist(), edges.tolist()


@dataclass
class Figures:
    """What the rows of an audit add up to.

    measures: of the kept negatives by name: gap, ce, ce_gap, overlap, cosine. shown: rows for a person to judge, the most
    suspicious and as many drawn by hash.
    """

    queries: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    positives: int = 0
    promoted: int = 0
    retrieved: Counter[str] = field(default_factory=Counter)  # queries with a positive found, by source
    sources: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    losing: Counter[str] = field(default_factory=Counter)  # queries that lost a candidate, by filter
    not_drawn: int = 0
    random_refused: int = 0  # passages drawn at random that a filter would not have
    negatives: Spread = field(default_factory=Spread)  # of a query
    ranks: Counter[int] = field(default_factory=Counter)  # by the lower ends of RANKS
    rank: Spread = field(default_factory=Spread)
    measures: dict[str, Spread] = field(default_factory=dict)
    suspicious: Counter[str] = field(default_factory=Counter)
    suspects: int = 0  # negatives with a suspicion of any kind
    checked: Counter[str] = field(default_factory=Counter)  # negatives for which a suspicion could be tested
    shown: list[Row] = field(default_factory=list)

    @property
    def examples(self) -> int:
        """Queries that made an example."""
        return self.negatives.count

    @property
    def kept(self) -> int:
        """Negatives of all examples."""
        return int(self.negatives.total)


_TESTED = {"above": "gap", "ce": "ce_gap", "answer": "answer", "overlap": "overlap", "cosine": "cosine"}
_MEASURES = ("gap", "ce", "ce_gap", "overlap", "cosine")


def figures_of(rows: Iterable[Row], *, show: int = 20) -> Figures:
    """The figures of an audit, and up to `show` rows to look at."""
    found = Figures()
    worst: list[tuple[float, int, str, Row]] = []
    drawn: list[tuple[float, int, str, Row]] = []
    for number, row in enumerate(rows):
        _add(found, row)
        query_id = row["query_id"]
        if row.get("kept"):
            for held, order in ((worst, _weight(row)), (drawn, -_hash(query_id))):
                item = (order, -number, query_id, row)
                if len(held) < show:
                    heappush(held, item)
                elif item[:3] > held[0][:3]:
                    heappushpop(held, item)
    best = [row for order, _, _, row in sorted(worst, key=lambda item: item[:2], reverse=True) if order][: show // 2]
    taken = {row["query_id"] for row in best}
    others = [row for _, _, _, row in sorted(drawn, key=lambda item: item[:2], reverse=True)]
    found.shown = best + [row for row in others if row["query_id"] not in taken][: show - len(best)]
    return found


def _add(found: Figures, row: Row) -> None:
    query_id = row["query_id"]
    found.queries += 1
    found.promoted += sum("promoted" in one for one in row["positives"])
    found.dropped.update(one["by"] for one in row["dropped"])
    found.losing.update({one["by"] for one in row["dropped"]})
    if "left_out" in row:
        found.left_out[row["left_out"]] += 1
        return
    found.positives += len(row["positives"])
    found.retrieved.update({source for one in row["positives"] for source in one["found"]})
    found.not_drawn += row["not_drawn"]
    found.random_refused += len(row.get("random_refused", ()))
    found.negatives.add(len(row["kept"]), query_id)
    for one in row["kept"]:
        key = f"{query_id}\0{one['id']}"
        found.sources[one["source"]] += 1
        if "rank" in one:
            found.rank.add(one["rank"], key)
            found.ranks[max(lower for lower in RANKS if lower <= one["rank"])] += 1
        for name in _MEASURES:
            if name in one:
                found.measures.setdefault(name, Spread()).add(one[name], key)
        found.suspicious.update(one.get("suspicious", ()))
        found.suspects += "suspicious" in one
        found.checked.update(name for name, value in _TESTED.items() if value in one)


def _weight(row: Row) -> float:
    """How suspicious a query's negatives are: the higher they rank, the more they weigh."""
    return sum(1 / one.get("rank", 1000) for one in row["kept"] if "suspicious" in one)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


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
