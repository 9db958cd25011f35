"""Build a report on several systems: measures, significance tests, overlap with a fusion, training loss, example queries."""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from drtk.data.readers import read_queries
from drtk.data.runs import NamedRun, parse_runs, read_fused_runs
from drtk.data.trec import Judgments
from drtk.errors import MissingDependency, UsageError
from drtk.evaluation.compare import PairedTest, compare_with_first
from drtk.evaluation.compare_report import format_p_value, format_passage_markdown, wrap_snippet
from drtk.evaluation.config import CompareSettings, EvalSettings, ReportSettings
from drtk.evaluation.curves import Curve, choose_depths, compute_recall_curve, describe_loss, read_curves
from drtk.evaluation.evaluate import Evaluation, Evaluator, Rankings, log_shallow_runs
from drtk.evaluation.judged_runs import JudgedRankings, evaluate_with_rankings, load_judgments
from drtk.evaluation.measures import Measure, parse_measures
from drtk.evaluation.plots.runs import draw_report
from drtk.evaluation.result_table import format_results
from drtk.retrieval.snippets import PassageSnippets
from drtk.runtime.atomic import write_json
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import log, warn
from drtk.runtime.streams import is_stream
from drtk.runtime.tables import escape_markdown, format_markdown_code

PLOT_FILE = "report.png"
SNIPPET_WORDS = 40
OVERLAP_DEPTH = 100


@dataclass(frozen=True)
class Overlap:
    """Overlap of the relevant documents in the top `depth` of two runs and of their fusion.

    relevant: numbers of relevant documents in "both" runs, in the "first" or "second" only, and in "neither"
    kept: as `relevant`, but only of the documents that are also in the top `depth` of the fusion
    shared: number of documents in the top `depth` of both runs, relevant or not, divided by the length of the shorter
        ranking (at most `depth`); mean over the queries for which both runs have hits
    """

    runs: tuple[str, str]
    fused: str
    depth: int
    relevant: dict[str, int]
    kept: dict[str, int]
    shared: float

    def describe(self) -> str:
        """Return a paragraph that explains the effect of the fusion."""
        (a, b), relevant, kept = self.runs, self.relevant, self.kept
        found_by_one, kept_by_one = relevant["first"] + relevant["second"], kept["first"] + kept["second"]
        lost = found_by_one - kept_by_one + relevant["both"] - kept["both"]
        return (
            f"Of {sum(relevant.values()):,} relevant documents, {relevant['both']:,} are in the top {self.depth} of both {a} "
            f"and {b}, {relevant['first']:,} of {a} only, {relevant['second']:,} of {b} only, {relevant['neither']:,} of "
            f"neither. {self.fused} keeps {kept_by_one:,} of the {found_by_one:,} found by one run and {kept['both']:,} of those found by "
            f"both; {lost:,} fall below rank {self.depth}. The runs share {self.shared:.0%} of the documents they retrieve."
        )


def compute_overlap(
    names: tuple[str, str], fused: str, rankings: Mapping[str, Rankings], judgments: Judgments, *, rel: int = 1
) -> Overlap:
    """Compute the overlap of two runs and their fusion.

    names: the two runs; fused: the fusion; rankings: {run: {query id: ranked document ids}}
    rel: minimum grade of a relevant document
    """
    relevant = dict.fromkeys(("both", "first", "second", "neither"), 0)
    kept = dict(relevant)
    shares = []
    for query, grades in judgments.items():
        a, b, fusion = (set(rankings[name].get(query, ())[:OVERLAP_DEPTH]) for name in (*names, fused))
        if a and b:
            shares.append(len(a & b) / min(len(a), len(b)))
        for id, grade in grades.items():
            if grade >= rel:
                where = ("both" if id in b else "first") if id in a else "second" if id in b else "neither"
                relevant[where] += 1
                kept[where] += id in fusion
    return Overlap(names, fused, OVERLAP_DEPTH, relevant, kept, fmean(shares) if shares else 0.0)


