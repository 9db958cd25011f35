"""Grid search over BM25 parameters (`drtk search`) and fusion weights (`drtk fuse`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise, product
from typing import NamedTuple

from drtk.data.checks import JudgedHitCounter
from drtk.data.readers import read_queries
from drtk.data.trec import Judgments, QueryHits, Ranking
from drtk.errors import MismatchError, UsageError
from drtk.evaluation.evaluate import Evaluator, RankingBuilder
from drtk.evaluation.judged_runs import log_missing_queries, read_judgments
from drtk.evaluation.measures import parse_measures
from drtk.indexing.config import SearchSettings
from drtk.records import parse_document_id
from drtk.retrieval.config import FuseSettings
from drtk.retrieval.fusion import FUSIONS, fuse
from drtk.retrieval.search import IndexGroup, RankingOptions, iter_rankings
from drtk.runtime.inputs import InputTracker
from drtk.runtime.manifest import describe_folder
from drtk.runtime.progress import log, track
from drtk.runtime.streams import get_source_name


class RankingScorer:
    """Scorer of rankings: the mean of one measure over the judged queries.

    by: maps a passage id to its document id, to score documents by their best passage
    Raises UsageError unless `measure` names exactly one measure with a mean.
    """

    def __init__(self, judgments: Judgments, measure: str, *, by: Callable[[str], str] | None = None) -> None:
        measures = parse_measures(measure)
        if len(measures) != 1 or measures[0].aggregate == "none":
            raise UsageError("`measure` must name exactly one measure with a mean, such as nDCG@10")
        self.name = measures[0].name
        self._evaluator, self._builder = Evaluator(judgments, measures), RankingBuilder(by=by)

    def __call__(self, rankings: Mapping[str, Ranking]) -> float:
        """Return the mean of the measure. rankings: (document id, score) pairs by query id"""
        ids = {
            query: self._builder(QueryHits(query, [id for id, _ in ranking], [score for _, score in ranking]))
            for query, ranking in rankings.items()
        }
        return float(self._evaluator("tuned", ids).overall[self.name])


def parse_grid(text: str) -> list[tuple[float, float]]:
    """Return all pairs (k1, b) of a grid such as "k1=0.6,0.9 b=0.4,0.75".

    Raises UsageError for a malformed grid and for values out of bounds.
    """
    axes: dict[str, list[float]] = {}
    for part in text.split():
        name, _, values = part.partition("=")
        try:
            axes[name] = [float(value) for value in values.split(",")]
        except ValueError:
            axes = {}
            break
    if set(axes) != {"k1", "b"} or len(text.split()) != 2:
        raise UsageError(f"`grid`: expected values such as 'k1=0.6,0.9,1.2 b=0.4,0.75', got '{text}'")
    for k1, b in product(axes["k1"], axes["b"]):
        if not (0 <= k1 < float("inf") and 0 <= b <= 1):
            raise UsageError(f"`grid`: k1 must be at least 0 and b between 0 and 1, got k1 {k1:g}, b {b:g}")
    return list(product(axes["k1"], axes["b"]))


def iter_weights(num_runs: int, step: float) -> Iterator[tuple[float, ...]]:
    """Yield all weight vectors for `num_runs` runs; weights are multiples of 1 / round(1 / `step`) and sum to 1."""
    steps = max(1, round(1 / step))
    last = steps + num_runs - 1  # bars between the steps separate the shares of the runs
    for bars in combinations(range(last), num_runs - 1):
        yield tuple((end - start - 1) / steps for start, end in pairwise((-1, *bars, last)))


def find_fusion_weights(
    names: Sequence[str],
    qrels: str,
    settings: FuseSettings,
    runs: Sequence[Mapping[str, Ranking]],
    scored_depths: Sequence[int | None] | None,
    *,
    tracker: InputTracker,
) -> tuple[tuple[float, ...], float]:
    """Return the weights with the highest score on the judged queries, and this score.

    In a tie, the weights with the smallest maximum win.
    names: run files; scored_depths: number of top hits per query that a reranker scored, for each run (None: all)
    Raises UsageError if no query is judged.
    """
    by = parse_document_id if settings.by == "source" else None
    judgments = read_judgments(qrels, tracker)
    score = RankingScorer(judgments, settings.measure, by=by)
    queries = [query for query in judgments if any(query in run for run in runs)]
    if not queries:
        example = next((query for run in runs for query in run), "")
        raise UsageError(
            f"`sweep`: no query of the runs has judgments in {qrels} (runs: '{example}', judgments: "
            f"'{next(iter(judgments))}'); pass the judgments of these queries"
        )
    log_missing_queries("fuse", len(queries), len(judgments), retrieved_only=False, where="in the runs")
    for name, run in zip(names, runs, strict=True):
        judged = JudgedHitCounter(name, judgments, to_document=by)
        if not any(judged.add(query, [id for id, _ in ranking]) for query, ranking in run.items()):
            judged.report_problem()
    method = FUSIONS.load(settings.method)

    def rank_queries(weights: tuple[float, ...]) -> dict[str, Ranking]:
        return {
            query: fuse([run.get(query, []) for run in runs], weights, settings, method, scored_depths=scored_depths)
            for query in queries
        }

    points = sorted(iter_weights(len(runs), settings.step), key=max)
    scores = [
        (weights, score(rank_queries(weights))) for weights in track(points, "fuse", total=len(points), unit="weights")
    ]
    scores.sort(key=lambda pair: -pair[1])  # ties keep the order of the weights
    lines = [f"{','.join(f'{weight:g}' for weight in weights)}: {score.name} {value:.4f}" for weights, value in scores]
    for line in lines:
        log(f"fuse: weights {line}")
    log(f"fuse: best weights {lines[0]}")
    return scores[0]


class BM25Grid(NamedTuple):
    """Scores of all (k1, b) of a grid, highest first. num_queries: number of judged queries that were searched"""

    measure: str
    scores: list[tuple[tuple[float, float], float]]
    num_queries: int

    def to_lines(self) -> Iterator[bytes]:
        """Yield the lines of a TSV table with the columns k1, b and the measure."""
        yield f"k1\tb\t{self.measure}\n".encode()
        for (k1, b), value in self.scores:
            yield f"{k1:g}\t{b:g}\t{value:.4f}\n".encode()


def tune_bm25(
    folders: Sequence[str],
    source: str,
    qrels: str,
    options: RankingOptions,
    settings: SearchSettings,
    tracker: InputTracker,
) -> BM25Grid:
    """Evaluate every (k1, b) of `settings.grid` on the judged queries.

    folders: BM25 indexes; source: queries file; qrels: judgments file
    Raises UsageError for an index without BM25 parameters, MismatchError if no query is judged.
    """
    if not IndexGroup(folders, settings).tunable:
        raise UsageError("`tune` requires an index of type bm25 or bm25s, because it selects k1 and b")
    grid = parse_grid(settings.grid)
    judgments = read_judgments(qrels, tracker)
    score = RankingScorer(judgments, settings.measure)
    queries = [query for query in read_queries(source, tracker=tracker) if query.id in judgments]
    if not queries:
        raise MismatchError(f"{qrels}: no query of {source} has a judgment; pass the judgments of these queries")
    log_missing_queries(
        get_source_name(source), len(queries), len(judgments), retrieved_only=False, where="among the queries"
    )
    ids, texts = [query.id for query in queries], [query.text for query in queries]
    tracker.inputs += [describe_folder(folder) for folder in folders]
    judged = JudgedHitCounter(", ".join(folders), judgments)

    def rank_queries(point: tuple[float, float]) -> dict[str, Ranking]:
        collection = IndexGroup(folders, replace(settings, k1=point[0], b=point[1]))
        rankings = dict(zip(ids, iter_rankings(collection, ids, texts, options), strict=True))
        for query_id, ranking in rankings.items():
            judged.add(query_id, [id for id, _ in ranking])
        return rankings

    scores = [(point, score(rank_queries(point))) for point in track(grid, "tune", total=len(grid), unit="points")]
    scores.sort(key=lambda pair: -pair[1])  # ties keep the order of the grid
    judged.report_problem()
    return BM25Grid(score.name, scores, len(queries))
