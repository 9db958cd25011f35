"""Compare systems: means, paired tests against a baseline, and the queries that changed most."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from math import isfinite
from statistics import mean, stdev
from typing import Any

import numpy as np

from drtk.data.runs import NamedRun, group_runs
from drtk.data.trec import Judgements
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.evaluation.answers import AnswerJudge
from drtk.evaluation.config import CompareSettings
from drtk.evaluation.evaluate import Evaluation, Evaluator, View, warn_shallow
from drtk.evaluation.judged_runs import Right, load_judgements, log_missing, read_rankings
from drtk.evaluation.measures import Measure, parse_measures
from drtk.evaluation.significance import ZERO, cohens_d, correct_holm, mean_interval, paired_t, randomization_p
from drtk.runtime.inputs import InputTracker
from drtk.runtime.streams import is_stream

MEASURES = "nDCG@10 RR@10 R@100"
MAX_RELEVANT = 4  # relevant documents shown of a query
TOP = 10  # ranks kept of a run besides those of judged documents
ShowPassage = Callable[[str, str], tuple[str, str]]  # (question, passage id) -> title and snippet


@dataclass(frozen=True)
class System:
    """A system: an evaluation per run (or seed), and the rankings of its first run.

    tops: first documents of each query; ranks: ranks of its judged documents
    """

    name: str
    runs: list[Evaluation] = field(default_factory=list)
    tops: dict[str, list[str]] = field(default_factory=dict)
    ranks: dict[str, dict[str, int]] = field(default_factory=dict)

    def values(self, measure: str, queries: Sequence[str]) -> np.ndarray:
        """Return the value of each query, averaged over runs: (queries,)."""
        rows = [[float(run.per_query[query][measure]) for query in queries] for run in self.runs]
        return np.mean(np.array(rows, dtype=np.float64), axis=0)

    def average(self, measure: str) -> SystemAverage:
        """Return the mean over queries, and its spread over runs."""
        means = [float(run.overall[measure]) for run in self.runs]
        sd = stdev(means) if len(means) > 1 else None
        return SystemAverage(self.name, measure, mean(means), sd, min(means), max(means), len(means))

    def rank(self, query: str, id: str) -> int | None:
        """Return the rank of a judged document or one of the first `TOP`; None if not retrieved."""
        top = self.tops.get(query, [])
        return self.ranks.get(query, {}).get(id) or (top.index(id) + 1 if id in top else None)


@dataclass(frozen=True)
class SystemAverage:
    """A system's mean, and over several runs their standard deviation (n - 1), lowest and highest mean."""

    system: str
    measure: str
    mean: float
    sd: float | None
    lowest: float
    highest: float
    runs: int


