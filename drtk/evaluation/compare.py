"""Compare systems: values, differences and rank changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import combinations
from math import isfinite
from statistics import mean, stdev
from typing import Any

import numpy as np

from drtk.data.corpus_store import CorpusStore
from drtk.data.ids import CorpusIds, source_of
from drtk.data.runs import NamedRun, grouped_runs
from drtk.data.trec import Judgements
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.evaluation.answers import MEASURES as ANSWER_MEASURES
from drtk.evaluation.answers import answer_measures, answers_of, judgements_by_answers
from drtk.evaluation.config import CompareSettings, EvalSettings
from drtk.evaluation.evaluate import Evaluation, Evaluator, View, tell_shallow
from drtk.evaluation.judged_runs import Right, judgements_from, retrieved_by, tell_missing
from drtk.evaluation.measures import Measure, parse_measures
from drtk.evaluation.significance import EXACTLY, cohens_d, holm, interval, paired_t, randomisation
from drtk.runtime.inputs import Intake
from drtk.runtime.streams import is_stream

SHOWN = 4  # relevant documents of a query
Text = Callable[[str, str], tuple[str, str]]  # (question, id) -> title and snippet


@dataclass(frozen=True)
class Place:
    """A document and its rank in both systems (None: not retrieved); grade None where it is not judged."""

    id: str
    grade: int | None
    before: int | None
    after: int | None
    title: str = ""
    snippet: str = ""

    @property
    def moved(self) -> float:
        """By how much its reciprocal rank rose."""
        return (1 / self.after if self.after else 0.0) - (1 / self.before if self.before else 0.0)


@dataclass(frozen=True)
class Move:
    """A query, its value in both systems, its relevant documents, and what stands first in each if that is not one of them."""

    baseline: str
    system: str
    measure: str
    query_id: str
    text: str
    before: float
    after: float
    relevant: tuple[Place, ...]
    firsts: tuple[Place | None, Place | None]

    def row(self) -> dict[str, Any]:
        """As JSON lines hold it."""
        return asdict(self)


def moves(comparison: Comparison, *, texts: Mapping[str, str], show: Text | None) -> list[Move]:
    """For each pair, the queries that gained most and those that lost most, by the first measure; queries of like difference by id.

    texts: of queries, by id; show: title and snippet of a document
    """
    found = []
    measure, count = comparison.measures[0].name, comparison.settings.moved
    for first, second in comparison.pairs:
        changes = difference(comparison, first, second, measure)
        by_gain = sorted(zip(changes.tolist(), comparison.queries, strict=True), key=lambda item: (-item[0], item[1]))
        gained = [query for change, query in by_gain[:count] if change > EXACTLY]
        lost = [query for change, query in by_gain[::-1][:count] if change < -EXACTLY]
        found += [_move(comparison, first, second, query, texts.get(query, ""), show) for query in gained + lost]
    return found


def _move(comparison: Comparison, first: str, second: str, query: str, text: str, show: Text | None) -> Move:
    measure = comparison.measures[0].name
    systems = [comparison.system(name) for name in (first, second)]
    before, after = (system.traces.get(query, Trace((), {})) for system in systems)
    grades = comparison.judgements[query]
    rel = comparison.settings.rel

    def place(id: str) -> Place:
        title, snippet = show(text, id) if show else ("", "")
        return Place(id, grades.get(id), _rank(before, id), _rank(after, id), title, snippet)

    good = [place(id) for id, grade in grades.items() if grade >= rel]
    moved = [item for item in good if item.before != item.after]
    moved.sort(key=lambda item: (-abs(item.moved), -(item.grade or 0), item.id))
    tops = [trace.top[0] if trace.top else None for trace in (before, after)]
    firsts = [None if top is None or grades.get(top, rel - 1) >= rel else place(top) for top in tops]
    values = [float(system.values(measure, [query])[0]) for system in systems]
    return Move(first, second, measure, query, text, values[0], values[1], tuple(moved[:SHOWN]), (firsts[0], firsts[1]))


def _rank(trace: Trace, id: str) -> int | None:
    """Where a document stands; for one that is not judged, as far as the trace reaches."""
    if id in trace.ranks:
        return trace.ranks[id]
    return trace.top.index(id) + 1 if id in trace.top else None


MEASURES = "nDCG@10 RR@10 R@100"
LOOKED_AT = 10  # ranks of a run that are remembered, beside those of judged documents


@dataclass(frozen=True)
class Trace:
    """What is remembered of a ranking: its first documents, and the ranks of all judged ones."""

    top: tuple[str, ...]
    ranks: Mapping[str, int]


@dataclass
class System:
    """A system by its runs (one, or one a seed): their evaluations, and the first one's rankings."""

    name: str
    runs: list[Evaluation] = field(default_factory=list)
    traces: dict[str, Trace] = field(default_factory=dict)

    def values(self, measure: str, queries: Sequence[str]) -> np.ndarray:
        """The value of each query, averaged over runs: (queries,)."""
        rows = [[float(run.per_query[query][measure]) for query in queries] for run in self.runs]
        return np.mean(np.array(rows, dtype=np.float64), axis=0)

    def standing(self, measure: str) -> Standing:
        """What the runs score."""
        found = [float(run.overall[measure]) for run in self.runs]
        spread = stdev(found) if len(found) > 1 else None
        return Standing(self.name, measure, mean(found), spread, min(found), max(found), len(found))


