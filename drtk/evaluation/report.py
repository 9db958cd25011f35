"""Build a report on several systems."""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from drtk.data.corpus_store import CorpusStore
from drtk.data.ids import CorpusIds, source_of
from drtk.data.jsonl import read_queries
from drtk.data.runs import NamedRun, fused_runs
from drtk.data.trec import Judgements
from drtk.errors import UsageError
from drtk.evaluation.compare import Contrast, compare_with_first
from drtk.evaluation.compare_text import chance
from drtk.evaluation.config import CompareSettings, ReportSettings
from drtk.evaluation.curves import LossCurve, depths_for, read_loss, recall_curve
from drtk.evaluation.evaluate import Evaluation, Evaluator, View, tell_shallow
from drtk.evaluation.judged_runs import Retrieved, evaluated, judgements_from
from drtk.evaluation.measures import Measure, parse_measures
from drtk.evaluation.tables import table_lines
from drtk.runtime.inputs import Intake
from drtk.runtime.progress import log
from drtk.runtime.streams import is_stream
from drtk.runtime.tables import escape_markdown, markdown_code


@dataclass(frozen=True)
class Overlap:
    """Where the relevant documents of all queries are, among the first `depth` of two runs and of their fusion.

    found: how many both runs hold, only the first, only the second, neither. kept: how many of each are in the fusion.
    shared: documents that both runs hold, relevant or not, as a share of the shorter list, averaged over queries.
    """

    runs: tuple[str, str]
    fused: str
    depth: int
    found: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    shared: float = 0.0

    def text(self) -> str:
        """Why fusion helps as much as it does."""
        a, b = self.runs
        total = sum(self.found.values())
        one = self.found["first"] + self.found["second"]
        kept = self.kept["first"] + self.kept["second"]
        lost = one - kept + self.found["both"] - self.kept["both"]
        return (
            f"Of {total:,} relevant documents, {self.found['both']:,} are among the first {self.depth} of both {a} and "
            f"{b}, {self.found['first']:,} of {a} alone, {self.found['second']:,} of {b} alone, "
            f"{self.found['neither']:,} of neither. {self.fused} keeps {kept:,} of the {one:,} that one run alone finds, "
            f"and {self.kept['both']:,} of those that both find: {lost:,} fall below rank {self.depth}. "
            f"The two share {self.shared:.0%} of what they retrieve."
        )


def describe_contrast(contrast: Contrast, values: tuple[float, float], *, significant: bool) -> str:
    """Return a sentence that compares a run with the first one.

    values: the averages of the run and of the first one
    """
    better = "better" if contrast.difference > 0 else "worse"
    verb = f"is significantly {better} than" if significant else "does not differ significantly from"
    queries = contrast.better + contrast.worse + contrast.equal
    return (
        f"{contrast.system} {verb} {contrast.baseline} on {contrast.measure}: {values[0]:.4f} against {values[1]:.4f} "
        f"({contrast.difference:+z.4f}; p(t) {chance(contrast.t_p_corrected)}, "
        f"p(rand) {chance(contrast.randomisation_p_corrected)}); better on {contrast.better:,} of {queries:,} queries, "
        f"worse on {contrast.worse:,}, equal on {contrast.equal:,}."
    )


def significance_note(baseline: str, comparisons: int, alpha: float) -> str:
    """Return a sentence that names the tests of the p values."""
    family = f", with Holm's correction over the {comparisons} comparisons with {baseline}" if comparisons > 1 else ""
    return (
        f"p(t) is from a paired t-test, p(rand) from a randomization test{family}; a difference is significant if both "
        f"are below {alpha:g}."
    )


def overlap(
    names: tuple[str, str],
    fused: str,
    rankings: Mapping[str, Mapping[str, Sequence[str]]],
    judgements: Judgements,
    *,
    depth: int = 100,
    rel: int = 1,
) -> Overlap:
    """Counts behind a fusion of the runs `names`; `rankings` by system, then by query."""
    found = dict.fromkeys(("both", "first", "second", "neither"), 0)
    kept = dict(found)
    shares = []
    for query, grades in judgements.items():
        a, b, f = (set(rankings[name].get(query, ())[:depth]) for name in (*names, fused))
        if a and b:
            shares.append(len(a & b) / min(len(a), len(b)))
        for id, grade in grades.items():
            if grade >= rel:
                where = {(True, True): "both", (True, False): "first", (False, True): "second"}.get(
                    (id in a, id in b), "neither"
                )
                found[where] += 1
                kept[where] += id in f
    return Overlap(names, fused, depth, found, kept, sum(shares) / len(shares) if shares else 0.0)


