"""Compare systems: means, paired significance tests, and the queries with the largest differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import mean, stdev

import numpy as np

from drtk.data.runs import NamedRun, group_runs
from drtk.data.trec import Judgments
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.evaluation.answers import AnswerJudge
from drtk.evaluation.config import CompareSettings
from drtk.evaluation.evaluate import Evaluation, Evaluator, RankingBuilder, Rankings, log_shallow_runs
from drtk.evaluation.judged_runs import RelevanceSource, load_judgments, log_missing_queries, read_rankings
from drtk.evaluation.measures import Measure, parse_measures
from drtk.evaluation.significance import (
    ZERO,
    compute_cohens_d,
    compute_interval,
    correct_holm,
    run_randomization_test,
    run_t_test,
)
from drtk.runtime.inputs import InputTracker
from drtk.runtime.streams import is_stream

MEASURES = "nDCG@10 RR@10 R@100"
MAX_RELEVANT = 4  # relevant documents shown per query
TOP_RANKS = 10  # ranks stored per run besides those of judged documents
ShowPassage = Callable[[str, str], tuple[str, str]]  # (query text, passage id) -> title and snippet


@dataclass(frozen=True)
class System:
    """A retrieval system: one evaluation per run (for example per seed), and rankings from the first run.

    top_ids: top-ranked document ids by query; judged_ranks: ranks of judged documents by query
    """

    name: str
    runs: list[Evaluation] = field(default_factory=list)
    top_ids: dict[str, list[str]] = field(default_factory=dict)
    judged_ranks: dict[str, dict[str, int]] = field(default_factory=dict)

    def compute_values(self, measure: str, queries: Sequence[str]) -> np.ndarray:
        """Return the value of a measure for each query, averaged over runs: (queries,)."""
        rows = [[float(run.per_query[query][measure]) for query in queries] for run in self.runs]
        return np.mean(np.array(rows, dtype=np.float64), axis=0)

    def compute_average(self, measure: str) -> SystemAverage:
        """Return the mean of a measure over queries and runs (seeds), with standard deviation, minimum and maximum over the runs."""
        means = [float(run.overall[measure]) for run in self.runs]
        sd = stdev(means) if len(means) > 1 else None
        return SystemAverage(self.name, measure, mean(means), sd, min(means), max(means), len(means))

    def find_rank(self, query: str, id: str) -> int | None:
        """Return the rank of a document; None if it is not retrieved, or unjudged and below TOP_RANKS."""
        top = self.top_ids.get(query, [])
        return self.judged_ranks.get(query, {}).get(id) or (top.index(id) + 1 if id in top else None)


@dataclass(frozen=True)
class SystemAverage:
    """Mean of one measure for a system, with lowest and highest mean and standard deviation over its runs.

    sd: standard deviation (n - 1); None for a single run
    """

    system: str
    measure: str
    mean: float
    sd: float | None
    lowest: float
    highest: float
    runs: int


@dataclass(frozen=True)
class PairedTest:
    """Paired t-test and randomization test of `system` against `baseline` on one measure.

    difference: mean of system minus baseline; interval: confidence interval of `difference`; effect: Cohen's d
    interval, effect and t are None if undefined
    better, equal, worse: numbers of queries
    significant: whether the corrected p values of both tests are below alpha
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
    randomization_p: float
    randomization_p_corrected: float
    better: int
    equal: int
    worse: int
    significant: bool


@dataclass(frozen=True)
class RankedPassage:
    """A passage with its grade (None: not judged) and its ranks.

    before, after: rank by the baseline and by the other system; None: not retrieved, or unjudged and below TOP_RANKS
    """

    id: str
    grade: int | None
    before: int | None
    after: int | None
    title: str = ""
    snippet: str = ""