@dataclass(frozen=True)
class Standing:
    """A system's average, and over several runs their standard deviation (n - 1), lowest and highest."""

    system: str
    measure: str
    mean: float
    sd: float | None
    lowest: float
    highest: float
    runs: int


@dataclass(frozen=True)
class Contrast:
    """`system` minus `baseline` on one measure. p values come twice: as they are, and corrected for the family.

    effect: the mean in standard deviations of the differences; interval: of the mean difference; None where undefined
    better, equal, worse: queries
    """

    baseline: str
    system: str
    measure: str
    difference: float
    interval: tuple[float, float] | None
    effect: float | None
    t: float | None
    df: int
    t_p: float
    t_p_corrected: float
    randomisation_p: float
    randomisation_p_corrected: float
    better: int
    equal: int
    worse: int

    def is_significant(self, alpha: float) -> bool:
        """Return whether the corrected p values of both tests are below alpha."""
        return max(self.t_p_corrected, self.randomisation_p_corrected) < alpha

    def row(self) -> dict[str, Any]:
        """As JSON can hold it: an infinite t is null."""
        return asdict(self) | {"t": self.t if self.t is not None and isfinite(self.t) else None}


@dataclass
class Comparison:
    """Everything that is compared; `queries` are those that count."""

    systems: list[System]
    measures: list[Measure]
    queries: list[str]
    judgements: Judgements
    pairs: list[tuple[str, str]]
    contrasts: list[Contrast]
    settings: CompareSettings

    def system(self, name: str) -> System:
        """A system by its name."""
        return next(system for system in self.systems if system.name == name)

    def standings(self) -> list[list[Standing]]:
        """A row a system, a column a measure."""
        return [[system.standing(measure.name) for measure in self.measures] for system in self.systems]

    def significant(self, contrast: Contrast) -> bool:
        """Whether both tests, corrected, fall below alpha."""
        return contrast.is_significant(self.settings.alpha)


