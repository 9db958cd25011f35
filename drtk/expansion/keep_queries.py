"""Filter generated queries by their relevance to the passage (doc2query--)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from math import ceil, inf, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from drtk.data.rows import Row, dump, parse_strings
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
_LINES_PER_BATCH = 1000  # in the second pass


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


class QueryScorer:
    """Cross-encoder that scores pairs of a generated query and its passage."""

    def __init__(self, settings: KeepQueriesSettings, device: str) -> None:
        from drtk.models.cross_encoder import load_scorer

        self._scorer, self._title = load_scorer(settings.scorer, settings, device=device)

    def tokenize(self, passages: Sequence[Passage], queries: Sequence[Sequence[str]]) -> Pairs:
        """Tokenize the queries with their passages."""
        texts = [format_passage(passage, self._title) for passage in passages]
        pairs = [(query, text) for text, text_queries in zip(texts, queries, strict=True) for query in text_queries]
        return self._scorer.tokenize(pairs)

    def score(self, pairs: Pairs) -> list[float]:
        """Return one score per (query, passage) pair, in order, rounded to float32 precision (.1, not .10000000149)."""
        return [float(str(score)) for score in self._scorer.compute_scores(pairs)]


class QueryFilter(BatchFunction):
    """Batch function that filters queries by cross-encoder scores, which it computes or reads from the passages."""

    def __init__(self, settings: KeepQueriesSettings, device: str, bare: bool) -> None:
        self._scorer = QueryScorer(settings, device) if settings.scorer else None
        self._settings, self._bare = settings, bare

    def prepare(self, records: list[Passage]) -> tuple[list[Passage], Pairs | None]:
        """Return the passages, and the tokens of their queries and texts, or None if there is no scorer."""
        queries = [get_queries(passage) for passage in records]
        return records, None if self._scorer is None else self._scorer.tokenize(records, queries)

    def __call__(self, batch: tuple[list[Passage], Pairs | None]) -> BatchResult:
        """Return the passages, in order, as JSON lines."""
        passages, pairs = batch
        if self._scorer is None or pairs is None:
            scores = [score for passage in passages for score in passage.extra[SCORES]]
        else:
            scores = self._scorer.score(pairs)
        queries = [get_queries(passage) for passage in passages]
        result = drop_queries(passages, queries, scores, self._settings, bare=self._bare)
        return BatchResult(result.lines, {"queries": len(scores)} | result.counts)


def drop_queries(
    passages: Sequence[Passage],
    queries: Sequence[Sequence[str]],
    scores: Sequence[float],
    settings: KeepQueriesSettings,
    *,
    bare: bool,
) -> BatchResult:
    """Drop the queries below `min_score`; return the passages as JSON lines. `TopShareFilter` applies `keep` later.

    The lines contain scores only if `settings` has `scores` or `keep`.
    scores: one per query of all passages, in order
    bare: write only the passage id, the queries and the scores
    """
    lines, start, num_kept = [], 0, 0
    min_score = -inf if settings.min_score is None else settings.min_score
    for passage, texts in zip(passages, queries, strict=True):
        passage_scores = scores[start : start + len(texts)]
        start += len(texts)
        row = _select_queries(texts, passage_scores, [score >= min_score for score in passage_scores])
        num_kept += len(row[QUERIES])
        extra = passage.extra | row
        if not settings.scores and settings.keep is None:
            del row[SCORES], extra[SCORES]
        lines.append(dump({"_id": passage.id} | row if bare else replace(passage, extra=extra)))
    return BatchResult(lines, {} if settings.keep is not None else {"kept": num_kept})


def _select_queries(queries: Sequence[str], scores: Sequence[float], mask: Iterable[Any]) -> Row:
    selected = [pair for pair, keep in zip(zip(queries, scores, strict=True), mask, strict=True) if keep]
    return {QUERIES: [query for query, _ in selected], SCORES: [score for _, score in selected]}


class TopShareFilter:
    """Second pass over scored passages that keeps the top-scoring share of all queries in the corpus.

    The number of queries to keep is rounded up; of tied queries, the first are kept. Memory: 4 bytes per query.
    counts: counters, to which "min_score" is added, the lowest score of a remaining query
    """

    def __init__(self, fraction: float, counts: dict[str, Any], *, with_scores: bool) -> None:
        self._fraction, self._counts, self._with_scores = fraction, counts, with_scores

    def __call__(self, lines: Callable[[], Iterator[bytes]]) -> Iterator[BatchResult]:
        """Yield the lines with the remaining queries. `lines` is called twice, once per pass."""
        values = array("f")
        for line in lines():
            values.extend(orjson.loads(line)[SCORES])
        scores = np.frombuffer(values, dtype=np.float32)
        count = ceil(Fraction(str(self._fraction)) * len(scores))  # exact: 0.7 * 10 as floats could be rounded up to 8
        threshold, num_ties = find_threshold(scores, count)
        if count:
            self._counts["min_score"] = float(str(threshold))  # shortest decimal, for use as `min_score`
            log(f"keeping {count:,} of {len(scores):,} queries, with scores of at least {self._counts['min_score']}")
        stream = lines()
        while batch := list(islice(stream, _LINES_PER_BATCH)):
            results, num_kept = [], 0
            for line in batch:
                row = orjson.loads(line)
                row_scores = np.array(row[SCORES], dtype=np.float32)
                is_tied = row_scores == threshold
                mask = (row_scores > threshold) | (is_tied & (np.cumsum(is_tied) <= num_ties))
                num_ties -= int(np.count_nonzero(is_tied & mask))
                row |= _select_queries(row[QUERIES], row[SCORES], mask)
                num_kept += len(row[QUERIES])
                if not self._with_scores:
                    del row[SCORES]
                results.append(dump(row))
            yield BatchResult(results, {"kept": num_kept})


def find_threshold(scores: np.ndarray, count: int) -> tuple[np.float32, int]:
    """Return the lowest of the `count` highest scores, and how many of the `count` scores are equal to it.

    Returns (inf, 0) for a `count` of 0.
    scores: (n,), float32, with n >= count; partially sorted in place
    """
    if not count:
        return np.float32(inf), 0
    position = len(scores) - count
    scores.partition(position)
    threshold = scores[position]
    return threshold, count - int(np.count_nonzero(scores > threshold))