def leaders(results: Sequence[Evaluation], measures: Sequence[str]) -> list[str]:
    """A sentence for each group of measures on which the same system is ahead."""
    best: dict[str, list[str]] = {}
    for measure in measures:
        ranked = sorted(results, key=lambda result: float(result.overall[measure]), reverse=True)
        if float(ranked[0].overall[measure]) > float(ranked[1].overall[measure]):
            best.setdefault(ranked[0].name, []).append(measure)
    return [f"{name} is best on {', '.join(on)}." for name, on in best.items()]


@dataclass(frozen=True)
class TopHit:
    """What a system puts first, and at which rank its first relevant document stands (None: not retrieved)."""

    system: str
    id: str | None
    title: str
    snippet: str
    relevant: bool
    rank: int | None


@dataclass(frozen=True)
class ExampleQuery:
    """A query with the top hits of two systems."""

    query_id: str
    text: str
    why: str
    hits: tuple[TopHit, TopHit]

    def row(self) -> dict[str, Any]:
        """As it stands in report.json."""
        return {"query_id": self.query_id, "query": self.text, "why": self.why, "hits": [asdict(h) for h in self.hits]}


def first_relevant(ranking: Sequence[str], grades: Mapping[str, int], rel: int) -> int | None:
    """The rank of the first relevant document, or None."""
    return next((rank for rank, id in enumerate(ranking, start=1) if grades.get(id, rel - 1) >= rel), None)


def choose_queries(
    first: Mapping[str, Sequence[str]],
    second: Mapping[str, Sequence[str]],
    judgements: Judgements,
    count: int,
    *,
    rel: int = 1,
) -> list[tuple[str, str]]:
    """(query, why) of `count` queries: in turn one where the second system is better, one where the first is, one alike.

    Within a kind, the largest difference of reciprocal ranks comes first, then what a hash of the id decides: which
    queries are shown depends on nothing else.
    """
    kinds: dict[str, list[tuple[float, bytes, str]]] = {"second": [], "first": [], "alike": []}
    for query, grades in judgements.items():
        places = [first_relevant(run.get(query, ()), grades, rel) for run in (first, second)]
        a, b = (0.0 if place is None else 1 / place for place in places)
        kind = "second" if b > a else "first" if a > b else "alike"
        kinds[kind].append((-abs(a - b), hashlib.blake2b(query.encode(), digest_size=8).digest(), query))
    for found in kinds.values():
        found.sort(reverse=True)
    chosen: list[tuple[str, str]] = []
    while len(chosen) < count and any(kinds.values()):
        for kind, found in kinds.items():
            if found and len(chosen) < count:
                chosen.append((found.pop()[2], kind))
    return chosen


PICTURE = "report.png"
_WHY = {"second": "{1} is better", "first": "{0} is better", "alike": "both alike"}