def compared(
    runs: Sequence[str],
    qrels: str | None,
    corpus: str | None,
    settings: CompareSettings,
    intake: Intake,
    *,
    answers: str | None = None,
) -> Comparison:
    """The comparison of runs given as [NAME=]FILE, by judgements or by the answers of the questions in a file.

    Raises UsageError where there are fewer than two systems or the baseline is none of them, MismatchError where runs
    have different queries, unless the settings say what then.
    """
    systems = grouped_runs(runs)
    names = list(systems)
    if len(names) < 2:
        raise UsageError("compare needs two systems; runs of the same name are runs of one")
    if settings.baseline and settings.baseline not in names:
        raise UsageError(f"--baseline: no system is called '{settings.baseline}'; there are {', '.join(names)}")
    if settings.intersect and settings.missing_as_zero:
        raise UsageError("--intersect and --missing-as-zero: a query that a run lacks is left out, or counts")
    known = None if corpus is None or answers is not None else CorpusIds.read(corpus, intake)
    by_source = settings.by == "source"
    right: Right = "judgements" if answers is None else "answers"
    if answers is not None:
        measures, judgements = _by_answers(systems, answers, corpus, settings, intake)
    elif qrels is not None:
        measures = parse_measures(settings.measures or MEASURES, rel=settings.rel)
        judgements = judgements_from(qrels, intake, known=known, by_source=by_source)
    else:
        raise UsageError("what is right? --qrels FILE or --answers FILE")
    if unfit := [measure.name for measure in measures if measure.aggregate != "mean"]:
        raise UsageError(f"--measures: {unfit[0]} is no average over queries, so there is nothing to test")
    by = (known or source_of) if by_source else None
    view = View(order=settings.order, by=by, drop_same_id=settings.drop_same_id, depth=settings.depth)
    evaluator = Evaluator(judgements, measures)
    found: list[System] = []
    having: dict[str, set[str]] = {}
    depths: dict[str, int] = {}
    for name, files in systems.items():
        system = System(name)
        for run in files:
            retrieved = retrieved_by(run, judgements, view, intake, right=right)
            rankings, depths[run.name] = retrieved.rankings, retrieved.deepest
            having[run.name] = set(rankings)
            system.runs.append(evaluator(run.name, rankings))
            if len(system.runs) == 1:
                system.traces = {query: _traced(ids, judgements[query]) for query, ids in rankings.items()}
        found.append(system)
    queries = _common_queries(having, judgements, settings, right)
    tell_shallow(depths, measures, right=right, size=_size(known, corpus))
    if len(queries) < len(judgements):
        for system in found:
            system.runs = [_restricted(run, queries, measures) for run in system.runs]
    baseline = settings.baseline or names[0]
    pairs = list(combinations(names, 2)) if settings.all_pairs else [(baseline, n) for n in names if n != baseline]
    made = Comparison(found, measures, queries, judgements, pairs, [], settings)
    made.contrasts = [contrast for measure in measures for contrast in _contrasts(made, measure.name)]
    return made


def compare_with_first(
    results: Sequence[Evaluation], measures: Sequence[Measure], judgements: Judgements, settings: CompareSettings
) -> list[Contrast]:
    """Compare every run with the first one, on all measures that are averages over queries."""
    systems = [System(result.name, [result]) for result in results]
    pairs = [(results[0].name, result.name) for result in results[1:]]
    made = Comparison(systems, list(measures), list(judgements), judgements, pairs, [], settings)
    return [
        contrast for measure in measures if measure.aggregate == "mean" for contrast in _contrasts(made, measure.name)
    ]


def _by_answers(
    systems: Mapping[str, Sequence[NamedRun]],
    answers: str,
    corpus: str | None,
    settings: CompareSettings,
    intake: Intake,
) -> tuple[list[Measure], Judgements]:
    """The measures, and a judgement for the first right passage of each run and question."""
    runs = [run for files in systems.values() for run in files]
    if corpus is None:
        raise UsageError("--answers needs the texts of the passages: --corpus FILE")
    if settings.by == "source" or settings.rel != 1:
        raise UsageError("--by source and --rel go with --qrels; with --answers a passage is right or not")
    if any(is_stream(run.source) for run in runs):
        raise UsageError("--answers reads every run twice, so that none can be a stream")
    measures = answer_measures(settings.measures or ANSWER_MEASURES)
    looking = EvalSettings(
        match=settings.match,
        match_title=settings.match_title,
        order=settings.order,
        drop_same_id=settings.drop_same_id,
        depth=settings.depth,
    )
    known = answers_of(answers, settings.match, intake)
    return measures, judgements_by_answers(runs, known, corpus, measures, looking, intake)