def describe_test(test: PairedTest, values: tuple[float, float]) -> str:
    """Return a sentence on the significance test of a run against the baseline. values: means of run and baseline"""
    better = "better" if test.difference > 0 else "worse"
    verb = f"is significantly {better} than" if test.significant else "does not differ significantly from"
    queries = test.better + test.worse + test.equal
    return (
        f"{test.system} {verb} {test.baseline} on {test.measure}: {values[0]:.4f} against {values[1]:.4f} "
        f"({test.difference:+z.4f}; p(t) {format_p_value(test.t_p_corrected)}, "
        f"p(rand) {format_p_value(test.randomization_p_corrected)}); better on {test.better:,} of {queries:,} queries, "
        f"worse on {test.worse:,}, equal on {test.equal:,}."
    )


@dataclass(frozen=True)
class TopHit:
    """Top-ranked hit of a system for a query, and the rank of the first relevant document (None: none retrieved).

    id: None without hits; relevant: whether the top-ranked hit is relevant
    """

    system: str
    id: str | None
    title: str
    snippet: str
    relevant: bool
    rank: int | None

    def describe(self) -> str:
        if self.relevant:
            return "relevant"
        return "no relevant document retrieved" if self.rank is None else f"first relevant document at rank {self.rank}"


@dataclass(frozen=True)
class ExampleQuery:
    """A query with the top hits of two systems; why: the better system (first, second, or alike for a tie)."""

    query_id: str
    query: str
    why: str
    hits: tuple[TopHit, TopHit]

    def describe(self) -> str:
        first, second = (hit.system for hit in self.hits)
        return {"second": f"{second} is better", "first": f"{first} is better", "alike": "both alike"}[self.why]


def find_first_relevant(ranking: Sequence[str], grades: Mapping[str, int], rel: int) -> int | None:
    """Return the rank (from 1) of the first relevant document; None if no relevant document is retrieved."""
    return next((rank for rank, id in enumerate(ranking, start=1) if grades.get(id, rel - 1) >= rel), None)


def choose_example_queries(
    first: Rankings, second: Rankings, judgments: Judgments, count: int, *, rel: int = 1
) -> list[tuple[str, str]]:
    """Choose up to `count` queries in turn from three groups: second system better, first system better, and tie.

    Returns (query, group) pairs; the groups are second, first and alike. Each group is ordered by the difference of reciprocal
    ranks, largest first, and then by a hash of the query id, so the choice does not depend on the order of the files.
    """
    groups: dict[str, list[tuple[float, bytes, str]]] = {"second": [], "first": [], "alike": []}
    for query, grades in judgments.items():
        ranks = [find_first_relevant(run.get(query, ()), grades, rel) for run in (first, second)]
        a, b = (0.0 if rank is None else 1 / rank for rank in ranks)
        why = "second" if b > a else "first" if a > b else "alike"
        groups[why].append((-abs(a - b), hashlib.blake2b(query.encode(), digest_size=8).digest(), query))
    columns = [[(query, why) for *_, query in sorted(queries)] for why, queries in groups.items()]
    in_turn = [pair for row in zip_longest(*columns) for pair in row if pair is not None]
    return in_turn[:count]