@dataclass(frozen=True)
class ChangedQuery:
    """A query with the values of a measure for both systems and the passages that explain the difference.

    before, after: value of the baseline and of the other system
    relevant: up to MAX_RELEVANT relevant passages whose ranks differ
    firsts: top-ranked passage of each system if it is not relevant, else None
    """

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
    """Systems evaluated on the same queries, with significance tests for each pair (baseline, system)."""

    systems: dict[str, System]
    measures: list[Measure]
    queries: list[str]
    judgments: Judgments
    pairs: list[tuple[str, str]]
    settings: CompareSettings
    tests: list[PairedTest] = field(init=False)

    def __post_init__(self) -> None:
        names = [measure.name for measure in self.measures if measure.aggregate == "mean"]
        self.tests = [test for name in names for test in self._test_pairs(name)]

    def compute_averages(self) -> list[list[SystemAverage]]:
        """Return the averages: one row per system, one column per measure."""
        return [[system.compute_average(measure.name) for measure in self.measures] for system in self.systems.values()]

    def compute_differences(self, baseline: str, system: str, measure: str) -> np.ndarray:
        """Return `system` minus `baseline` for each query: (queries,). Raises DrtkError for NaN or infinite values."""
        values = [self.systems[name].compute_values(measure, self.queries) for name in (baseline, system)]
        if not np.isfinite(values).all():
            raise DrtkError(f"{measure}: a query has a NaN or infinite value; omit this measure")
        return values[1] - values[0]

    def _test_pairs(self, measure: str) -> list[PairedTest]:
        """Test all pairs on one measure; p values are corrected for the number of pairs unless `correction` is none."""
        settings = self.settings
        differences = [self.compute_differences(*pair, measure) for pair in self.pairs]
        t_tests = [run_t_test(values) for values in differences]
        random_p = [
            run_randomization_test(v, permutations=settings.permutations, seed=settings.seed) for v in differences
        ]
        correct = correct_holm if settings.correction == "holm" else list
        t_corrected, random_corrected = correct([test.p for test in t_tests]), correct(random_p)
        return [
            PairedTest(
                baseline=baseline,
                system=system,
                measure=measure,
                difference=float(values.mean()),
                interval=compute_interval(values, confidence=settings.confidence),
                effect=compute_cohens_d(values),
                t=t_tests[at].t,
                df=t_tests[at].df,
                t_p=t_tests[at].p,
                t_p_corrected=t_corrected[at],
                randomization_p=random_p[at],
                randomization_p_corrected=random_corrected[at],
                better=int((values > ZERO).sum()),
                equal=int((np.abs(values) <= ZERO).sum()),
                worse=int((values < -ZERO).sum()),
                significant=max(t_corrected[at], random_corrected[at]) < settings.alpha,
            )
            for at, ((baseline, system), values) in enumerate(zip(self.pairs, differences, strict=True))
        ]


def compare_runs(
    runs: Sequence[str],
    qrels: str | None,
    corpus: str | None,
    settings: CompareSettings,
    tracker: InputTracker,
    *,
    answers: str | None = None,
    rankings: dict[str, list[Rankings]] | None = None,
) -> Comparison:
    """Compare runs given as [NAME=]FILE, judged by `qrels` or by answer matching (`answers`: file of questions with answers).

    corpus: required with `answers`; rankings: if given, gets the rankings of each run by system
    Raises UsageError for fewer than two systems, an unknown baseline, a measure that is not a mean, and missing or
    contradictory options; MismatchError for runs with different judged queries unless `intersect` or `missing_as_zero`
    is set.
    """
    grouped = group_runs(runs)
    names = list(grouped)
    if len(names) < 2:
        raise UsageError("at least two systems are required; runs of the same name count as one system")
    if settings.baseline and settings.baseline not in names:
        raise UsageError(f"`baseline`: no system is called '{settings.baseline}'; choose from {', '.join(names)}")
    if settings.intersect and settings.missing_as_zero:
        raise UsageError("`intersect` and `missing_as_zero` cannot be combined; choose one")
    judged_by: RelevanceSource = "judgments" if answers is None else "answers"
    all_runs = [run for files in grouped.values() for run in files]
    if answers is not None:
        measures, judgments = _judge_by_answers(all_runs, answers, corpus, settings, tracker)
        builder = RankingBuilder.from_settings(settings)
    elif qrels is not None:
        measures = parse_measures(MEASURES if settings.measures is None else settings.measures, rel=settings.rel)
        judgments, builder = load_judgments(qrels, corpus, settings, tracker)
    else:
        raise UsageError("`qrels` or `answers` is required")
    if unfit := [measure.name for measure in measures if measure.aggregate != "mean"]:
        raise UsageError(f"`measures`: {unfit[0]} is not a mean over queries, so it cannot be tested; omit it")
    evaluator = Evaluator(judgments, measures)
    systems: dict[str, System] = {}
    retrieved: dict[str, set[str]] = {}
    for name, files in grouped.items():
        system = systems[name] = System(name)
        for run in files:
            ranked = read_rankings(run, judgments, builder, tracker, judged_by=judged_by)
            system.runs.append(evaluator(run.name, ranked.ids, retrieved_only=settings.intersect, tag=ranked.tag))
            retrieved[run.source] = set(ranked.ids)
            if rankings is not None:
                rankings.setdefault(name, []).append(ranked.ids)
            if len(system.runs) == 1:
                for query, ids in ranked.ids.items():
                    judged = judgments[query]
                    system.top_ids[query] = ids[:TOP_RANKS]
                    system.judged_ranks[query] = {id: rank for rank, id in enumerate(ids, start=1) if id in judged}
    queries = _select_queries(retrieved, judgments, settings, judged_by)
    for run in all_runs:
        num_present, only = len(retrieved[run.source]), settings.intersect
        log_missing_queries(run.name, num_present, len(judgments), retrieved_only=only, judged_by=judged_by)
    results = [result for system in systems.values() for result in system.runs]
    log_shallow_runs(results, measures, judged_by=judged_by)
    for result in results if settings.intersect else ():
        result.per_query = {query: result.per_query[query] for query in queries}
        rows = result.per_query.values()
        result.overall = {measure.name: mean(float(row[measure.name]) for row in rows) for measure in measures}
    baseline = settings.baseline or names[0]
    pairs = list(combinations(names, 2)) if settings.all_pairs else [(baseline, n) for n in names if n != baseline]
    return Comparison(systems, measures, queries, judgments, pairs, settings)


