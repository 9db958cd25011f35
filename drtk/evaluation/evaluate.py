"""Evaluate rankings against judgments, per query and on average."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import exp, log
from subprocess import SubprocessError

from drtk.data.trec import Judgments, Order, QueryHits
from drtk.errors import UsageError
from drtk.evaluation import METRICS
from drtk.evaluation.config import ScoringSettings
from drtk.evaluation.measures import Measure
from drtk.evaluation.metrics import RANK_MEASURES, JudgedRanks
from drtk.records import parse_document_id
from drtk.runtime import progress

Value = float | int | str  # of a measure; counts are integers
Rankings = Mapping[str, Sequence[str]]  # document ids by query, best first
_MIN_AP = 1e-5  # trec_eval's floor for values of a geometric mean
_BATCH = 500  # queries handed to pytrec_eval or ir_measures at once
_MAX_NAMED = 3  # names of runs or measures in a message; of the others, only the number


@dataclass(frozen=True)
class RankingBuilder:
    """Function that returns the ranked document ids to evaluate, given the hits of a query.

    order: sort by score or by the rank column
    by: maps a passage id to its document id, to score documents by their best passage (MaxP); None: score passages
    drop_same_id: remove the document whose id is the query's id
    depth: number of top documents to score, after this removal; None: all
    """

    order: Order = "score"
    by: Callable[[str], str] | None = None
    drop_same_id: bool = False
    depth: int | None = None

    @classmethod
    def from_settings(
        cls, settings: ScoringSettings, *, document_of: Callable[[str], str] = parse_document_id
    ) -> RankingBuilder:
        """Return a builder with these settings.

        document_of: maps a passage id to its document id
        """
        by = document_of if settings.by == "source" else None
        return cls(settings.order, by, bool(settings.drop_same_id), settings.depth)

    def __call__(self, hits: QueryHits) -> list[str]:
        """Return the ranked ids of one query."""
        if self.by is None:
            ids = hits.to_ranked_ids(self.order)
        else:
            best: dict[str, float] = {}
            for id, score in hits.to_ranking(self.order):
                best.setdefault(self.by(id), score)
            ids = list(best)
            if self.order == "score":  # among equal scores, the ids of documents decide, not those of passages
                ids = QueryHits(hits.query_id, ids, list(best.values())).to_ranked_ids()
        if self.drop_same_id:
            ids = [id for id in ids if id != hits.query_id]
        return ids[: self.depth]


def log_shallow_runs(
    results: Iterable[Evaluation], measures: Sequence[Measure], *, judged_by: str = "judgments"
) -> None:
    """Log the runs whose longest ranking is shorter than a measure's cut-off, one line per length."""
    by_depth: dict[int, list[str]] = defaultdict(list)
    for result in results:
        if result.deepest:
            by_depth[result.deepest].append(result.name)
    for depth, names in by_depth.items():
        deeper = [measure.name for measure in measures if measure.cutoff is not None and measure.cutoff > depth]
        if deeper:
            progress.log(
                f"{_join_names(names)}: at most {depth:,} {'document' if depth == 1 else 'documents'} for a query with "
                f"{judged_by}, fewer than the cut-off of {_join_names(deeper)}; unless the search found no more, search again with a larger -k"
            )


def _join_names(names: Sequence[str]) -> str:
    others = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {others:,} more" if others > 0 else "")


@dataclass
class Evaluation:
    """Measures of one run: `per_query[query][measure]` and `overall[measure]`.

    deepest: length of the longest ranking of a judged query
    """

    name: str
    per_query: dict[str, dict[str, Value]]
    overall: dict[str, Value] = field(default_factory=dict)
    deepest: int = 0

    @property
    def num_queries(self) -> int:
        return len(self.per_query)


