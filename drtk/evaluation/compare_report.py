"""Format a comparison as text, Markdown, LaTeX, CSV, JSON lines or an HTML page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import isinf

import numpy as np
import orjson
from markupsafe import Markup

from drtk.data.readers import read_queries
from drtk.evaluation.compare import (
    ChangedQuery,
    Comparison,
    RankedPassage,
    SystemAverage,
    compare_runs,
    find_changed_queries,
)
from drtk.evaluation.config import CompareSettings
from drtk.evaluation.significance import ZERO
from drtk.retrieval.snippets import PassageSnippets
from drtk.runtime import pages
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import escape_control_characters
from drtk.runtime.tables import Cell, Row, escape_markdown, format_markdown_code, format_table

WIDTH = 100
SNIPPET_WORDS = 30
_TEXT_COLUMNS = ("comparison", "system", "against")
_CHANGED_MOST = "Queries that changed most"


def compare_files(
    runs: Sequence[str],
    settings: CompareSettings,
    tracker: InputTracker | None = None,
    *,
    qrels: str | None = None,
    answers: str | None = None,
    corpus: str | None = None,
    queries: str | None = None,
) -> Iterator[str]:
    """Compare runs given as [NAME=]FILE; return the lines of the comparison in the format of the settings.

    qrels: judgments; answers: questions with answers, instead of `qrels`; requires `corpus`
    corpus, queries: texts to show for the queries that changed most
    Raises the errors of `compare_runs`.
    """
    tracker = tracker or InputTracker()
    comparison = compare_runs(runs, qrels, corpus, settings, tracker, answers=answers)
    return format_comparison(comparison, describe_changes(comparison, corpus, queries, tracker))


def describe_changes(
    comparison: Comparison, corpus: str | None, queries: str | None, tracker: InputTracker
) -> list[ChangedQuery]:
    """Return the queries that changed most, with the texts in `corpus` and `queries`, if given."""
    texts: dict[str, str] = {}
    if queries is not None:
        compared = set(comparison.queries)
        texts = {query.id: query.text for query in read_queries(queries, tracker=tracker) if query.id in compared}
    mark = "{}".join(pages.HIGHLIGHT_MARKS).format if comparison.settings.format == "html" else str
    show = PassageSnippets(corpus, words=SNIPPET_WORDS, mark=mark)
    return find_changed_queries(comparison, texts=texts, show=show)


def format_comparison(comparison: Comparison, changed: Sequence[ChangedQuery]) -> Iterator[str]:
    """Yield the lines of a comparison in the format of its settings."""
    format, digits = comparison.settings.format, comparison.settings.digits
    if format == "html":
        parts = _iter_html_parts(comparison, changed, digits)
        yield from pages.render_page(comparison.settings.heading, parts, subtitle=_describe_scope(comparison))
    elif format == "jsonl":
        yield from (orjson.dumps(row).decode() for row in list_json_rows(comparison, changed))
    elif format == "csv":
        yield from format_table(*_build_full_table(comparison), "csv")
    elif format == "latex":
        yield from (f"% {line}" for line in _list_notes(comparison))
        for table in (_build_average_table(comparison), _build_test_table(comparison)):
            yield ""
            yield from format_table(*table, "latex", digits=digits)
    else:
        yield from map(escape_control_characters, iter_text_lines(comparison, changed, markdown=format == "markdown"))


def format_p_value(p: float) -> str:
    """Format a p value with three decimals, below 0.1 with four, and below 0.0001 as "<.0001"."""
    if p < 0.0001:
        return "<.0001"
    return f"{p:.4f}" if p < 0.1 else f"{p:.3f}"


def _describe_scope(comparison: Comparison) -> str:
    count = len(comparison.queries)
    return f"{len(comparison.systems)} systems, {'1 query' if count == 1 else f'{count:,} queries'}."


def _list_notes(comparison: Comparison) -> list[str]:
    """Return footnotes that explain the symbols and columns of the tables."""
    settings = comparison.settings
    family = len(comparison.pairs)
    corrected = (
        f"Holm's correction over the {family} comparisons of a measure" if family > 1 else "one comparison per measure"
    )
    if settings.correction == "none":
        corrected = "not corrected"
    effect = "d: difference divided by the standard deviation of the differences (Cohen's d)"
    is_any_significant = any(c.significant for c in comparison.tests)
    criterion = "† differs significantly" if is_any_significant else "No difference is significant"
    notes = [
        "* or bold: best mean of a measure.",
        f"{criterion} (both tests with p below {settings.alpha:g}; {corrected}).",
        f"difference: mean over queries, with its {settings.confidence:.0%} confidence interval; {effect}.",
        f"p(t): paired two-sided t-test; p(rand): two-sided randomization test, up to {settings.permutations:,} sign assignments.",
    ]
    if any(len(system.runs) > 1 for system in comparison.systems.values()):
        notes.append(
            "± is the standard deviation over the runs of a system; the tests use each query's mean over these runs."
        )
    if len(comparison.queries) == 1:
        notes.append("A single query cannot be tested.")
    return notes


def _build_average_table(comparison: Comparison) -> tuple[list[str], list[Row]]:
    """Return header and rows with the means of each system.

    The best mean is marked; a mean that differs significantly from the baseline has a dagger, except with `all_pairs`.
    """
    settings = comparison.settings
    marked = {(c.system, c.measure) for c in comparison.tests if not settings.all_pairs and c.significant}
    averages = comparison.compute_averages()
    best = [max(average.mean for average in column) for column in zip(*averages, strict=True)]

    def make_cell(average: SystemAverage, highest: float) -> Cell:
        spread = "" if average.sd is None else f" ± {average.sd:.{settings.digits}f} ({average.runs})"
        mark = "†" if (average.system, average.measure) in marked else ""
        return Cell(average.mean, average.mean == highest, spread + mark)

    rows = [[Cell(row[0].system), *(make_cell(*pair) for pair in zip(row, best, strict=True))] for row in averages]
    return ["system", *(measure.name for measure in comparison.measures)], rows


def _build_full_table(comparison: Comparison) -> tuple[list[str], list[Row]]:
    """Return header and rows with the statistics of each test.

    With several pairs and a correction, p values are given both uncorrected and corrected.
    """
    corrected = comparison.settings.correction != "none" and len(comparison.pairs) > 1
    tests = ["p(t)", "p(t) corrected", "p(rand)", "p(rand) corrected"] if corrected else ["p(t)", "p(rand)"]
    header = ["measure", "system", "against", "difference", "low", "high", "d", "t", *tests, "better", "equal", "worse"]
    rows: list[Row] = []
    for c in comparison.tests:
        p = [c.t_p, c.t_p_corrected, c.randomization_p, c.randomization_p_corrected][:: 1 if corrected else 2]
        named = [c.measure, c.system, c.baseline, c.difference, *(c.interval or (None, None)), c.effect, c.t]
        rows.append([Cell(value) for value in [*named, *p, c.better, c.equal, c.worse]])
    return header, rows


def _build_test_table(comparison: Comparison) -> tuple[list[str], list[Row]]:
    """Return header and rows with the signed difference, confidence interval, and rounded p-values of each test."""
    digits = comparison.settings.digits
    several = len(comparison.pairs) > 1
    corrected = comparison.settings.correction != "none" and several
    header = ["measure", *(["comparison"] if several else []), "difference", "interval", "d", "t", "p(t)", "p(rand)"]
    rows: list[Row] = []
    for c in comparison.tests:
        interval = "-" if c.interval is None else " … ".join(f"{end:+z.{digits}f}" for end in c.interval)
        p = (c.t_p_corrected, c.randomization_p_corrected) if corrected else (c.t_p, c.randomization_p)
        t = "-" if c.t is None else ("∞" if c.t > 0 else "\N{MINUS SIGN}∞") if isinf(c.t) else f"{c.t:z.2f}"
        effect = "-" if c.effect is None else f"{c.effect:+z.2f}"
        names = [c.measure, *([f"{c.system} - {c.baseline}"] if several else [])]
        difference = Cell(f"{c.difference:+z.{digits}f}", note="†" if c.significant else "")
        texts = [interval, effect, t, *map(format_p_value, p)]
        rows.append([*map(Cell, names), difference, *map(Cell, texts), Cell(c.better), Cell(c.equal), Cell(c.worse)])
    return [*header, "better", "equal", "worse"], rows


def iter_text_lines(
    comparison: Comparison, changed: Sequence[ChangedQuery], *, markdown: bool, paragraphs: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the lines of a comparison in Markdown, or for a terminal of WIDTH columns. paragraphs: added after the notes"""
    format, digits = "markdown" if markdown else "table", comparison.settings.digits
    pair = "" if len(comparison.pairs) > 1 else " minus ".join(reversed(comparison.pairs[0]))
    yield f"# {escape_markdown(comparison.settings.heading)}" if markdown else comparison.settings.heading
    yield from [""] * markdown
    yield _describe_scope(comparison)
    yield ""
    yield from format_table(*_build_average_table(comparison), format, digits=digits)
    yield ""
    yield from [f"## {escape_markdown(pair) or 'Differences'}", ""] if markdown else [f"{pair}:"] if pair else []
    yield from format_table(*_build_test_table(comparison), format, digits=digits)
    yield ""
    for note in [*_list_notes(comparison), *paragraphs]:
        yield from [note, ""] if markdown else textwrap.wrap(note, WIDTH, subsequent_indent="  ")
    last_pair = None
    for query in changed:
        if last_pair != (query.baseline, query.system):
            last_pair = query.baseline, query.system
            title = f"{_CHANGED_MOST}, {query.system} against {query.baseline}"
            yield from [f"## {escape_markdown(title)}", ""] if markdown else ["", f"{title}:"]
        yield from [] if markdown else [""]
        yield from _format_query_markdown(query, digits) if markdown else _format_query_text(query, digits)