def _judge_by_answers(
    runs: Sequence[NamedRun], answers: str, corpus: str | None, settings: CompareSettings, tracker: InputTracker
) -> tuple[list[Measure], Judgments]:
    """Return the measures and the judgments from answer matching."""
    if corpus is None:
        raise UsageError("`answers` requires `corpus` (the passage texts)")
    if any(is_stream(run.source) for run in runs):
        raise UsageError("with `answers`, runs are read twice and cannot come from stdin or a pipe; save them to files")
    judge = AnswerJudge(answers, corpus, settings, tracker)
    for run in runs:
        judge(run)
    judge.check_texts()
    return judge.measures, judge.judgments


def _select_queries(
    retrieved: Mapping[str, set[str]], judgments: Judgments, settings: CompareSettings, judged_by: RelevanceSource
) -> list[str]:
    """Return the queries to compare on, in the order of the judgments: with `intersect` those in all runs, else all.

    retrieved: {run: its judged queries}
    Raises MismatchError if the runs have different queries (without `missing_as_zero`) or no common query (`intersect`).
    """
    in_all = set.intersection(*retrieved.values())
    if settings.intersect:
        if not in_all:
            raise MismatchError(f"`intersect`: the runs have no common query with {judged_by}; check the query ids")
        return [query for query in judgments if query in in_all]
    in_some = set.union(*retrieved.values()) - in_all
    if in_some and not settings.missing_as_zero:
        run, missing = max(((run, in_some - ids) for run, ids in retrieved.items()), key=lambda item: len(item[1]))
        raise MismatchError(
            f"{run}: lacks {len(missing):,} {'query' if len(missing) == 1 else 'queries'} with {judged_by} that other runs have, "
            f"for example '{min(missing)}'; use "
            "`intersect` to compare on the common queries, or `missing_as_zero=true` to count missing queries as 0"
        )
    return list(judgments)


def find_changed_queries(comparison: Comparison, *, texts: Mapping[str, str], show: ShowPassage) -> list[ChangedQuery]:
    """Return the queries with the largest gains, then the largest losses, on the first measure, for each pair of systems.

    At most `settings.moved` gains and losses each. Ties are ordered by query id, among losses in descending order.
    texts: query texts by id; show: function that returns title and snippet of a passage
    """
    changed = []
    measure, count = comparison.measures[0].name, comparison.settings.moved
    for baseline, system in comparison.pairs:
        differences = comparison.compute_differences(baseline, system, measure).tolist()
        by_gain = sorted(zip(differences, comparison.queries, strict=True), key=lambda item: (-item[0], item[1]))
        gains = [query for gain, query in by_gain[:count] if gain > ZERO]
        losses = [query for gain, query in by_gain[::-1][:count] if gain < -ZERO]
        pair = comparison.systems[baseline], comparison.systems[system]
        changed += [_build_changed_query(comparison, pair, q, texts.get(q, ""), show) for q in gains + losses]
    return changed


def _build_changed_query(
    comparison: Comparison, pair: tuple[System, System], query: str, text: str, show: ShowPassage
) -> ChangedQuery:
    measure, rel, grades = comparison.measures[0].name, comparison.settings.rel, comparison.judgments[query]

    def build_passage(id: str) -> RankedPassage:
        before, after = (system.find_rank(query, id) for system in pair)
        return RankedPassage(id, grades.get(id), before, after, *show(text, id))

    def compute_rr_change(passage: RankedPassage) -> float:
        after, before = (1 / rank if rank else 0.0 for rank in (passage.after, passage.before))
        return after - before

    relevant = [build_passage(id) for id, grade in grades.items() if grade >= rel]
    with_rank_change = [passage for passage in relevant if passage.before != passage.after]
    with_rank_change.sort(key=lambda passage: (-abs(compute_rr_change(passage)), -(passage.grade or 0), passage.id))
    tops = [next(iter(system.top_ids.get(query, ())), None) for system in pair]
    first, second = (None if top is None or grades.get(top, rel - 1) >= rel else build_passage(top) for top in tops)
    before, after = (float(system.compute_values(measure, [query])[0]) for system in pair)
    names = pair[0].name, pair[1].name
    return ChangedQuery(
        *names, measure, query, text, before, after, tuple(with_rank_change[:MAX_RELEVANT]), (first, second)
    )