class Evaluator:
    """Evaluator of rankings with fixed judgments and measures."""

    def __init__(self, judgments: Judgments, measures: Iterable[Measure]) -> None:
        self.judgments = judgments
        self.measures = list(measures)
        self._by_ranks: list[tuple[Measure, Callable[..., Value]]] = []
        self._by_pytrec: list[Measure] = []
        for measure in self.measures:
            key = measure.key.removesuffix(f"_{measure.params.get('cutoff')}")
            if measure.engine == "builtin":
                self._by_ranks.append((measure, METRICS.load(measure.key)))
            elif measure.engine == "trec_eval" and key in RANK_MEASURES:
                self._by_ranks.append((measure, RANK_MEASURES[key]))
            elif measure.engine == "trec_eval":
                self._by_pytrec.append(measure)
        self._by_ir_measures = [measure for measure in self.measures if measure.engine == "ir_measures"]

    @property
    def needs_rankings(self) -> bool:
        """Whether a measure requires complete rankings; the others require only the ranks of judged documents."""
        return bool(self._by_pytrec or self._by_ir_measures)

    def __call__(self, name: str, rankings: Rankings, *, retrieved_only: bool = False, tag: str = "") -> Evaluation:
        """Evaluate rankings; the result has the queries in the order of the judgments.

        Judged queries without a ranking count as 0, or are ignored if `retrieved_only`. Queries without judgments are ignored.
        tag: run tag, the value of the measure runid
        """
        judged_ranks = {
            query: JudgedRanks.from_ranking(rankings[query], grades)
            for query, grades in self.judgments.items()
            if query in rankings
        }
        result = self._evaluate_ranks(name, judged_ranks, retrieved_only)
        queries = iter(result.per_query)
        while self.needs_rankings and (batch := list(islice(queries, _BATCH))):
            part = {query: rankings.get(query, ()) for query in batch}
            for query, values in (*self._iter_pytrec_values(part), *self._iter_ir_measures_values(part)):
                result.per_query[query] |= values
        return self._aggregate(result, tag)

    def evaluate_judged_ranks(
        self, name: str, judged_ranks: Mapping[str, JudgedRanks], *, retrieved_only: bool = False, tag: str = ""
    ) -> Evaluation:
        """Evaluate a run from the ranks of its judged documents, as `__call__` does from rankings.

        `needs_rankings` must be False.
        """
        return self._aggregate(self._evaluate_ranks(name, judged_ranks, retrieved_only), tag)

    def _evaluate_ranks(self, name: str, judged_ranks: Mapping[str, JudgedRanks], retrieved_only: bool) -> Evaluation:
        empty = JudgedRanks((), (), 0)
        queries = [query for query in self.judgments if query in judged_ranks or not retrieved_only]
        values = {
            q: self._compute_values(judged_ranks.get(q, empty), list(self.judgments[q].values())) for q in queries
        }
        return Evaluation(name, values, deepest=max((ranks.length for ranks in judged_ranks.values()), default=0))

    def _compute_values(self, ranking: JudgedRanks, judged_grades: list[int]) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for measure, compute in self._by_ranks:
            ranks = ranking.drop_unjudged() if measure.judged_only else ranking
            values[measure.name] = compute(ranks, judged_grades, rel=measure.rel, **measure.params)
        return values

    def _iter_pytrec_values(self, rankings: Rankings) -> Iterator[tuple[str, dict[str, Value]]]:
        if not self._by_pytrec:
            return
        import pytrec_eval

        groups: dict[tuple[int, bool, str], list[Measure]] = defaultdict(list)
        for measure in self._by_pytrec:
            # pytrec_eval has one relevance level per call, and returns every F measure as set_F whatever its beta
            beta = measure.key if measure.key.startswith("set_F_") else ""
            groups[measure.rel, measure.judged_only, beta].append(measure)
        judged = {query: self.judgments[query] for query in rankings}
        for query, grades in judged.items():
            if all(grade < 0 for grade in grades.values()):  # pytrec_eval would loop forever
                judged[query] = {**grades, " ": 0}  # an id that no run can contain
        run = {query: _make_scores(ranking) for query, ranking in rankings.items() if ranking}
        for (rel, judged_only, beta), measures in groups.items():
            keys = {measure.key for measure in measures}
            engine = pytrec_eval.RelevanceEvaluator(
                judged, keys, relevance_level=rel, judged_docs_only_flag=judged_only
            )
            computed = engine.evaluate(run)
            for query in rankings:
                values = computed.get(query, {})
                yield query, {m.name: float(values.get("set_F" if beta else m.key, 0.0)) for m in measures}

    def _iter_ir_measures_values(self, rankings: Rankings) -> Iterator[tuple[str, dict[str, Value]]]:
        if not self._by_ir_measures:
            return
        import ir_measures

        names = {ir_measures.parse_measure(measure.key): measure.name for measure in self._by_ir_measures}
        judged = {query: dict(self.judgments[query]) for query in rankings}
        run = {query: _make_scores(ranking) for query, ranking in rankings.items() if ranking}
        for query in rankings:
            yield query, dict.fromkeys(names.values(), 0.0)
        try:
            for metric in ir_measures.iter_calc(list(names), judged, run):
                if metric.query_id in rankings:
                    yield metric.query_id, {names[metric.measure]: float(metric.value)}
        except (RuntimeError, OSError, ValueError, SubprocessError) as error:
            listed = ", ".join(names.values())
            raise UsageError(
                f"`measures`: ir_measures could not compute {listed} ({error}); choose other measures"
            ) from error

    def _aggregate(self, result: Evaluation, tag: str) -> Evaluation:
        """Set `result.overall`, and sort the values of each query in the order of the measures."""
        for measure in self.measures:
            if (overall := self._compute_overall(measure, result, tag)) is not None:
                result.overall[measure.name] = overall
        for query, values in result.per_query.items():
            result.per_query[query] = {
                measure.name: int(values[measure.name]) if measure.aggregate == "sum" else values[measure.name]
                for measure in self.measures
                if measure.name in values
            }
        return result

    def _compute_overall(self, measure: Measure, result: Evaluation, tag: str) -> Value | None:
        if measure.engine == "run":
            return tag if measure.key == "runid" else result.num_queries
        if measure.aggregate == "none":
            return None
        # A geometric mean has no values of single queries, as in trec_eval.
        values = [
            float(values.pop(measure.name) if measure.aggregate == "geometric" else values[measure.name])
            for values in result.per_query.values()
        ]
        if measure.aggregate == "sum":
            return int(sum(values))
        if not values:
            return 0.0
        if measure.aggregate == "geometric":
            return exp(sum(log(max(value, _MIN_AP)) for value in values) / len(values))
        return sum(values) / len(values)


def _make_scores(ranking: Sequence[str]) -> dict[str, float]:
    """Return distinct decreasing scores, so that every library keeps the order of the ranking."""
    return {id: float(len(ranking) - at) for at, id in enumerate(ranking)}