@dataclass(frozen=True)
class Contrast:
    """`system` minus `baseline` on one measure.

    effect: Cohen's d; interval: of the mean difference; None if undefined. better, equal, worse: numbers of queries
    significant: whether the corrected p values of both tests are below the alpha of the settings
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
    significant: bool

    def to_json(self) -> dict[str, Any]:
        """Return the fields; an infinite t is null."""
        return asdict(self) | {"t": self.t if self.t is not None and isfinite(self.t) else None}


@dataclass(frozen=True)
class RankedPassage:
    """A document and its rank in both systems (None: not retrieved); grade None if it is not judged."""

    id: str
    grade: int | None
    before: int | None
    after: int | None
    title: str = ""
    snippet: str = ""


@dataclass(frozen=True)
class ChangedQuery:
    """A query with its value in both systems, relevant documents whose ranks differ, and what is first in each if not relevant."""

    baseline: str
    system: str
    measure: str
    query_id: str
    text: str
    before: float
    after: float
    relevant: tuple[RankedPassage, ...]
    firsts: tuple[RankedPassage | None, RankedPassage | None]


@dataclass
class Comparison:
    """Systems by name, evaluated on `queries`, and the contrasts of `pairs` (baseline, system)."""

    systems: dict[str, System]
    measures: list[Measure]
    queries: list[str]
    judgements: Judgements
    pairs: list[tuple[str, str]]
    settings: CompareSettings
    contrasts: list[Contrast] = field(default_factory=list)

    def averages(self) -> list[list[SystemAverage]]:
        """Return a row per system with a column per measure."""
        return [[system.average(measure.name) for measure in self.measures] for system in self.systems.values()]

    def differences(self, baseline: str, system: str, measure: str) -> np.ndarray:
        """Return `system` minus `baseline` for each query: (queries,). Raises DrtkError for values that are not finite."""
        values = [self.systems[name].values(measure, self.queries) for name in (baseline, system)]
        if not np.isfinite(values).all():
            raise DrtkError(f"{measure}: a value is not a number")
        return values[1] - values[0]


def compare_runs(
    runs: Sequence[str],
    qrels: str | None,
    corpus: str | None,
    settings: CompareSettings,
    tracker: InputTracker,
    *,
    answers: str | None = None,
) -> Comparison:
    """Compare runs given as [NAME=]FILE by judgements, or by answers to the questions of a file.

    Raises UsageError for fewer than two systems or an unknown baseline, MismatchError for runs of different queries
    unless the settings say how to treat them.
    """
    grouped = group_runs(runs)
    names = list(grouped)
    if len(names) < 2:
        raise UsageError("compare needs two systems; runs of the same name are runs of one")
    if settings.baseline and settings.baseline not in names:
        raise UsageError(f"`baseline`: no system is called '{settings.baseline}'; there are {', '.join(names)}")
    if settings.intersect and settings.missing_as_zero:
        raise UsageError("`intersect` and `missing_as_zero`: a query that a run lacks is left out, or counts")
    right: Right = "judgements" if answers is None else "answers"
    size: int | None
    if answers is not None:
        measures, judgements, size = _judge_by_answers(grouped, answers, corpus, settings, tracker)
        view = View.of(settings)
    elif qrels is not None:
        measures = parse_measures(settings.measures or MEASURES, rel=settings.rel)
        judgements, view, size = load_judgements(qrels, corpus, settings, tracker)
    else:
        raise UsageError("`qrels` or `answers` is required")
    if unfit := [measure.name for measure in measures if measure.aggregate != "mean"]:
        raise UsageError(f"`measures`: {unfit[0]} is no average over queries, so there is nothing to test")
    evaluator = Evaluator(judgements, measures)
    systems: dict[str, System] = {}
    retrieved: dict[str, set[str]] = {}
    depths: dict[str, int] = {}
    for name, files in grouped.items():
        system = systems[name] = System(name)
        for run in files:
            rankings = read_rankings(run, judgements, view, tracker, right=right)
            depths[run.name], retrieved[run.name] = rankings.deepest, set(rankings.ids)
            system.runs.append(evaluator(run.name, rankings.ids))
            if len(system.runs) == 1:
                for query, ids in rankings.ids.items():
                    judged = judgements[query]
                    system.tops[query] = ids[:TOP]
                    system.ranks[query] = {id: rank for rank, id in enumerate(ids, start=1) if id in judged}
    queries = _common_queries(retrieved, judgements, settings, right)
    warn_shallow(depths, measures, right=right, size=size)
    if len(queries) < len(judgements):
        for system in systems.values():
            system.runs[:] = [_restrict(run, queries, measures) for run in system.runs]
    baseline = settings.baseline or names[0]
    pairs = list(combinations(names, 2)) if settings.all_pairs else [(baseline, n) for n in names if n != baseline]
    comparison = Comparison(systems, measures, queries, judgements, pairs, settings)
    comparison.contrasts = [contrast for measure in measures for contrast in _test_pairs(comparison, measure.name)]
    return comparison


def compare_with_first(
    results: Sequence[Evaluation], measures: Sequence[Measure], judgements: Judgements, settings: CompareSettings
) -> list[Contrast]:
    """Compare every run with the first one, on all measures that are averages over queries."""
    systems = {result.name: System(result.name, [result]) for result in results}
    pairs = [(results[0].name, result.name) for result in results[1:]]
    comparison = Comparison(systems, list(measures), list(judgements), judgements, pairs, settings)
    tested = [measure.name for measure in measures if measure.aggregate == "mean"]
    return [contrast for measure in tested for contrast in _test_pairs(comparison, measure)]


def _judge_by_answers(
    systems: Mapping[str, Sequence[NamedRun]],
    answers: str,
    corpus: str | None,
    settings: CompareSettings,
    tracker: InputTracker,
) -> tuple[list[Measure], Judgements, int]:
    """Return measures, a judgement for the first right passage of each run and question, and the size of the corpus."""
    runs = [run for files in systems.values() for run in files]
    if corpus is None:
        raise UsageError("`answers` needs the texts of the passages: `corpus`")
    if any(is_stream(run.source) for run in runs):
        raise UsageError("`answers` reads every run twice, so none can be a stream")
    judge = AnswerJudge(answers, corpus, settings, tracker)
    for run in runs:
        judge(run)
    judge.check_texts()
    return judge.measures, judge.judgements, judge.corpus_size


def _common_queries(
    retrieved: Mapping[str, set[str]], judgements: Judgements, settings: CompareSettings, right: Right
) -> list[str]:
    """Return the queries to compare on, in the order of the judgements."""
    everywhere = set.intersection(*retrieved.values())
    anywhere = set.union(*retrieved.values())
    if settings.intersect:
        if not everywhere:
            raise MismatchError(f"`intersect`: there is no query with {right} that all runs have")
        return [query for query in judgements if query in everywhere]
    if everywhere != anywhere and not settings.missing_as_zero:
        name, lacking = max(((name, anywhere - own) for name, own in retrieved.items()), key=lambda item: len(item[1]))
        other = next(other for other, own in retrieved.items() if own & lacking)
        raise MismatchError(
            f"{name}: lacks {len(lacking):,} queries with {right} that other runs have, for example "
            f"'{min(retrieved[other] & lacking)}' of {other}; `intersect` compares on what all have, `missing_as_zero` "
            "counts them as 0"
        )
    for name, own in retrieved.items():
        log_missing(name, len(own), len(judgements), retrieved_only=False, right=right)
    return list(judgements)


def _restrict(run: Evaluation, queries: Sequence[str], measures: Sequence[Measure]) -> Evaluation:
    per_query = {query: run.per_query[query] for query in queries}
    overall = {m.name: mean(float(values[m.name]) for values in per_query.values()) for m in measures}
    return Evaluation(run.name, per_query, dict(overall))


def _test_pairs(comparison: Comparison, measure: str) -> list[Contrast]:
    """Test all pairs on one measure: the family that p values are corrected for."""
    settings = comparison.settings
    differences = [comparison.differences(baseline, system, measure) for baseline, system in comparison.pairs]
    tests = [paired_t(each) for each in differences]
    random_p = [randomization_p(each, permutations=settings.permutations, seed=settings.seed) for each in differences]
    correct = correct_holm if settings.correction == "holm" else list
    t_corrected, random_corrected = correct([test.p for test in tests]), correct(random_p)
    return [
        Contrast(
            baseline=baseline,
            system=system,
            measure=measure,
            difference=float(differences[at].mean()),
            interval=mean_interval(differences[at], confidence=settings.confidence),
            effect=cohens_d(differences[at]),
            t=tests[at].t,
            df=tests[at].df,
            t_p=tests[at].p,
            t_p_corrected=t_corrected[at],
            randomisation_p=random_p[at],
            randomisation_p_corrected=random_corrected[at],
            better=int((differences[at] > ZERO).sum()),
            equal=int((np.abs(differences[at]) <= ZERO).sum()),
            worse=int((differences[at] < -ZERO).sum()),
            significant=max(t_corrected[at], random_corrected[at]) < settings.alpha,
        )
        for at, (baseline, system) in enumerate(comparison.pairs)
    ]


def find_changed_queries(comparison: Comparison, *, texts: Mapping[str, str], show: ShowPassage) -> list[ChangedQuery]:
    """Return for each pair the queries with the largest gains, then those with the largest losses on the first measure.

    texts: of queries, by id; show: title and snippet of a passage. Equal differences are ordered by query id.
    """
    changed = []
    measure, count = comparison.measures[0].name, comparison.settings.moved
    for baseline, system in comparison.pairs:
        differences = comparison.differences(baseline, system, measure).tolist()
        by_gain = sorted(zip(differences, comparison.queries, strict=True), key=lambda item: (-item[0], item[1]))
        gains = [query for gain, query in by_gain[:count] if gain > ZERO]
        losses = [query for gain, query in by_gain[::-1][:count] if gain < -ZERO]
        pair = comparison.systems[baseline], comparison.systems[system]
        changed += [_describe_query(comparison, pair, q, texts.get(q, ""), show) for q in gains + losses]
    return changed


def _describe_query(
    comparison: Comparison, pair: tuple[System, System], query: str, text: str, show: ShowPassage
) -> ChangedQuery:
    measure, rel, grades = comparison.measures[0].name, comparison.settings.rel, comparison.judgements[query]

    def describe(id: str) -> RankedPassage:
        before, after = (system.rank(query, id) for system in pair)
        return RankedPassage(id, grades.get(id), before, after, *show(text, id))

    def gain(passage: RankedPassage) -> float:
        after, before = (1 / rank if rank else 0.0 for rank in (passage.after, passage.before))
        return after - before

    relevant = [describe(id) for id, grade in grades.items() if grade >= rel]
    moved = [passage for passage in relevant if passage.before != passage.after]
    moved.sort(key=lambda passage: (-abs(gain(passage)), -(passage.grade or 0), passage.id))
    tops = [next(iter(system.tops.get(query, ())), None) for system in pair]
    first, second = (None if top is None or grades.get(top, rel - 1) >= rel else describe(top) for top in tops)
    before, after = (float(system.values(measure, [query])[0]) for system in pair)
    names = pair[0].name, pair[1].name
    return ChangedQuery(*names, measure, query, text, before, after, tuple(moved[:MAX_RELEVANT]), (first, second))
