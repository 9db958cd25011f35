"""drtk search --tune: every k1 and b of a grid, by how well they serve judged queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from drtk.errors import UsageError
from drtk.io.filtering import FilterJob
from drtk.settings.retrieval import SearchSettings

if TYPE_CHECKING:
    from drtk.retrieval.base import Ranking
    from drtk.retrieval.searching import Wanted
    from drtk.retrieval.tuning import Tuned


class _Opened:
    """Indexes opened with one k1 and b, that answer as the run would: documents or passages, without the query's own."""

    def __init__(self, folders: list[str], settings: SearchSettings, query_ids: list[str], wanted: Wanted) -> None:
        from drtk.retrieval.collection import Collection

        self._collection = Collection(folders, settings)
        self._query_ids, self._wanted = query_ids, wanted

    def search(self, texts: Sequence[str], k: int) -> list[Ranking]:
        from drtk.retrieval.searching import search

        return search(self._collection, self._query_ids, texts, replace(self._wanted, k=k))


def tune_bm25(
    folders: list[str], source: str, qrels: str, wanted: Wanted, *, settings: SearchSettings, job: FilterJob
) -> None:
    """Write the table `k1 b measure`, the best point first, tab-separated under a header."""
    from drtk.evaluation.evaluate import Evaluator
    from drtk.evaluation.measures import parse_measures
    from drtk.evaluation.runs import judgements_from
    from drtk.io.jsonl import read_queries
    from drtk.io.known_hits import JudgedHits
    from drtk.io.manifest import folder_entry
    from drtk.io.progress import Progress
    from drtk.retrieval.tuning import parse_grid, tune

    measures = parse_measures(settings.measure)
    if len(measures) != 1:
        raise UsageError("--measure: name one")
    grid = parse_grid(settings.grid)
    judgements = judgements_from(qrels, job.intake)
    evaluator = Evaluator(judgements, measures)
    judged = JudgedHits(", ".join(folders), judgements)
    queries = [query for query in read_queries(source, intake=job.intake) if query.id in judgements]
    ids = [query.id for query in queries]
    job.intake.inputs += [folder_entry(folder) for folder in folders]

    def measure(_: object, rankings: dict[str, Ranking]) -> float:
        found = {query: [id for id, _ in ranking] for query, ranking in rankings.items()}
        if not judged.found:
            for query, ids in found.items():
                judged.add(query, ids)
        return float(evaluator("tuned", found).overall[measures[0].name])

    with Progress("tune", total=len(grid), unit="points") as progress:
        points = tune(
            lambda k1, b: _Opened(folders, replace(settings, k1=k1, b=b), ids, wanted),  # type: ignore[arg-type,return-value]
            queries,
            judgements,
            grid=grid,
            measure=measure,  # type: ignore[arg-type]
            depth=wanted.k,
            progress=progress,
        )
    judged.warn()
    header = [f"k1\tb\t{measures[0].name}\n".encode()]

    def lines(window: list[Tuned]) -> Iterator[bytes]:
        while header:
            yield header.pop()
        for point in window:
            yield f"{point.k1:g}\t{point.b:g}\t{point.value:.4f}\n".encode()

    job.kind, job.window = "tuning", len(points)
    job.counts["judged queries"] = len(queries)
    job.run(points, lines, unit="points")
