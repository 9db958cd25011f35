"""Report on a mining run, as text or as an HTML page: number and hardness of negatives, and suspected false negatives."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from math import inf
from typing import Any

import numpy as np
from markupsafe import Markup

from drtk.data.readers import read_queries
from drtk.mining.audit import SUSPICIONS, AuditRow
from drtk.records import Query
from drtk.retrieval.snippets import PassageSnippets
from drtk.runtime import pages
from drtk.runtime.progress import log
from drtk.runtime.streams import STANDARD, Output, is_stream
from drtk.runtime.tables import Cell, format_table

RANKS = (1, 11, 21, 51, 101, 201, 1001)  # first rank of each bin
SAMPLE_SIZE = 4000  # values from which quantiles and histograms are computed
NUM_BINS = 40
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
NUM_QUERIES = 20  # shown on the page
NUM_NEGATIVES, NUM_REJECTED = 6, 4  # shown per query
SNIPPET_WORDS = 40
MEASURES = {
    "gap": "positive's score minus negative's, in the same source",
    "ce": "cross-encoder score",
    "ce_gap": "positive's cross-encoder score minus negative's",
    "overlap": "largest overlap with a positive, in three-word shingles",
    "cosine": "largest cosine with a positive",
}
FILTERS = {
    "rank": "rank before the first one allowed",
    "max-score": "score above the maximum",
    "min-score": "score below the minimum",
    "margin": "score within the margin of the positive's",
    "max-share": "score above the maximum share of the positive's",
    "unretrieved": "the source did not retrieve the positive",
    "overlap": "overlap with a positive too high",
    "cosine": "cosine with a positive too high",
    "ce": "cross-encoder score too high",
}
_SHOWN_VALUES = ("score", "gap", "ce", "overlap", "cosine")
_VALUE_OF_SUSPICION = {"above": "gap", "ce": "ce_gap", "answer": "answer", "overlap": "overlap", "cosine": "cosine"}


@dataclass
class Distribution:
    """Count, sum, minimum, maximum and a random sample of a stream of values."""

    count: int = 0
    total: float = 0.0
    minimum: float = inf
    maximum: float = -inf
    _sample: list[tuple[int, float]] = field(default_factory=list)

    def add(self, value: float, key: str) -> None:
        """Add a value. The sample contains the SAMPLE_SIZE values whose `key` has the smallest hashes."""
        self.count += 1
        self.total += value
        self.minimum, self.maximum = min(self.minimum, value), max(self.maximum, value)
        item = (-_hash_text(key), value)  # the first item of the heap has the largest hash
        if len(self._sample) < SAMPLE_SIZE:
            heappush(self._sample, item)
        elif item > self._sample[0]:
            heappushpop(self._sample, item)

    @property
    def mean(self) -> float:
        return self.total / self.count

    def compute_quantiles(self, *probabilities: float) -> list[float]:
        """Return the quantiles of the sample at these probabilities (0.5: median)."""
        return np.quantile([value for _, value in self._sample], probabilities).tolist()

    def compute_histogram(self, bins: int) -> tuple[list[float], list[float]]:
        """Return (share of the values in each bin, edges of the bins) for at most `bins` bins of equal width.

        If all values are integers, the edges lie halfway between integers.
        """
        values = np.array([value for _, value in self._sample])
        edges: Any = bins
        if len(values) and (values == values.round()).all():
            step = max(1, -(-int(values.max() - values.min() + 1) // bins))
            edges = np.arange(values.min(), values.max() + step + 1, step) - 0.5
        counts, edges = np.histogram(values, bins=edges)
        return (counts / max(1, counts.sum())).tolist(), edges.tolist()


def _hash_text(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


@dataclass
class AuditSummary:
    """Totals over the queries of an audit, and the queries to show in the HTML page."""

    queries: int = 0
    positives: int = 0
    promoted: int = 0
    not_sampled: int = 0
    random_rejected: int = 0
    suspects: int = 0  # negatives with at least one suspicion
    skipped: Counter[str] = field(default_factory=Counter)  # queries by reason
    retrieved: Counter[str] = field(default_factory=Counter)  # queries whose positive was retrieved, by source
    sources: Counter[str] = field(default_factory=Counter)  # negatives by source
    dropped: Counter[str] = field(default_factory=Counter)  # candidates by filter
    dropped_queries: Counter[str] = field(default_factory=Counter)  # queries with a dropped candidate, by filter
    ranks: Counter[int] = field(default_factory=Counter)  # negatives by first rank of the bin
    suspicious: Counter[str] = field(default_factory=Counter)  # negatives by suspicion
    tested: Counter[str] = field(default_factory=Counter)  # negatives with the required value, by suspicion
    negatives: Distribution = field(default_factory=Distribution)  # number per query
    rank: Distribution = field(default_factory=Distribution)
    values: dict[str, Distribution] = field(default_factory=dict)  # of the negatives, by measure
    shown: list[AuditRow] = field(default_factory=list)  # queries for the page

    @property
    def num_negatives(self) -> int:
        return int(self.negatives.total)

    def add(self, row: AuditRow) -> None:
        query_id = row["query_id"]
        self.queries += 1
        self.promoted += sum("promoted" in positive for positive in row["positives"])
        self.dropped.update(candidate["by"] for candidate in row["dropped"])
        self.dropped_queries.update({candidate["by"] for candidate in row["dropped"]})
        if "skipped" in row:
            self.skipped[row["skipped"]] += 1
            return
        self.positives += len(row["positives"])
        self.retrieved.update({source for positive in row["positives"] for source in positive["found"]})
        self.not_sampled += row["not_sampled"]
        self.random_rejected += len(row.get("random_rejected", ()))
        self.negatives.add(len(row["kept"]), query_id)
        for negative in row["kept"]:
            key = f"{query_id}\0{negative['id']}"
            self.sources[negative["source"]] += 1
            if "rank" in negative:
                self.rank.add(negative["rank"], key)
                self.ranks[max(lower for lower in RANKS if lower <= negative["rank"])] += 1
            for name in MEASURES:
                if name in negative:
                    self.values.setdefault(name, Distribution()).add(negative[name], key)
            self.suspicious.update(negative.get("suspicious", ()))
            self.suspects += "suspicious" in negative
            self.tested.update(name for name, value in _VALUE_OF_SUSPICION.items() if value in negative)


def summarize_audit(rows: Iterable[AuditRow], *, num_queries: int = NUM_QUERIES) -> AuditSummary:
    """Return the summary of an audit, with up to `num_queries` example queries for the HTML page.

    Up to half of the examples have the most suspicious negatives (possible false negatives); the others are sampled at
    random.
    """
    summary = AuditSummary()
    most_suspicious: list[tuple[float, int, AuditRow]] = []
    sampled: list[tuple[float, int, AuditRow]] = []
    for number, row in enumerate(rows):
        summary.add(row)
        if row.get("kept"):
            suspicion = sum(1 / negative.get("rank", 1000) for negative in row["kept"] if "suspicious" in negative)
            for heap, priority in ((most_suspicious, suspicion), (sampled, -_hash_text(row["query_id"]))):
                (heappush if len(heap) < num_queries else heappushpop)(heap, (priority, -number, row))
    suspicious = [row for suspicion, _, row in _sort_heap(most_suspicious) if suspicion][: num_queries // 2]
    others = [row for _, _, row in _sort_heap(sampled) if row not in suspicious]
    summary.shown = suspicious + others[: num_queries - len(suspicious)]
    return summary


def _sort_heap(heap: list[tuple[float, int, AuditRow]]) -> list[tuple[float, int, AuditRow]]:
    return sorted(heap, key=lambda item: item[:2], reverse=True)


Section = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # title, header (its names may be empty), rows


def build_sections(summary: AuditSummary) -> list[Section]:
    """Return the tables of the report, without empty ones."""
    num_examples, num_negatives = summary.negatives.count, summary.num_negatives
    overview = [("queries", f"{summary.queries:,}"), ("examples", f"{num_examples:,}")]
    overview += [(f"skipped: {reason}", f"{count:,}") for reason, count in summary.skipped.most_common()]
    if num_examples:
        overview += [
            ("positives", f"{summary.positives:,}"),
            ("negatives", f"{num_negatives:,}"),
            ("negatives per query, minimum", f"{summary.negatives.minimum:,.0f}"),
            ("negatives per query, mean", f"{summary.negatives.mean:,.1f}"),
            ("negatives per query, maximum", f"{summary.negatives.maximum:,.0f}"),
            ("candidates not sampled", f"{summary.not_sampled:,}"),
        ]
    if summary.random_rejected:
        overview.append(("random passages rejected by a filter", f"{summary.random_rejected:,}"))
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
        (MEASURES[name], f"{measure.count:,}", *(f"{value:z.4g}" for value in measure.compute_quantiles(*QUANTILES)))
        for name, measure in summary.values.items()
    ]
    dropped = [
        (FILTERS.get(name, name), f"{count:,}", f"{summary.dropped_queries[name]:,}")
        for name, count in summary.dropped.most_common()
    ]
    suspicious = [
        (text, f"{summary.suspicious[name]:,}", _format_share(summary.suspicious[name], summary.tested[name]))
        for name, text in SUSPICIONS.items()
        if summary.tested[name]
    ]
    if suspicious:
        suspicious.append(("any of these", f"{summary.suspects:,}", _format_share(summary.suspects, num_negatives)))
    header = ("", "negatives", *(f"{quantile:.0%}" for quantile in QUANTILES))
    sections: list[Section] = [
        ("Examples", ("", ""), overview),
        ("Sources", ("source", "negatives", "share", "queries with a positive retrieved"), origins),
        ("Ranks of negatives", ("rank", "negatives", "share"), ranks),
        ("Scores of negatives, quantiles", header, values),
        ("Dropped candidates", ("reason", "candidates", "queries"), dropped),
        ("Possible false negatives", ("suspicion", "negatives", "share of those tested"), suspicious),
    ]
    return [section for section in sections if section[2]]


def _format_share(count: int, total: int) -> str:
    return f"{count / total:.1%}" if total else ""


def format_text(summary: AuditSummary) -> Iterator[str]:
    """Yield the lines of the report as text."""
    for number, (title, header, rows) in enumerate(build_sections(summary)):
        if number:
            yield ""
        yield title
        lines = format_table(list(header), [[Cell(text) for text in row] for row in rows], "table", right=True)
        if not any(header):
            next(lines)
        yield from (f"  {line}" for line in lines)


def write_report(target: str, rows: Iterable[AuditRow], *, corpus: str | None, queries: str | None) -> None:
    """Write the report of an audit to `target`: an HTML page if the name ends in .html, else text; "-" is stdout.

    The text of a report in a file is also logged.
    rows: rows of the audit    corpus, queries: files with the texts of passages and queries, for the HTML page
    """
    summary = summarize_audit(rows)
    is_page = target.endswith((".html", ".htm"))
    with Output(target) as output:
        for line in format_page(summary, corpus, queries) if is_page else format_text(summary):
            output.write(f"{line}\n".encode())
    if target != STANDARD:
        log("\n".join([f"report: {target}", *format_text(summary)]))


def format_page(summary: AuditSummary, corpus: str | None = None, queries: str | None = None) -> Iterator[str]:
    """Yield the lines of the report as an HTML page.

    corpus, queries: files with texts; show only ids if None or a stream
    """

    def iter_parts() -> Iterator[Markup]:
        for title, header, rows in build_sections(summary):
            yield pages.render_heading(title)
            yield pages.render_table(header if any(header) else (), [[Cell(text) for text in row] for row in rows])
        histograms = {"rank in its source": summary.rank}
        histograms |= {MEASURES[name]: measure for name, measure in summary.values.items()}
        yield pages.render_figures(
            pages.render_histogram(
                *measure.compute_histogram(NUM_BINS),
                label=f"share of {measure.count:,} negatives",
                caption=f"{title}; {measure.minimum:z.4g} to {measure.maximum:z.4g}, mean {measure.mean:z.4g}",
            )
            for title, measure in histograms.items()
            if measure.count > 1
        )
        if summary.shown:
            yield pages.render_heading("Example queries")
            yield pages.render_paragraph(
                "Queries with the most suspicious negatives, then queries sampled at random. Is a negative relevant?",
                kind="dim",
            )
        yield from _iter_query_details(summary.shown, corpus, queries)

    suspicious = f", {summary.suspects:,} of them suspicious" if summary.tested else ""
    subtitle = (
        f"{summary.negatives.count:,} examples of {summary.queries:,} queries, {summary.num_negatives:,} negatives"
    )
    return pages.render_page("Mined negatives", iter_parts(), subtitle=subtitle + suspicious)


def _iter_query_details(rows: Sequence[AuditRow], corpus: str | None, queries: str | None) -> Iterator[Markup]:
    """Yield an HTML section per query, with its positives, hardest negatives, and some rejected candidates."""
    query_ids = {row["query_id"] for row in rows}
    texts: dict[str, Query] = {}
    if queries is not None and not is_stream(queries):
        texts = {query.id: query for query in read_queries(queries) if query.id in query_ids}
    get_snippet = PassageSnippets(
        None if corpus is None or is_stream(corpus) else corpus,
        words=SNIPPET_WORDS,
        mark="{}".join(pages.HIGHLIGHT_MARKS).format,
    )

    def render_passage(query: Query, passage: AuditRow, label: str, note: str = "", css: str = "dim") -> Markup:
        title, snippet = get_snippet(" ".join((query.text, *(query.answers or ()))), passage["id"])
        label += "".join(f", {name} {passage[name]:z.4g}" for name in _SHOWN_VALUES if name in passage)
        heading = Markup('{} <span class="{}">{}</span>').format(label, css, note)
        return pages.render_passage_item(heading, passage["id"], title, snippet)

    for row in rows:
        query = texts.get(row["query_id"], Query(row["query_id"], ""))
        items: list[Markup] = []
        for positive in row["positives"][:NUM_NEGATIVES]:
            ranks = ", ".join(f"rank {rank:,} of {source}" for source, (rank, _) in positive["found"].items())
            label = "became a positive: contains an answer" if "promoted" in positive else "positive"
            items.append(render_passage(query, positive, f"{label}, {ranks or 'not retrieved'}"))
        for negative in sorted(row["kept"], key=_get_hardness_key)[:NUM_NEGATIVES]:
            suspicions = "; ".join(SUSPICIONS[name] for name in negative.get("suspicious", ()))
            items.append(render_passage(query, negative, f"negative, {_format_rank(negative)}", suspicions, "bad"))
        for candidate in row["dropped"][:NUM_REJECTED]:
            limit = f", limit {candidate['limit']:.4g}" if "limit" in candidate else ""
            reason = f"dropped: {FILTERS.get(candidate['by'], candidate['by'])}{limit}"
            items.append(render_passage(query, candidate, _format_rank(candidate), reason))
        if (num_more := len(row["dropped"]) - NUM_REJECTED) > 0:
            items.append(Markup('<span class="dim">{:,} more were dropped</span>').format(num_more))
        num_suspicious = sum("suspicious" in negative for negative in row["kept"])
        summary = Markup('{} <code>{}</code><br><span class="dim">{:,} negatives</span>').format(
            query.text or query.id, query.id, len(row["kept"])
        )
        if num_suspicious:
            summary += Markup(' <span class="bad">{:,} suspicious</span>').format(num_suspicious)
        yield pages.render_details(summary, items)


def _get_hardness_key(negative: AuditRow) -> tuple[bool, int, float, int]:
    """Return the sort key of a negative: most suspicions first, then the smallest gap to the positive, then rank."""
    num_suspicions = len(negative.get("suspicious", ()))
    gap = negative.get("ce_gap", negative.get("gap"))
    return not num_suspicions, -num_suspicions, inf if gap is None else gap, int(negative.get("rank", 1 << 30))


def _format_rank(passage: AuditRow) -> str:
    return f"rank {passage['rank']:,} of {passage['source']}" if "rank" in passage else str(passage["source"])