def _format_change(query: ChangedQuery, digits: int) -> str:
    before, after = f"{query.before:.{digits}f} ({query.baseline})", f"{query.after:.{digits}f} ({query.system})"
    return f"{query.measure} {before} → {after}, {query.after - query.before:+z.{digits}f}"


def _iter_passages(query: ChangedQuery) -> Iterator[tuple[str, RankedPassage]]:
    """Yield (label, passage): relevant passages whose rank changed, then the passage at rank 1 of each
    system if it is not relevant.
    """
    for passage in query.relevant:
        before, after = (
            "not retrieved" if rank is None else f"rank {rank}" for rank in (passage.before, passage.after)
        )
        yield f"relevant, {before} → {after}", passage
    first, second = query.firsts
    in_both = first is not None and first == second
    names = ["both"] if in_both else [query.baseline, query.system]
    for name, top in zip(names, query.firsts, strict=False):
        if top is not None:
            yield f"first in {name}, {'not judged' if top.grade is None else f'grade {top.grade}'}", top


def _format_query_text(query: ChangedQuery, digits: int) -> Iterator[str]:
    title = f"{query.query_id}  {' '.join(query.text.split())}".rstrip()
    yield from textwrap.wrap(title, WIDTH, subsequent_indent="  ")
    yield f"  {_format_change(query, digits)}"
    for label, passage in _iter_passages(query):
        head = f"- {label}: {passage.id}  {passage.title}"
        yield "  " + textwrap.shorten(head, WIDTH - 2, placeholder=" …")
        snippet = textwrap.wrap(passage.snippet, WIDTH - 4, max_lines=2, placeholder=" …")
        yield from (f"    {line}" for line in snippet)


