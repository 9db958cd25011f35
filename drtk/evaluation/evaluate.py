"""Evaluate rankings against judgements, per query and on average."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import exp
from math import log as math_log
from subprocess import SubprocessError

from drtk.data.trec import Judgements, Order, QueryHits
from drtk.errors import UsageError
from drtk.evaluation import METRICS
from drtk.evaluation.measures import Measure
from drtk.evaluation.metrics import JudgedRanks, judged_measure
from drtk.runtime.progress import log

SourceOf = Callable[[str], str]


@dataclass(frozen=True)
class View:
    """How rankings are looked at before they are scored.

    order: what decides, scores or the rank column. by: a passage's document, where documents are scored by their best
    passage (MaxP). drop_same_id: a query's own document goes, before the cut. depth: only so many are scored.
    """

    order: Order = "score"
    by: SourceOf | None = None
    drop_same_id: bool = False
    depth: int | None = None

    def __call__(self, hits: QueryHits) -> list[str]:
        """Ids of one query's ranking, best first."""
        if self.by is None:
            ids = hits.ranked_ids(self.order)
        else:
            best: dict[str, float] = {}
            for id, score in hits.ranking(self.order):
                best.setdefault(self.by(id), score)
            ids = list(best)
            if self.order == "score":  # among equal scores it is now the document's id that decides
                ids = QueryHits(hits.query_id, ids, list(best.values())).ranked_ids()
        if self.drop_same_id:
            ids = [id for id in ids if id != hits.query_id]
        return ids[: self.depth]

    def length(self, hits: QueryHits) -> int:
        """How many documents one query's ranking holds, before any is left out or the ranking is cut."""
        return len(hits.doc_ids) if self.by is None else len({self.by(id) for id in hits.doc_ids})

    def top(self, hits: QueryHits) -> str:
        """The passage that put the first of `self(hits)` where it is. ValueError where nothing is left of the ranking."""
        for id in hits.ranked_ids(self.order):
            if not self.drop_same_id or (self.by(id) if self.by else id) != hits.query_id:
                return id
        raise ValueError(f"the ranking of query '{hits.query_id}' is empty")

    def all(self, hits: Mapping[str, QueryHits]) -> dict[str, list[str]]:
        """The rankings of every query."""
        return {query: self(found) for query, found in hits.items()}


NAMED = 3  # runs, or measures, that are named before the others are counted


def tell_shallow(
    depths: Mapping[str, int], measures: Sequence[Measure], *, right: str = "judgements", size: int | None = None
) -> None:
    """Say which runs are shallower than a measure looks, in one line for all that are equally deep.

    depths: by run, documents of the longest ranking among the queries that count; runs of none are passed over.
    right: what makes a query count. size: documents of the collection, where it is known: no run can hold more.
    """
    cutoffs = {measure.name: measure.cutoff for measure in measures if measure.cutoff is not None}
    by_depth: dict[int, list[str]] = {}
    for name, depth in depths.items():
        if depth and (size is None or depth < size):
            by_depth.setdefault(depth, []).append(name)
    for depth, names in by_depth.items():
        deeper = {name: cutoff for name, cutoff in cutoffs.items() if cutoff > depth}
        if deeper:
            holds = "holds" if len(names) == 1 else "hold"
            documents = "1 document" if depth == 1 else f"{depth:,} documents"
            log(f"{_listed(names)}: {holds} at most {documents} for a query with {right}; {_looks(deeper)}")


def _listed(names: Sequence[str]) -> str:
    others = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {others:,} more" if others > 0 else "")


def _looks(cutoffs: Mapping[str, int]) -> str:
    """How far down measures look: all of them where they are few, else the one that looks furthest."""
    if len(cutoffs) > NAMED:
        furthest = max(cutoffs, key=lambda name: cutoffs[name])
        return f"{len(cutoffs):,} measures look further, {furthest} at {cutoffs[furthest]:,}"
    (first, depth), *others = cutoffs.items()
    return ", ".join([f"{first} looks at {depth:,}", *(f"{name} at {cutoff:,}" for name, cutoff in others)])