@dataclass
class Report:
    """Content of a report. has_plot: whether report.png was written"""

    title: str
    results: list[Evaluation]
    measures: list[Measure]
    num_relevant: int
    depths: Sequence[int]
    recall: Mapping[str, Sequence[float]]
    tests: list[PairedTest]
    alpha: float
    overlap: Overlap | None = None
    loss: Curve | None = None
    examples: list[ExampleQuery] = field(default_factory=list)
    has_plot: bool = False

    @property
    def measure_names(self) -> list[str]:
        return [measure.name for measure in self.measures]

    def to_json(self) -> dict[str, Any]:
        """Return the content of report.json."""
        loss = self.loss
        return {
            "title": self.title,
            "queries": self.results[0].num_queries,
            "relevant": self.num_relevant,
            "systems": {result.name: result.overall for result in self.results},
            "recall": {"k": list(self.depths)} | {name: list(values) for name, values in self.recall.items()},
            "verdict": {
                "comparisons": [test.to_json() for test in self.tests],
                "overlap": None if self.overlap is None else asdict(self.overlap),
                "text": self.list_findings(),
            },
            "loss": None
            if loss is None
            else {"first": loss.initial_mean, "last": loss.final_mean, "steps": loss.steps, "values": loss.values},
            "examples": [asdict(example) for example in self.examples],
        }

    def list_findings(self) -> list[str]:
        """Return the results of the tests on the first measure, the overlap and the loss as paragraphs."""
        means = {result.name: float(result.overall[self.measure_names[0]]) for result in self.results}
        tests = [test for test in self.tests if test.measure == self.measure_names[0]]
        sentences = [describe_test(test, (means[test.system], means[test.baseline])) for test in tests]
        if tests:
            corrected = f", with Holm's correction over {len(tests)} comparisons" * (len(tests) > 1)
            sentences.append(
                f"p(t) is from a paired t-test, p(rand) from a randomization test{corrected}; a difference is significant "
                f"if both are below {self.alpha:g}."
            )
        if self.overlap is not None:
            sentences.append(self.overlap.describe())
        if self.loss is not None:
            sentences.append(describe_loss(self.loss))
        return sentences

    def to_markdown(self) -> Iterator[str]:
        """Yield the lines of report.md."""
        yield from (f"# {escape_markdown(self.title)}", "", self._describe_scope(), "")
        yield from format_results(self.results, self.measures, EvalSettings(format="markdown"))
        if self.has_plot:
            yield from ("", f"![{', '.join(self.measure_names)} by system, recall by depth, loss by step]({PLOT_FILE})")
        yield from ("", "## Findings", "")
        yield from (f"- {escape_markdown(line)}" for line in self.list_findings())
        if self.examples:
            yield from ("", "## Examples", "")
        for example in self.examples:
            why = escape_markdown(example.describe())
            yield f"**{escape_markdown(example.query)}** ({format_markdown_code(example.query_id)}; {why})"
            yield ""
            for hit in example.hits:
                label = f"{hit.system}, {hit.describe()}"
                passage = format_passage_markdown(label, hit.id, hit.title, hit.snippet) if hit.id else None
                yield passage or f"- {escape_markdown(label)}"
            yield ""

    def to_text(self, width: int) -> Iterator[str]:
        """Yield lines for a terminal of `width` columns."""
        yield from (self.title, self._describe_scope(), "")
        yield from format_results(self.results, self.measures, EvalSettings())
        yield ""
        for line in self.list_findings():
            yield from textwrap.wrap(line, width, initial_indent="- ", subsequent_indent="  ")
        for number, example in enumerate(self.examples, start=1):
            yield ""
            head = f"{number}. {' '.join(example.query.split())} ({example.describe()})"
            yield from textwrap.wrap(head, width, subsequent_indent="   ")
            label = max(len(hit.system) for hit in example.hits)
            for hit in example.hits:
                head = f"   {hit.system.ljust(label)}  "
                title = f"{hit.title or hit.id or 'no hit'} ({hit.describe()})"
                yield head + textwrap.shorten(title, max(40, width - len(head)), placeholder=" …")
                yield from wrap_snippet(hit.snippet, width, indent=len(head))

    def write(self, folder: Path) -> None:
        """Write report.json, report.md and, if matplotlib is installed, report.png."""
        recall = {
            "k": self.depths,
            "curves": self.recall,
            "deepest": {result.name: result.deepest for result in self.results},
        }
        try:
            draw_report(folder / PLOT_FILE, self.title, self.results, self.measure_names, recall, self.loss)
            self.has_plot = True
        except MissingDependency as missing:
            warn(f"report.png was not drawn: {missing}")
        write_json(folder / "report.json", self.to_json())
        (folder / "report.md").write_text("\n".join(self.to_markdown()) + "\n", encoding="utf-8")

    def _describe_scope(self) -> str:
        systems = "1 system" if len(self.results) == 1 else f"{len(self.results)} systems"
        return f"{systems}, {self.results[0].num_queries:,} queries, {self.num_relevant:,} relevant documents."


