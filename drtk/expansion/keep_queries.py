"""Filter generated queries by their relevance to the passage (doc2query--)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import compress
from math import ceil, inf, isfinite
from typing import TYPE_CHECKING

import numpy as np

from drtk.data.rows import dump, parse_strings
from drtk.expansion.config import KeepQueriesSettings
from drtk.models.generator_input import format_passage
from drtk.records import Passage
from drtk.runtime.filter_job import BatchResult
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import log
from drtk.runtime.runners import BatchFunction

if TYPE_CHECKING:
    from drtk.models.cross_encoder import TokenizedPairs as Pairs

QUERIES, SCORES = "queries", "query_scores"


def iter_with_queries(
    passages: Iterable[Passage], source: str, tracker: InputTracker, *, scored: bool
) -> Iterator[Passage]:
    """Yield the passages, and check that each has queries and, if `scored`, one score per query.

    Raises RecordError (file:line) for an invalid passage, unless `tracker` skips it.
    """
    for passage in passages:
        try:
            queries = get_queries(passage)
            if scored:
                _check_scores(passage, len(queries))
        except ValueError as error:
            tracker.skip_line(source, tracker.line, error)
            continue
        yield passage


def get_queries(passage: Passage) -> tuple[str, ...]:
    """Return the queries of a passage. Raises ValueError if the field is missing or invalid."""
    if QUERIES not in passage.extra:
        raise ValueError(f"'{QUERIES}' is missing; run `drtk doc2query` first")
    return parse_strings(passage.extra[QUERIES], QUERIES)


def _check_scores(passage: Passage, count: int) -> None:
    if SCORES not in passage.extra:
        raise ValueError(f"'{SCORES}' is missing; give `scorer` to compute it")
    scores = passage.extra[SCORES]
    if not isinstance(scores, list) or not all(type(score) in (int, float) and isfinite(score) for score in scores):
        raise ValueError(f"'{SCORES}' must be a list of numbers; give `scorer` to compute them")
    if len(scores) != count:
        raise ValueError(f"'{SCORES}' has {len(scores)} numbers for {count} queries; give `scorer` to compute them")


def find_min_score(passages: Iterable[Passage], share: float) -> float:
    """Return the lowest score of the top-scoring share of all queries, rounded up to whole queries; 0 without queries.

    Memory: 8 bytes per query.
    """
    values = array("d")
    for passage in passages:
        values.extend(passage.extra[SCORES])
    if not values:
        return 0.0
    scores = np.frombuffer(values, dtype=np.float64)
    count = ceil(Fraction(str(share)) * len(scores))  # exact: 0.7 * 10 as floats could be rounded up to 8
    scores.partition(len(scores) - count)
    min_score = float(scores[-count])
    log(f"keeping queries with scores of at least {min_score}")
    return min_score


class QueryFilter(BatchFunction):
    """Batch function that drops queries with a score below `min_score`.

    A cross-encoder computes the scores, rounded to float32 precision (.1, not .10000000149), or they are read from the
    passages.
    bare: write only the passage id, the queries and the scores
    """

    def __init__(self, settings: KeepQueriesSettings, device: str, bare: bool) -> None:
        self._scorer = None
        if settings.scorer:
            from drtk.models.cross_encoder import load_scorer

            self._scorer, self._title = load_scorer(settings.scorer, settings, device=device)
        self._min_score = -inf if settings.min_score is None else settings.min_score
        self._with_scores, self._bare = settings.scores, bare

    def prepare(self, records: list[Passage]) -> tuple[list[Passage], Pairs | None]:
        """Return the passages, and the tokens of their queries and texts, or None if there is no scorer."""
        if self._scorer is None:
            return records, None
        texts = [format_passage(passage, self._title) for passage in records]
        pairs = [(query, text) for passage, text in zip(records, texts, strict=True) for query in get_queries(passage)]
        return records, self._scorer.tokenize(pairs)

    def __call__(self, batch: tuple[list[Passage], Pairs | None]) -> BatchResult:
        """Return the passages, in order, as JSON lines."""
        passages, pairs = batch
        if self._scorer is None or pairs is None:
            scores = [score for passage in passages for score in passage.extra[SCORES]]
        else:
            scores = [float(str(score)) for score in self._scorer.compute_scores(pairs)]
        is_kept = np.array(scores) >= self._min_score
        lines, start = [], 0
        for passage in passages:
            queries = get_queries(passage)
            end = start + len(queries)
            mask = is_kept[start:end]
            row = {QUERIES: [*compress(queries, mask)], SCORES: [*compress(scores[start:end], mask)]}
            start = end
            extra = passage.extra | row
            if not self._with_scores:
                del row[SCORES], extra[SCORES]
            lines.append(dump({"_id": passage.id} | row if self._bare else replace(passage, extra=extra)))
        return BatchResult(lines, {"queries": len(scores), "kept": int(np.count_nonzero(is_kept))})
