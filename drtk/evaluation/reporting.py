"""A report from files: runs scored, curves and claims computed, example queries chosen and their texts looked up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from drtk.errors import UsageError
from drtk.evaluation.comparison import compare_with_first
from drtk.evaluation.curves import depths_for, read_loss, recall_curve
from drtk.evaluation.evaluate import Evaluation, Evaluator
from drtk.evaluation.examples import ExampleQuery, TopHit, choose_queries, first_relevant
from drtk.evaluation.findings import Overlap, overlap
from drtk.evaluation.measures import parse_measures
from drtk.evaluation.rankings import View
from drtk.evaluation.report import Report
from drtk.evaluation.runs import Retrieved, evaluated, judgements_from
from drtk.evaluation.shallow import tell_shallow
from drtk.io.corpus_ids import CorpusIds
from drtk.io.intake import Intake
from drtk.io.jsonl import read_queries
from drtk.io.progress import log
from drtk.io.runs import NamedRun, fused_runs
from drtk.io.sources import source_of
from drtk.io.store import CorpusStore
from drtk.io.streams import is_stream
from drtk.io.trec import Judgements
from drtk.settings.comparison import CompareSettings
from drtk.settings.evaluation import ReportSettings

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