Value = float | int | str  # a measure's value; counts are whole
Rankings = Mapping[str, Sequence[str]]
_SMALLEST = 1e-5  # trec_eval's floor under the values of a geometric mean
_BATCH = 500  # queries handed to pytrec_eval at once


@dataclass
class Evaluation:
    """Values of one run: `per_query[query][measure]`, `overall[measure]`, and the queries they are over.

    deepest: documents of the run's longest ranking of a judged query; 0 where that is not known
    """

    name: str
    per_query: dict[str, dict[str, Value]]
    overall: dict[str, Value] = field(default_factory=dict)
    deepest: int = 0

    @property
    def queries(self) -> int:
        return len(self.per_query)


class Evaluator:
    """Judgements and measures, ready for any number of runs in this process."""

    def __init__(self, judgements: Judgements, measures: Iterable[Measure]) -> None:
        self.judgements = judgements
        self.measures = list(measures)
        self._own = [(measure, METRICS.load(measure.key)) for measure in self.measures if measure.engine == "own"]
        self._trec = [measure for measure in self.measures if measure.engine == "pytrec_eval"]
        self._other = [measure for measure in self.measures if measure.engine == "ir_measures"]
        of_trec = {measure.name: judged_measure(measure.key) for measure in self._trec if not measure.judged_only}
        self._by_ranks = [(m, compute) for m in self._trec if (compute := of_trec.get(m.name)) is not None]
        self._by_entries = [measure for measure in self._trec if of_trec.get(measure.name) is None]

    @property
    def needs_rankings(self) -> bool:
        """Whether a measure has to see every document of a ranking, not only those that are judged."""
        return bool(self._by_entries or self._other)

    def __call__(self, name: str, rankings: Rankings, *, retrieved_only: bool = False, tag: str = "") -> Evaluation:
        """The values of rankings (ids by query, best first), in the order of the judgements.

        Queries without a ranking count as ones that found nothing, or not at all where `retrieved_only`; queries
        without judgements are left out. tag: what the run calls itself.
        """
        queries = [query for query in self.judgements if query in rankings or not retrieved_only]
        result = Evaluation(name, {query: {} for query in queries})
        for query in queries:
            ranking = rankings.get(query, ())
            known = self.judgements[query]
            ranks = [rank for rank, id in enumerate(ranking, start=1) if id in known]
            found = JudgedRanks(ranks, [known[ranking[rank - 1]] for rank in ranks], len(ranking))
            result.per_query[query] |= self._from_ranks(found, list(known.values()))
        stream = iter(queries)
        while batch := list(islice(stream, _BATCH if self.needs_rankings else len(queries))):
            for query, values in self._from_rankings({query: rankings.get(query, ()) for query in batch}):
                result.per_query[query] |= values
        return self._summed_up(result, tag)

    def from_ranks(
        self, name: str, found: Mapping[str, JudgedRanks], *, retrieved_only: bool = False, tag: str = ""
    ) -> Evaluation:
        """The same of the ranks of judged documents, for measures that need no more."""
        nothing = JudgedRanks((), (), 0)
        queries = [query for query in self.judgements if query in found or not retrieved_only]
        result = Evaluation(name, {})
        for query in queries:
            known = list(self.judgements[query].values())
            result.per_query[query] = self._from_ranks(found.get(query, nothing), known)
        return self._summed_up(result, tag)

    def _summed_up(self, result: Evaluation, tag: str) -> Evaluation:
        """With what queries come to together, and the measures of each in the order asked for."""
        for measure in self.measures:
            overall = self._overall(measure, result, tag)
            if overall is not None:
                result.overall[measure.name] = overall
        names = [measure.name for measure in self.measures]
        counts = {measure.name for measure in self.measures if measure.aggregate == "sum"}
        for query, values in result.per_query.items():  # engines take turns
            result.per_query[query] = {
                name: int(values[name]) if name in counts else values[name] for name in names if name in values
            }
        return result

    def _from_ranks(self, found: JudgedRanks, known: list[int]) -> dict[str, Value]:
        values: dict[str, Value] = {m.name: compute(found, known, m.rel) for m, compute in self._by_ranks}
        if self._own:
            values |= self._own_values(found.dense(), known)
        return values

    def _from_rankings(self, rankings: Rankings) -> Iterator[tuple[str, dict[str, Value]]]:
        yield from self._trec_values(rankings)
        yield from self._other_values(rankings)

    def _own_values(self, grades: list[int | None], known: list[int]) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for measure, compute in self._own:
            seen = [grade for grade in grades if grade is not None and grade >= 0] if measure.judged_only else grades
            values[measure.name] = compute(seen, known, rel=measure.rel, **measure.params)
        return values

    def _trec_values(self, rankings: Rankings) -> Iterator[tuple[str, dict[str, Value]]]:
        if not self._by_entries:
            return
        import pytrec_eval

        groups: dict[tuple[int, bool, str], list[Measure]] = defaultdict(list)
        for measure in self._by_entries:
            # pytrec_eval has one level a call, and calls every F measure set_F whatever its beta
            beta = measure.key if measure.key.startswith("set_F_") else ""
            groups[measure.rel, measure.judged_only, beta].append(measure)
        known = {query: _with_a_grade(self.judgements[query]) for query in rankings}
        run = {query: _descending(ranking) for query, ranking in rankings.items() if ranking}
        for (rel, judged_only, beta), measures in groups.items():
            keys = {measure.key for measure in measures}
            engine = pytrec_eval.RelevanceEvaluator(known, keys, relevance_level=rel, judged_docs_only_flag=judged_only)
            found = engine.evaluate(run)
            for query in rankings:
                values = found.get(query, {})
                yield (
                    query,
                    {measure.name: float(values.get("set_F" if beta else measure.key, 0.0)) for measure in measures},
                )

    def _other_values(self, rankings: Rankings) -> Iterator[tuple[str, dict[str, Value]]]:
        if not self._other:
            return
        import ir_measures

        names = {ir_measures.parse_measure(measure.key): measure.name for measure in self._other}
        known = {query: dict(self.judgements[query]) for query in rankings}
        run = {query: _descending(ranking) for query, ranking in rankings.items() if ranking}
        for query in rankings:
            yield query, dict.fromkeys(names.values(), 0.0)
        try:
            for metric in ir_measures.iter_calc(list(names), known, run):
                if metric.query_id in rankings:
                    yield metric.query_id, {names[metric.measure]: float(metric.value)}
        except (RuntimeError, OSError, ValueError, SubprocessError) as error:
            wanted = ", ".join(names.values())
            raise UsageError(f"--measures: ir_measures could not compute {wanted}: {error}") from error

    def _overall(self, measure: Measure, result: Evaluation, tag: str) -> Value | None:
        if measure.engine == "run":
            return tag if measure.key == "runid" else result.queries
        if measure.aggregate == "none":
            return None
        values = [
            float(values.pop(measure.name)) if measure.aggregate == "geometric" else float(values[measure.name])
            for values in result.per_query.values()
        ]
        if measure.aggregate == "sum":
            return int(sum(values))
        if not values:
            return 0.0
        if measure.aggregate == "geometric":
            return exp(sum(math_log(max(value, _SMALLEST)) for value in values) / len(values))
        return sum(values) / len(values)


def _with_a_grade(known: Mapping[str, int]) -> Mapping[str, int]:
    """Judgements with at least one grade from 0 on: without any, pytrec_eval never comes back.

    What is added is irrelevant, and no run can hold it: an id has no white space.
    """
    return known if any(grade >= 0 for grade in known.values()) else {**known, " ": 0}


def _descending(ranking: Sequence[str]) -> dict[str, float]:
    """Scores that keep a ranking's order in whatever software they are given to."""
    return {id: float(len(ranking) - at) for at, id in enumerate(ranking)}