def build_report(
    runs: Sequence[str],
    qrels: str,
    settings: ReportSettings,
    tracker: InputTracker | None = None,
    *,
    corpus: str | None = None,
    queries: str | None = None,
    loss_log: str | None = None,
) -> Report:
    """Build the report of runs given as [NAME=]FILE.

    corpus, queries: both are required for the examples; loss_log: training log (JSON lines)
    Raises UsageError for measures without a mean, and for an unknown `settings.system`.
    """
    tracker = tracker or InputTracker()
    named = parse_runs(runs)
    measures = parse_measures(settings.measures, rel=settings.rel)
    for measure in measures:
        if measure.aggregate not in ("mean", "geometric"):
            raise UsageError(f"`measures`: {measure.name} is not a mean over queries; omit it")
    scoring = EvalSettings(by=settings.by, drop_same_id=settings.drop_same_id)
    judgments, builder, size = load_judgments(qrels, corpus, scoring, tracker)
    evaluator = Evaluator(judgments, measures)
    results: list[Evaluation] = []
    retrieved: dict[str, JudgedRankings] = {}
    for run in named:
        result, retrieved[run.name] = evaluate_with_rankings(run, evaluator, builder, tracker)
        results.append(result)
    log_shallow_runs(results, measures, size=size)
    rankings = {name: judged.ids for name, judged in retrieved.items()}
    depths = choose_depths(list(rankings.values()))
    compare_settings = CompareSettings()
    report = Report(
        title=settings.heading,
        results=results,
        measures=measures,
        num_relevant=sum(grade >= settings.rel for grades in judgments.values() for grade in grades.values()),
        depths=depths,
        recall={name: compute_recall_curve(ids, judgments, depths, rel=settings.rel) for name, ids in rankings.items()},
        tests=compare_with_first(results, measures, judgments, compare_settings),
        alpha=compare_settings.alpha,
        overlap=_find_overlap(named, rankings, judgments, settings.rel),
        loss=None if loss_log is None else read_curves(loss_log, field="loss", tracker=tracker)["loss"],
    )
    if settings.examples and corpus is not None and queries is not None:
        texts = {query.id: query.text for query in read_queries(queries, tracker=tracker) if query.id in judgments}
        second = _choose_system(results, settings.system, measures[0].name)
        pair = retrieved[results[0].name], retrieved[second]
        report.examples = _build_examples((results[0].name, second), pair, judgments, texts, corpus, settings)
    elif settings.examples:
        log("report: no example queries; they require `corpus` and `queries`")
    return report


def _find_overlap(
    runs: Sequence[NamedRun], rankings: Mapping[str, Rankings], judgments: Judgments, rel: int
) -> Overlap | None:
    """Compute the overlap for the first run that is a fusion of two others among `runs`; None without such a run."""
    names = {Path(run.source).resolve(): run.name for run in runs if not is_stream(run.source)}
    for run in runs:
        parts = [names.get(Path(source).resolve()) for source in read_fused_runs(run.source)]
        if len(parts) == 2 and parts[0] is not None and parts[1] is not None:
            return compute_overlap((parts[0], parts[1]), run.name, rankings, judgments, rel=rel)
    return None


def _choose_system(results: Sequence[Evaluation], name: str, measure: str) -> str:
    """Return the system to compare with the first one: `name` if given, otherwise the best other system.

    A single system is compared with itself. Raises UsageError if no system is called `name`.
    """
    names = [result.name for result in results]
    if name and name not in names:
        raise UsageError(f"`system`: no system is called '{name}'; choose from {', '.join(names)}")
    return name or max(results[1:] or results, key=lambda result: float(result.overall[measure])).name


def _build_examples(
    names: tuple[str, str],
    pair: tuple[JudgedRankings, JudgedRankings],
    judgments: Judgments,
    texts: Mapping[str, str],
    corpus: str,
    settings: ReportSettings,
) -> list[ExampleQuery]:
    with_text = {query: grades for query, grades in judgments.items() if query in texts}
    if len(with_text) < len(judgments):
        log(f"report: {len(judgments) - len(with_text):,} judged queries have no text in `queries`")
    show = PassageSnippets(corpus, words=SNIPPET_WORDS)

    def find_top_hit(name: str, rankings: JudgedRankings, query: str) -> TopHit:
        rank = find_first_relevant(rankings.ids.get(query, []), judgments[query], settings.rel)
        id = rankings.top_passages.get(query)
        return TopHit(name, id, *show(texts[query], id), rank == 1, rank)

    queries = choose_example_queries(pair[0].ids, pair[1].ids, with_text, settings.examples, rel=settings.rel)
    return [
        ExampleQuery(
            query, texts[query], why, (find_top_hit(names[0], pair[0], query), find_top_hit(names[1], pair[1], query))
        )
        for query, why in queries
    ]
