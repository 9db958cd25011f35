"""Drop generated queries that do not fit their passage (doc2query--)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from math import ceil, inf, isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from drtk.data.jsonl import dump
from drtk.data.rows import Row, parse_strings
from drtk.errors import RecordError
from drtk.expansion.config import KeepSettings
from drtk.records import Passage
from drtk.runtime.filter_job import WindowResult
from drtk.runtime.inputs import InputTracker
from drtk.runtime.progress import log
from drtk.runtime.runners import BatchFunction
from drtk.runtime.streams import name_of

if TYPE_CHECKING:
    from drtk.models.cross_encoder import TokenizedPairs as Pairs

QUERIES, SCORES = "queries", "query_scores"
_WINDOW = 1000  # lines of the second pass that are processed together


def iter_with_queries(
    passages: Iterable[Passage], source: str, tracker: InputTracker, *, scored: bool
) -> Iterator[Passage]:
    """Yield the passages that hold queries and, with `scored`, a score for each.

    Raises RecordError (file:line) for others, unless `tracker` skips it.
    """
    for passage in passages:
        try:
            queries = get_queries(passage)
            if scored:
                _check_scores(passage, len(queries))
        except ValueError as error:
            tracker.skip_or_raise(RecordError(f"{name_of(source)}:{tracker.line}", str(error)))
            continue
        yield passage


def get_queries(passage: Passage) -> tuple[str, ...]:
    """Return the queries of a passage. Raises ValueError if it has none."""
    if QUERIES not in passage.extra:
        raise ValueError(f"'{QUERIES}' is missing; drtk doc2query writes it")
    return parse_strings(passage.extra[QUERIES], QUERIES)


def _check_scores(passage: Passage, count: int) -> None:
    if SCORES not in passage.extra:
        raise ValueError(f"'{SCORES}' is missing; `scorer` computes it")
    scores = passage.extra[SCORES]
    if not isinstance(scores, list) or not all(type(score) in (int, float) and isfinite(score) for score in scores):
        raise ValueError(f"'{SCORES}' must be a list of numbers")
    if len(scores) != count:
        raise ValueError(f"'{SCORES}' has {len(scores)} entries for {count} queries")


class QueryScorer:
    """Score queries against their passage with a cross-encoder; the query is the first text of a pair."""

    def __init__(self, settings: KeepSettings, device: str) -> None:
        from drtk.models.config import ScoringSettings
        from drtk.models.cross_encoder import CrossEncoderScorer, resolve_title

        self._title = resolve_title(settings.scorer, settings.scorer_title, strict=True)
        self._scorer = CrossEncoderScorer(
            settings.scorer,
            device=device,
            settings=ScoringSettings(batch_tokens=settings.scorer_batch_tokens, precision=settings.scorer_precision),
            logits=settings.scorer_logits,
            batch_field="scorer_batch_tokens",
        )

    def prepare(self, passages: Sequence[Passage], queries: Sequence[Sequence[str]]) -> Pairs:
        """Tokenize the queries with their passages."""
        from drtk.models.generator_input import format_passage

        texts = [format_passage(passage, self._title) for passage in passages]
        return self._scorer.tokenize([(query, text) for text, own in zip(texts, queries, strict=True) for query in own])

    def scores(self, pairs: Pairs) -> list[float]:
        """Return the scores of all queries in order, with as many digits as distinguish float32 numbers."""
        return [float(str(score)) for score in self._scorer.scores(pairs)]


class _QueryBatch(NamedTuple):
    passages: list[Passage]
    queries: list[tuple[str, ...]]
    pairs: Pairs | None  # tokens, if a cross-encoder scores them


class QueryFilter(BatchFunction):
    """Drop queries by their scores: those of a cross-encoder, or without one those in the records."""

    def __init__(self, settings: KeepSettings, device: str, bare: bool) -> None:
        self._scorer = QueryScorer(settings, device) if settings.scorer else None
        self._settings, self._bare = settings, bare

    def prepare(self, records: list[Passage]) -> _QueryBatch:
        """Tokenize the queries with their passages."""
        queries = [get_queries(passage) for passage in records]
        return _QueryBatch(records, queries, None if self._scorer is None else self._scorer.prepare(records, queries))

    def __call__(self, prepared: _QueryBatch) -> WindowResult:
        """Return the passages, in order, as JSON lines."""
        passages, queries, pairs = prepared
        if self._scorer is None or pairs is None:
            scores = [score for passage in passages for score in passage.extra[SCORES]]
        else:
            scores = self._scorer.scores(pairs)
        done = drop_queries(passages, queries, scores, self._settings, bare=self._bare)
        return WindowResult(done.lines, {"queries": len(scores)} | done.counts)


def drop_queries(
    passages: Sequence[Passage],
    queries: Sequence[Sequence[str]],
    scores: Sequence[float],
    settings: KeepSettings,
    *,
    bare: bool,
) -> WindowResult:
    """Return the passages with the queries that reach `min_score`. A share of all is left to `TopShareFilter`.

    scores: of all queries in order
    """
    lines, at, kept = [], 0, 0
    least = -inf if settings.min_score is None else settings.min_score
    for passage, texts in zip(passages, queries, strict=True):
        own = scores[at : at + len(texts)]
        at += len(texts)
        row = _select(texts, own, [score >= least for score in own])
        kept += len(row[QUERIES])
        extra = passage.extra | row
        if not settings.scores and settings.keep is None:
            del row[SCORES], extra[SCORES]
        lines.append(dump({"_id": passage.id} | row if bare else replace(passage, extra=extra)))
    return WindowResult(lines, {} if settings.keep is not None else {"kept": kept})


def _select(queries: Sequence[str], scores: Sequence[float], mask: Iterable[Any]) -> Row:
    pairs = [pair for pair, stays in zip(zip(queries, scores, strict=True), mask, strict=True) if stays]
    return {QUERIES: [query for query, _ in pairs], SCORES: [score for _, score in pairs]}


class TopShareFilter:
    """Second pass over scored lines: keep a share of all queries, the best by score; of equal ones the first.

    The number is rounded up. In memory are the scores alone, 4 bytes per query.
    counts: receives "min_score", the lowest score that is kept
    """

    def __init__(self, share: float, counts: dict[str, Any], *, with_scores: bool) -> None:
        self._share, self._counts, self._with_scores = share, counts, with_scores

    def __call__(self, lines: Callable[[], Iterator[bytes]]) -> Iterator[WindowResult]:
        """Yield the lines with the queries that are kept. `lines` is called twice."""
        values = array("f")
        for line in lines():
            values.extend(orjson.loads(line)[SCORES])
        scores = np.frombuffer(values, dtype=np.float32)
        number = ceil(Fraction(str(self._share)) * len(scores))  # 0.7 of 10 is 7: 7.000000000000001 would make it 8
        least, ties = find_lowest_kept(scores, number)
        if number:
            self._counts["min_score"] = float(str(least))  # the digits that `min_score` takes
            log(f"keeping {number:,} of {len(scores):,} queries; their lowest score is {self._counts['min_score']}")
        stream = lines()
        while window := list(islice(stream, _WINDOW)):
            made, kept = [], 0
            for line in window:
                row = orjson.loads(line)
                marks = np.array(row[SCORES], dtype=np.float32)
                equal = marks == least
                mask = (marks > least) | (equal & (np.cumsum(equal) <= ties))
                ties -= int(np.count_nonzero(equal & mask))
                row |= _select(row[QUERIES], row[SCORES], mask)
                kept += len(row[QUERIES])
                if not self._with_scores:
                    del row[SCORES]
                made.append(dump(row))
            yield WindowResult(made, {"kept": kept})


def find_lowest_kept(scores: np.ndarray, number: int) -> tuple[np.float32, int]:
    """Return the lowest of the `number` best scores, and how many of those equal it. Reorders `scores`.

    scores: (n,), float32; number: at most n
    """
    if not number:
        return np.float32(inf), 0
    place = len(scores) - number
    scores.partition(place)
    least = scores[place]
    return least, number - int(np.count_nonzero(scores > least))
