"""The report of a mining run: how many negatives, how hard, how suspicious; as text, or as a page with examples to judge."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from drtk.data.jsonl import read_queries
from drtk.mining.audit import SUSPICIONS, AuditRow
from drtk.records import Query
from drtk.runtime.progress import log
from drtk.runtime.streams import STANDARD, Output, is_stream
from drtk.runtime.tables import Cell, format_table

if TYPE_CHECKING:
    from markupsafe import Markup

RANKS = (1, 11, 21, 51, 101, 201, 1001)  # lower ends of the groups of ranks
SAMPLE = 4000  # values from which quantiles and histograms are computed
BINS = 40
NUM_SHOWN = 20  # queries on the page
HARDEST, LOST = 6, 4  # negatives and rejected candidates shown of a query
SNIPPET_WORDS = 40
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
_SHOWN = ("score", "gap", "ce", "overlap", "cosine")
_TESTED = {"above": "gap", "ce": "ce_gap", "answer": "answer", "overlap": "overlap", "cosine": "cosine"}


@dataclass
class Distribution:
    """Count, sum, minimum and maximum of a stream of numbers, and a sample of SAMPLE of them, chosen by hash."""

    count: int = 0
    total: float = 0.0
    least: float = inf
    most: float = -inf
    _sample: list[tuple[int, float]] = field(default_factory=list)

    def add(self, value: float, key: str) -> None:
        """Add a number; `key` decides whether it is in the sample."""
        self.count += 1
        self.total += value
        self.least, self.most = min(self.least, value), max(self.most, value)
        item = (-_hash(key), value)  # the heap's first has the largest hash
        if len(self._sample) < SAMPLE:
            heappush(self._sample, item)
        elif item > self._sample[0]:
            heappushpop(self._sample, item)

    @property
    def mean(self) -> float:
        return self.total / self.count

    def quantiles(self, *shares: float) -> list[float]:
        """Return the quantiles of the sample."""
        quantiles: list[float] = np.quantile([value for _, value in self._sample], shares).tolist()
        return quantiles

    def histogram(self, bins: int) -> tuple[list[float], list[float]]:
        """Return (shares, edges) of at most `bins` equal bins over the sample; of whole numbers each holds as many."""
        values = np.array([value for _, value in self._sample])
        edges: Any = bins
        if len(values) and (values == values.round()).all():
            step = max(1, -(-int(values.max() - values.min() + 1) // bins))
            edges = np.arange(values.min(), values.max() + step + 1, step) - 0.5
        counts, edges = np.histogram(values, bins=edges)
        return (counts / max(1, counts.sum())).tolist(), edges.tolist()


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


@dataclass
class Summary:
    """What the rows of an audit add up to.

    retrieved: queries with a positive retrieved, by source. losing: queries that lost a candidate, by filter. values: of the
    negatives, by name. suspects: negatives with any suspicion. tested: negatives for which a suspicion could be tested.
    shown: rows to judge: the most suspicious ones, and others sampled by hash.
    """

    queries: int = 0
    positives: int = 0
    promoted: int = 0
    not_sampled: int = 0
    random_rejected: int = 0
    suspects: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    retrieved: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    losing: Counter[str] = field(default_factory=Counter)
    ranks: Counter[int] = field(default_factory=Counter)
    suspicious: Counter[str] = field(default_factory=Counter)
    tested: Counter[str] = field(default_factory=Counter)
    negatives: Distribution = field(default_factory=Distribution)  # per query
    rank: Distribution = field(default_factory=Distribution)
    values: dict[str, Distribution] = field(default_factory=dict)
    shown: list[AuditRow] = field(default_factory=list)

    @property
    def num_negatives(self) -> int:
        return int(self.negatives.total)

    def add(self, row: AuditRow) -> None:
        """Add a row of the audit."""
        query_id = row["query_id"]
        self.queries += 1
        self.promoted += sum("promoted" in one for one in row["positives"])
        self.dropped.update(one["by"] for one in row["dropped"])
        self.losing.update({one["by"] for one in row["dropped"]})
        if "left_out" in row:
            self.skipped[row["left_out"]] += 1
            return
        self.positives += len(row["positives"])
        self.retrieved.update({source for one in row["positives"] for source in one["found"]})
        self.not_sampled += row["not_drawn"]
        self.random_rejected += len(row.get("random_refused", ()))
        self.negatives.add(len(row["kept"]), query_id)
        for one in row["kept"]:
            key = f"{query_id}\0{one['id']}"
            self.sources[one["source"]] += 1
            if "rank" in one:
                self.rank.add(one["rank"], key)
                self.ranks[max(lower for lower in RANKS if lower <= one["rank"])] += 1
            for name in MEASURES:
                if name in one:
                    self.values.setdefault(name, Distribution()).add(one[name], key)
            self.suspicious.update(one.get("suspicious", ()))
            self.suspects += "suspicious" in one
            self.tested.update(name for name, value in _TESTED.items() if value in one)


def summarize(rows: Iterable[AuditRow], *, show: int = NUM_SHOWN) -> Summary:
    """Return the summary of an audit, with up to `show` rows to judge: half of them the most suspicious."""
    summary = Summary()
    worst: list[tuple[float, int, AuditRow]] = []
    sampled: list[tuple[float, int, AuditRow]] = []
    for number, row in enumerate(rows):
        summary.add(row)
        if row.get("kept"):
            suspicion = sum(1 / one.get("rank", 1000) for one in row["kept"] if "suspicious" in one)
            for heap, order in ((worst, suspicion), (sampled, -_hash(row["query_id"]))):
                (heappush if len(heap) < show else heappushpop)(heap, (order, -number, row))
    best = [row for suspicion, _, row in sorted(worst, key=_order, reverse=True) if suspicion][: show // 2]
    others = [row for _, _, row in sorted(sampled, key=_order, reverse=True) if row not in best]
    summary.shown = best + others[: show - len(best)]
    return summary


def _order(item: tuple[float, int, AuditRow]) -> tuple[float, int]:
    return item[:2]


Section = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # title, header (its names may be empty), rows


def build_sections(summary: Summary) -> list[Section]:
    """Return the tables of the report, without those that would be empty."""
    num_examples, num_negatives = summary.negatives.count, summary.num_negatives
    overview = [("queries", f"{summary.queries:,}"), ("examples", f"{num_examples:,}")]
    overview += [(f"left out: {why.replace('_', ' ')}", f"{count:,}") for why, count in summary.skipped.most_common()]
    if num_examples:
        overview += [
            ("positives", f"{summary.positives:,}"),
            ("negatives", f"{num_negatives:,}"),
            ("negatives of a query, fewest", f"{summary.negatives.least:,.0f}"),
            ("negatives of a query, mean", f"{summary.negatives.mean:,.1f}"),
            ("negatives of a query, most", f"{summary.negatives.most:,.0f}"),
            ("candidates that were not drawn", f"{summary.not_sampled:,}"),
        ]
    if summary.random_rejected:
        overview.append(("random passages that a filter refused", f"{summary.random_rejected:,}"))
    if summary.promoted:
        overview.append(("candidates that became positives", f"{summary.promoted:,}"))
    origins = [
        (source, f"{count:,}", _format_share(count, num_negatives),
         _format_share(summary.retrieved[source], num_examples) if source in summary.retrieved else "")
        for source, count in summary.sources.most_common()
    ]  # fmt: skip
    ranks = [
        (f"{lower} to {upper - 1}" if upper else f"{lower} and deeper", f"{summary.ranks[lower]:,}",
         _format_share(summary.ranks[lower], summary.ranks.total()))
        for lower, upper in zip(RANKS, [*RANKS[1:], 0], strict=True) if summary.ranks[lower]
    ]  # fmt: skip
    values = [
        (MEASURES[name], f"{one.count:,}", *(f"{value:z.4g}" for value in one.quantiles(0.05, 0.25, 0.5, 0.75, 0.95)))
        for name, one in summary.values.items()
    ]
    dropped = [
        (FILTERS.get(name, name), f"{count:,}", f"{summary.losing[name]:,}")
        for name, count in summary.dropped.most_common()
    ]
    suspicious = [
        (text, f"{summary.suspicious[name]:,}", _format_share(summary.suspicious[name], summary.tested[name]))
        for name, text in SUSPICIONS.items()
        if summary.tested[name]
    ]
    if suspicious:
        suspicious.append(("any of these", f"{summary.suspects:,}", _format_share(summary.suspects, num_negatives)))
    sections: list[Section] = [
        ("Mined", ("", ""), overview),
        ("Where they are from", ("source", "negatives", "share", "queries whose positive it found"), origins),
        ("How hard: their ranks", ("rank", "negatives", "share"), ranks),
        ("How hard: beside the positive", ("", "known", "5%", "25%", "half", "75%", "95%"), values),
        ("Dropped", ("why", "candidates", "queries"), dropped),
        (
            "Suspicious: may be positives that nobody judged",
            ("a negative that", "negatives", "of those tested"),
            suspicious,
        ),
    ]
    return [section for section in sections if section[2]]


def _format_share(count: int, total: int) -> str:
    return f"{count / total:.1%}" if total else ""


def format_text(summary: Summary) -> Iterator[str]:
    """Iterate over the lines of the report as text."""
    for number, (title, header, rows) in enumerate(build_sections(summary)):
        if number:
            yield ""
        yield title
        lines = format_table(list(header), [[Cell(text) for text in row] for row in rows], "table", right=True)
        if not any(header):
            next(lines)
        yield from (f"  {line}" for line in lines)


def write_report(target: str, rows: Iterable[AuditRow], *, corpus: str | None, queries: str | None) -> None:
    """Write the report of an audit: a page if `target` ends in .html, else text; "-" is stdout.

    corpus, queries: files with the texts that the page shows.
    """
    summary = summarize(rows)
    is_page = target.endswith((".html", ".htm"))
    with Output(target) as output:
        for line in format_page(summary, corpus, queries) if is_page else format_text(summary):
            output.write(f"{line}\n".encode())
    if target != STANDARD:
        log("\n".join([f"report: {target}", *format_text(summary)]))


def format_page(summary: Summary, corpus: str | None = None, queries: str | None = None) -> Iterator[str]:
    """Iterate over the lines of the report as an HTML page, with texts from `corpus` and `queries`."""
    from drtk.runtime import pages

    def parts() -> Iterator[Markup]:
        for title, header, rows in build_sections(summary):
            yield pages.render_heading(title)
            yield pages.render_table(header if any(header) else (), [[Cell(text) for text in row] for row in rows])
        drawn = {"rank in its source": summary.rank} | {MEASURES[name]: one for name, one in summary.values.items()}
        yield pages.render_figures(
            pages.render_histogram(
                *one.histogram(BINS),
                label=f"share of {one.count:,} negatives",
                caption=f"{name}; {one.least:z.4g} to {one.most:z.4g}, mean {one.mean:z.4g}",
            )
            for name, one in drawn.items()
            if one.count > 1
        )
        if summary.shown:
            yield pages.render_heading("Judge for yourself")
            yield pages.render_paragraph(
                "The queries with the most suspicious negatives, then queries sampled at random. Is a negative an answer?",
                kind="dim",
            )
        yield from _query_details(summary.shown, corpus, queries)

    suspects = f", {summary.suspects:,} of them suspicious" if summary.tested else ""
    mined = f"{summary.negatives.count:,} examples of {summary.queries:,} queries, {summary.num_negatives:,} negatives"
    return pages.render_page("Mined negatives", parts(), subtitle=mined + suspects)


def _query_details(rows: Sequence[AuditRow], corpus: str | None, queries: str | None) -> Iterator[Markup]:
    """Iterate over queries with their positives, their hardest negatives, and some rejected candidates."""
    from markupsafe import Markup

    from drtk.retrieval.snippets import PassageSnippets
    from drtk.runtime import pages

    wanted = {row["query_id"] for row in rows}
    texts: dict[str, Query] = {}
    if queries is not None and not is_stream(queries):
        texts = {query.id: query for query in read_queries(queries) if query.id in wanted}
    show = PassageSnippets(
        None if corpus is None or is_stream(corpus) else corpus,
        words=SNIPPET_WORDS,
        mark="{}".join(pages.MARK).format,
    )
    for row in rows:
        query = texts.get(row["query_id"], Query(row["query_id"], ""))
        question = " ".join((query.text, *(query.answers or ())))
        items: list[Markup] = []

        def add(
            one: AuditRow, what: str, note: str = "", kind: str = "dim", *, question: str = question, items: Any = items
        ) -> None:
            title, words = show(question, one["id"])
            what += "".join(f", {name} {one[name]:z.4g}" for name in _SHOWN if name in one)
            items.append(
                pages.render_passage_item(
                    Markup('{} <span class="{}">{}</span>').format(what, kind, note), one["id"], title, words
                )
            )

        for one in row["positives"][:HARDEST]:
            where = ", ".join(f"rank {rank:,} of {source}" for source, (rank, _) in one["found"].items())
            what = "became a positive: holds an answer" if "promoted" in one else "positive"
            add(one, f"{what}, {where or 'not found by any source'}")
        for one in sorted(row["kept"], key=_hardness)[:HARDEST]:
            add(
                one,
                f"negative, {_format_place(one)}",
                "; ".join(SUSPICIONS[name] for name in one.get("suspicious", ())),
                "bad",
            )
        for one in row["dropped"][:LOST]:
            limit = f", limit {one['limit']:.4g}" if "limit" in one else ""
            add(one, _format_place(one), f"dropped: {FILTERS.get(one['by'], one['by'])}{limit}")
        if len(row["dropped"]) > LOST:
            items.append(Markup('<li class="dim">{:,} more were dropped</li>').format(len(row["dropped"]) - LOST))
        suspects = sum("suspicious" in one for one in row["kept"])
        told = Markup(' <span class="bad">{:,} suspicious</span>').format(suspects) if suspects else ""
        yield pages.render_details(
            Markup('{} <code>{}</code><br><span class="dim">{:,} negatives</span>{}').format(
                query.text or query.id, query.id, len(row["kept"]), told
            ),
            items,
        )


def _hardness(one: AuditRow) -> tuple[bool, int, float, int]:
    """Order suspicious negatives first, then those whose score is nearest the positive's."""
    num_suspicions = len(one.get("suspicious", ()))
    gap = one.get("ce_gap", one.get("gap"))
    return not num_suspicions, -num_suspicions, inf if gap is None else gap, int(one.get("rank", 1 << 30))


def _format_place(one: AuditRow) -> str:
    return f"rank {one['rank']:,} of {one['source']}" if "rank" in one else str(one["source"])