@dataclass
class Report:
    """Everything a report says; `picture` is whether report.png lies beside it."""

    title: str
    results: list[Evaluation]
    measures: list[Measure]
    judged: int
    depths: Sequence[int]
    recall: Mapping[str, Sequence[float]]
    contrasts: list[Contrast]
    alpha: float
    overlap: Overlap | None = None
    loss: LossCurve | None = None
    examples: list[ExampleQuery] = field(default_factory=list)
    picture: bool = False

    @property
    def names(self) -> list[str]:
        """Names of the measures."""
        return [measure.name for measure in self.measures]

    def content(self) -> dict[str, Any]:
        """What report.json holds."""
        loss = self.loss
        return {
            "title": self.title,
            "queries": self.results[0].queries,
            "relevant": self.judged,
            "systems": {result.name: result.overall for result in self.results},
            "recall": {"k": list(self.depths)} | {name: list(values) for name, values in self.recall.items()},
            "verdict": {
                "comparisons": [
                    each.row() | {"significant": each.is_significant(self.alpha)} for each in self.contrasts
                ],
                "overlap": None
                if self.overlap is None
                else {
                    "runs": list(self.overlap.runs),
                    "fused": self.overlap.fused,
                    "depth": self.overlap.depth,
                    "relevant": self.overlap.found,
                    "kept": self.overlap.kept,
                    "shared": self.overlap.shared,
                },
                "text": self.findings(),
            },
            "loss": None
            if loss is None
            else {"first": loss.first, "last": loss.last, "steps": loss.steps, "values": loss.losses},
            "examples": [example.row() for example in self.examples],
        }

    def findings(self) -> list[str]:
        """What the numbers say, a sentence or two each."""
        overall = {result.name: result.overall for result in self.results}
        main = [each for each in self.contrasts if each.measure == self.names[0]]
        said = []
        for each in main:
            values = (float(overall[each.system][each.measure]), float(overall[each.baseline][each.measure]))
            said.append(describe_contrast(each, values, significant=each.is_significant(self.alpha)))
        if main:
            said.append(significance_note(main[0].baseline, len(main), self.alpha))
        if len(self.results) > 1:
            said += leaders(self.results, self.names)
        if self.overlap is not None:
            said.append(self.overlap.text())
        if self.loss is not None:
            said.append(self.loss.text())
        return said

    def markdown(self) -> Iterator[str]:
        """Lines of report.md."""
        yield from (f"# {escape_markdown(self.title)}", "", self._scope(), "")
        yield from table_lines(self.results, self.measures, format="markdown", per_query=False)
        if self.picture:
            yield from ("", f"![{', '.join(self.names)} by system, recall by depth, loss by step]({PICTURE})")
        yield from ("", "## Findings", "")
        yield from (f"- {escape_markdown(line)}" for line in self.findings())
        if self.examples:
            yield from ("", "## Examples", "")
        for example in self.examples:
            why = escape_markdown(self._why(example))
            yield f"**{escape_markdown(example.text)}** ({markdown_code(example.query_id)}; {why})"
            yield ""
            for hit in example.hits:
                head = markdown_code(hit.id) if hit.id else ""
                if hit.title:
                    head = f"**{escape_markdown(hit.title)}** ({head})"
                system, snippet = escape_markdown(hit.system), escape_markdown(hit.snippet)
                yield f"- {system}, {_standing(hit)}: {head} {snippet}".rstrip()
            yield ""

    def text(self, width: int) -> Iterator[str]:
        """Lines for a terminal of `width` columns."""
        yield from (self.title, self._scope(), "")
        yield from table_lines(self.results, self.measures, format="table", per_query=False)
        yield ""
        for line in self.findings():
            yield from textwrap.wrap(line, width, initial_indent="- ", subsequent_indent="  ")
        for number, example in enumerate(self.examples, start=1):
            yield ""
            yield from textwrap.wrap(
                f"{number}. {' '.join(example.text.split())} ({self._why(example)})", width, subsequent_indent="   "
            )
            label = max(len(hit.system) for hit in example.hits)
            for hit in example.hits:
                head = f"   {hit.system.ljust(label)}  "
                title = " ".join(hit.title.split()) or hit.id or "nothing found"
                yield head + textwrap.shorten(
                    f"{title} ({_standing(hit)})", max(40, width - len(head)), placeholder=" …"
                )
                yield from textwrap.wrap(
                    hit.snippet,
                    width,
                    initial_indent=" " * len(head),
                    subsequent_indent=" " * len(head),
                    max_lines=2,
                    placeholder=" …",
                )

    def _scope(self) -> str:
        systems = "1 system" if len(self.results) == 1 else f"{len(self.results)} systems"
        return f"{systems}, {self.results[0].queries:,} queries, {self.judged:,} relevant documents."

    def _why(self, example: ExampleQuery) -> str:
        return _WHY[example.why].format(*(hit.system for hit in example.hits))


def _standing(hit: TopHit) -> str:
    if hit.relevant:
        return "right"
    return "the right one is not retrieved" if hit.rank is None else f"the right one is at rank {hit.rank}"


Snippet = Callable[[str, str], str]  # (question, text) -> the part of the text that matters