def _format_query_markdown(query: ChangedQuery, digits: int) -> Iterator[str]:
    name = escape_markdown(query.text or query.query_id)
    yield f"**{name}** ({format_markdown_code(query.query_id)}): {escape_markdown(_format_change(query, digits))}"
    yield ""
    for label, passage in _iter_passages(query):
        title = f"**{escape_markdown(passage.title or passage.id)}** ({format_markdown_code(passage.id)})"
        yield f"- {escape_markdown(label)}: {title} {escape_markdown(passage.snippet)}".rstrip()
    yield ""


def _iter_html_parts(comparison: Comparison, changed: Sequence[ChangedQuery], digits: int) -> Iterator[Markup]:
    yield pages.render_table(*_build_average_table(comparison), digits=digits, left_columns=_TEXT_COLUMNS)
    yield pages.render_heading("Differences")
    if len(comparison.pairs) == 1:
        yield pages.render_paragraph(" minus ".join(reversed(comparison.pairs[0])))
    yield pages.render_table(*_build_test_table(comparison), digits=digits, left_columns=_TEXT_COLUMNS)
    yield from (pages.render_paragraph(note, kind="dim") for note in _list_notes(comparison))
    measure = comparison.measures[0].name
    for baseline, system in comparison.pairs:
        yield pages.render_heading(f"{system} minus {baseline}, query by query")
        differences = np.sort(comparison.compute_differences(baseline, system, measure))[::-1].tolist()
        yield pages.render_difference_bars(differences, name=measure, zero=ZERO)
        queries = [query for query in changed if (query.baseline, query.system) == (baseline, system)]
        if queries:
            yield pages.render_heading(_CHANGED_MOST)
        yield from (_format_query_html(query, digits) for query in queries)
    yield pages.render_heading("All figures")
    yield pages.render_table(*_build_full_table(comparison), digits=digits, left_columns=_TEXT_COLUMNS, small=True)


def _format_query_html(query: ChangedQuery, digits: int) -> Markup:
    kind = "gain" if query.after > query.before else "loss"
    summary = Markup('{} <code>{}</code><br><span class="{}">{}</span>').format(
        query.text or query.query_id, query.query_id, kind, pages.use_minus_sign(_format_change(query, digits))
    )
    items = [
        pages.render_passage_item(label, passage.id, passage.title, passage.snippet)
        for label, passage in _iter_passages(query)
    ]
    return pages.render_details(summary, items)


def list_json_rows(comparison: Comparison, changed: Sequence[ChangedQuery]) -> list[dict[str, object]]:
    """Return the rows of a comparison, each with its `kind`: comparison, system, contrast or move.

    In JSON, an infinite t is null.
    """
    settings = comparison.settings
    rows: list[dict[str, object]] = [
        {"kind": "comparison", "queries": len(comparison.queries), "settings": asdict(settings)}
    ]
    rows += [{"kind": "system"} | asdict(average) for row in comparison.compute_averages() for average in row]
    rows += [{"kind": "contrast"} | asdict(test) for test in comparison.tests]
    return rows + [{"kind": "move"} | asdict(query) for query in changed]