def _size(known: CorpusIds | None, corpus: str | None) -> int | None:
    """Passages of the corpus; None where there is none at hand."""
    if known is not None or corpus is None:
        return None if known is None else len(known)
    with closing(CorpusStore.open(corpus)) as store:
        return len(store)


def _traced(ids: Sequence[str], judged: Mapping[str, int]) -> Trace:
    ranks = {id: rank for rank, id in enumerate(ids, start=1) if id in judged}
    return Trace(tuple(ids[:LOOKED_AT]), ranks)


def _common_queries(
    having: Mapping[str, set[str]], judgements: Judgements, settings: CompareSettings, right: Right
) -> list[str]:
    """The queries that count, in the order of the judgements."""
    everywhere = set.intersection(*having.values())
    anywhere = set.union(*having.values())
    if settings.intersect:
        if not everywhere:
            raise MismatchError(f"--intersect: there is no query with {right} that all runs have")
        return [query for query in judgements if query in everywhere]
    if everywhere != anywhere and not settings.missing_as_zero:
        name, lacking = max(((name, anywhere - own) for name, own in having.items()), key=lambda item: len(item[1]))
        other = next(other for other, own in having.items() if own & lacking)
        example = min(having[other] & lacking)
        raise MismatchError(
            f"{name}: lacks {len(lacking):,} queries with {right} that other runs have, for example '{example}' of {other}; "
            "--intersect compares on what all have, --missing-as-zero counts them as 0"
        )
    for name, own in having.items():
        tell_missing(name, len(own), len(judgements), retrieved_only=False, right=right)
    return list(judgements)


def _restricted(run: Evaluation, queries: Sequence[str], measures: Sequence[Measure]) -> Evaluation:
    """A run's values on some queries only."""
    per_query = {query: run.per_query[query] for query in queries}
    overall = {m.name: mean(float(values[m.name]) for values in per_query.values()) for m in measures}
    return Evaluation(run.name, per_query, dict(overall))


def _contrasts(comparison: Comparison, measure: str) -> list[Contrast]:
    """All pairs on one measure: the family that p values are corrected for."""
    settings = comparison.settings
    found, t_chances, r_chances = [], [], []
    for first, second in comparison.pairs:
        differences = difference(comparison, first, second, measure)
        found.append((first, second, differences, paired_t(differences)))
        t_chances.append(found[-1][3].p)
        r_chances.append(randomisation(differences, permutations=settings.permutations, seed=settings.seed))
    correct = holm if settings.correction == "holm" else list
    return [
        Contrast(
            baseline=first,
            system=second,
            measure=measure,
            difference=float(differences.mean()),
            interval=interval(differences, confidence=settings.confidence),
            effect=cohens_d(differences),
            t=test.t,
            df=test.df,
            t_p=test.p,
            t_p_corrected=t_p,
            randomisation_p=r_chance,
            randomisation_p_corrected=r_p,
            better=int((differences > EXACTLY).sum()),
            equal=int((np.abs(differences) <= EXACTLY).sum()),
            worse=int((differences < -EXACTLY).sum()),
        )
        for (first, second, differences, test), t_p, r_chance, r_p in zip(
            found, correct(t_chances), r_chances, correct(r_chances), strict=True
        )
    ]


def difference(comparison: Comparison, first: str, second: str, measure: str) -> np.ndarray:
    """Per query, `second` minus `first`: (queries,). Raises DrtkError where a value is no number."""
    values = [comparison.system(name).values(measure, comparison.queries) for name in (first, second)]
    if not np.isfinite(values).all():
        raise DrtkError(f"{measure}: a value is not a number")
    return values[1] - values[0]