def make_report(
    runs: Sequence[NamedRun],
    qrels: str,
    settings: ReportSettings,
    *,
    corpus: str | None,
    queries: str | None,
    loss_log: str | None,
    snippet: Snippet,
    intake: Intake,
) -> Report:
    """The report of `runs`. Raises UsageError for measures that have no average, and for a system that is not there."""
    measures = parse_measures(settings.measures, rel=settings.rel)
    for measure in measures:
        if measure.aggregate not in ("mean", "geometric"):
            raise UsageError(f"--measures: {measure.name} is not something to compare systems by")
    known = None if corpus is None else CorpusIds.read(corpus, intake)
    by_source = settings.by == "source"
    judgements = judgements_from(qrels, intake, known=known, by_source=by_source)
    view = View(by=(known or source_of) if by_source else None, drop_same_id=settings.drop_same_id)
    evaluator = Evaluator(judgements, measures)
    results: list[Evaluation] = []
    found: dict[str, Retrieved] = {}
    for run in runs:
        result, found[run.name] = evaluated(run, evaluator, view, intake)
        results.append(result)
    held = {name: retrieved.deepest for name, retrieved in found.items()}
    tell_shallow(held, measures, size=None if known is None else len(known))
    rankings = {name: retrieved.rankings for name, retrieved in found.items()}
    depths = depths_for(list(rankings.values()))
    tests = CompareSettings()
    report = Report(
        title=settings.title,
        results=results,
        measures=measures,
        judged=sum(grade >= settings.rel for grades in judgements.values() for grade in grades.values()),
        depths=depths,
        recall={name: recall_curve(of, judgements, depths, rel=settings.rel) for name, of in rankings.items()},
        contrasts=compare_with_first(results, measures, judgements, tests),
        alpha=tests.alpha,
        overlap=_overlap(runs, rankings, judgements, settings.rel),
        loss=None if loss_log is None else read_loss(loss_log, intake=intake),
    )
    if settings.examples and corpus is not None and queries is not None:
        texts = {query.id: query.text for query in read_queries(queries, intake=intake) if query.id in judgements}
        systems = (results[0].name, _shown(results, settings.show, measures[0].name))
        report.examples = _examples(systems, found, judgements, texts, corpus, snippet, settings)
    elif settings.examples:
        log("report: no examples: they need --corpus and --queries")
    return report


def _overlap(
    runs: Sequence[NamedRun], rankings: Mapping[str, Mapping[str, Sequence[str]]], judgements: Judgements, rel: int
) -> Overlap | None:
    """Return the overlap of relevant documents for the first run that fuses two of the others; None without one."""
    names = {Path(run.source).resolve(): run.name for run in runs if not is_stream(run.source)}
    for run in runs:
        parts = [names.get(Path(source).resolve()) for source in fused_runs(run.source)]
        if len(parts) == 2 and parts[0] is not None and parts[1] is not None:
            return overlap((parts[0], parts[1]), run.name, rankings, judgements, rel=rel)
    return None


def _shown(results: Sequence[Evaluation], wanted: str, measure: str) -> str:
    """The system that examples set against the first one."""
    names = [result.name for result in results]
    if wanted:
        if wanted not in names:
            raise UsageError(f"--show: no system is called '{wanted}'; there are {', '.join(names)}")
        return wanted
    return max(results[1:] or results, key=lambda result: float(result.overall[measure])).name


def _examples(
    systems: tuple[str, str],
    found: Mapping[str, Retrieved],
    judgements: Judgements,
    texts: Mapping[str, str],
    corpus: str,
    snippet: Snippet,
    settings: ReportSettings,
) -> list[ExampleQuery]:
    first, second = (found[name].rankings for name in systems)
    readable = {query: grades for query, grades in judgements.items() if query in texts}
    if len(readable) < len(judgements):
        log(f"report: {len(judgements) - len(readable):,} judged queries have no text in the file of queries")
    store = CorpusStore.open(corpus)

    def top_hit(system: str, query: str) -> TopHit:
        ranking = found[system].rankings.get(query, [])
        rank = first_relevant(ranking, judgements[query], settings.rel)
        id = found[system].top.get(query)
        passage = None if id is None else store.get(id)
        text = "" if passage is None else snippet(texts[query], passage.text)
        return TopHit(system, id, "" if passage is None else passage.title, text, rank == 1, rank)

    return [
        ExampleQuery(query, texts[query], why, (top_hit(systems[0], query), top_hit(systems[1], query)))
        for query, why in choose_queries(first, second, readable, settings.examples, rel=settings.rel)
    ]
