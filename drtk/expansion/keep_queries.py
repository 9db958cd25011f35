"""Which written queries stay: those with the best scores of all, or with a score that is high enough (doc2query--)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from math import ceil, inf, isfinite
from typing import Any

import numpy as np
import orjson

from drtk.data.jsonl import dump
from drtk.data.rows import Row, strings_of
from drtk.errors import RecordError, UsageError
from drtk.expansion.config import KeepSettings
from drtk.records import Passage
from drtk.runtime.filter_job import Done
from drtk.runtime.inputs import Intake
from drtk.runtime.progress import log
from drtk.runtime.runners import BatchFunction
from drtk.runtime.streams import name_of

QUERIES, SCORES = "queries", "query_scores"
_WINDOW = 1000  # lines of the second pass worked on together


def check_keeping(settings: KeepSettings, *, written: bool) -> bool:
    """Whether queries are to be scored or dropped at all. Raises UsageError for a wish that cannot be meant.

    written: the input holds queries already, and maybe their scores; otherwise scores come from a scorer alone
    """
    filters = [
        flag for flag, value in (("--keep", settings.keep), ("--min-score", settings.min_score)) if value is not None
    ]
    of_the_scorer = (
        ("--scorer-title", settings.scorer_title is not None),
        ("--scorer-logits", settings.scorer_logits),
        ("--scorer-batch-tokens", settings.scorer_batch_tokens is not None),
        ("--scorer-dtype", settings.scorer_dtype != KeepSettings.scorer_dtype),
    )
    for flag, changed in of_the_scorer:
        if changed and not settings.scorer:
            raise UsageError(f"{flag}: only with --scorer")
    if len(filters) > 1:
        raise UsageError("--keep and --min-score: one of them decides")
    if settings.keep == 0:
        raise UsageError("--keep 0: keeps nothing; a share above 0 is needed")
    wishes = filters + ["--scores"] * settings.scores
    if settings.scorer and not wishes:
        raise UsageError("--scorer: say what the scores are for: --keep SHARE, --min-score X or --scores")
    if written and not settings.scorer and not filters:
        raise UsageError(
            "nothing to do: --keep SHARE and --min-score X drop queries, --scorer MODEL --scores scores them"
        )
    if wishes and not settings.scorer and not written:
        raise UsageError(f"{wishes[0]} needs a cross-encoder: --scorer MODEL")
    return bool(wishes)


def with_queries(passages: Iterable[Passage], source: str, intake: Intake, *, scored: bool) -> Iterator[Passage]:
    """The passages, all of which hold queries, and with `scored` a score for each.

    Raises RecordError (file:line) for one that does not, unless `intake` forgives it.
    """
    for passage in passages:
        try:
            queries = queries_of(passage)
            if scored:
                _scores_of(passage, len(queries))
        except ValueError as error:
            intake.forgive(RecordError(f"{name_of(source)}:{intake.line}", str(error)))
            continue
        yield passage


def queries_of(passage: Passage) -> tuple[str, ...]:
    """The queries of a passage. Raises ValueError where it has none."""
    if QUERIES not in passage.extra:
        raise ValueError(f"'{QUERIES}' is missing; drtk doc2query writes it")
    return strings_of(passage.extra[QUERIES], QUERIES)


class KeepWritten(BatchFunction):
    """Queries with the scores they have, dropped as `settings` say."""

    def __init__(self, settings: KeepSettings, bare: bool) -> None:
        self._settings, self._bare = settings, bare

    def __call__(self, prepared: list[Passage]) -> Done:
        """The window's passages, in order, as JSON lines."""
        scores = [score for passage in prepared for score in passage.extra[SCORES]]
        done = judged(prepared, list(map(queries_of, prepared)), scores, self._settings, bare=self._bare)
        return Done(done.lines, {"queries": len(scores)} | done.counts)


def _scores_of(passage: Passage, number: int) -> None:
    if SCORES not in passage.extra:
        raise ValueError(f"'{SCORES}' is missing; --scorer MODEL makes it")
    scores = passage.extra[SCORES]
    if not isinstance(scores, list) or not all(type(score) in (int, float) and isfinite(score) for score in scores):
        raise ValueError(f"'{SCORES}' must be a list of numbers")
    if len(scores) != number:
        raise ValueError(f"'{SCORES}' has {len(scores)} entries for {number} queries")


def judged(
    passages: Sequence[Passage],
    queries: Sequence[Sequence[str]],
    scores: Sequence[float],
    settings: KeepSettings,
    *,
    bare: bool,
) -> Done:
    """The passages as lines with those of their queries that stay; where a share of all is kept, that is for `BestShare`.

    scores: of all queries, one after the other
    """
    lines, at, kept = [], 0, 0
    least = -inf if settings.min_score is None else settings.min_score
    for passage, texts in zip(passages, queries, strict=True):
        found = scores[at : at + len(texts)]
        at += len(texts)
        row = _chosen(texts, found, [score >= least for score in found])
        kept += len(row[QUERIES])
        extra = passage.extra | row
        if not settings.scores and settings.keep is None:
            del row[SCORES], extra[SCORES]
        lines.append(dump({"_id": passage.id} | row if bare else replace(passage, extra=extra)))
    return Done(lines, {} if settings.keep is not None else {"kept": kept})


def _chosen(queries: Sequence[str], scores: Sequence[float], stay: Iterable[Any]) -> Row:
    pairs = [pair for pair, stays in zip(zip(queries, scores, strict=True), stay, strict=True) if stays]
    return {QUERIES: [query for query, _ in pairs], SCORES: [score for _, score in pairs]}


class BestShare:
    """The second pass over scored lines: a share of all their queries stays, the best by score.

    share N of them stay, rounded up to a whole number; of those that have the lowest score to stay, the first of the input.
    In memory are the scores alone, 4 bytes a query. counts: of the job; receives "min_score", which the rest has at least.
    """

    def __init__(self, settings: KeepSettings, counts: dict[str, Any]) -> None:
        assert settings.keep is not None
        self._share, self._with_scores, self._counts = settings.keep, settings.scores, counts

    def __call__(self, lines: Callable[[], Iterator[bytes]]) -> Iterator[Done]:
        """The lines without the queries that go. `lines` is asked twice."""
        scores = array("f")
        for line in lines():
            scores.extend(orjson.loads(line)[SCORES])
        found = np.frombuffer(scores, dtype=np.float32)
        number = ceil(Fraction(str(self._share)) * len(found))  # 0.7 of 10 is 7: 7.000000000000001 would make it 8
        least, ties = lowest_to_stay(found, number)
        if number:
            self._counts["min_score"] = float(str(least))  # the digits that --min-score takes
            log(f"keeping {number:,} of {len(found):,} queries; their lowest score is {self._counts['min_score']}")
        stream = lines()
        while window := list(islice(stream, _WINDOW)):
            made, kept = [], 0
            for line in window:
                row = orjson.loads(line)
                marks = np.array(row[SCORES], dtype=np.float32)
                equal = marks == least
                stay = (marks > least) | (equal & (np.cumsum(equal) <= ties))
                ties -= int(np.count_nonzero(equal & stay))
                row |= _chosen(row[QUERIES], row[SCORES], stay)
                kept += len(row[QUERIES])
                if not self._with_scores:
                    del row[SCORES]
                made.append(dump(row))
            yield Done(made, {"kept": kept})


def lowest_to_stay(scores: np.ndarray, number: int) -> tuple[np.float32, int]:
    """The lowest score among the `number` best, and how many that have it are among them. Puts `scores` into another order.

    scores: (n,), float32; number: at most n
    """
    if not number:
        return np.float32(inf), 0
    place = len(scores) - number
    scores.partition(place)
    least = scores[place]
    return least, number - int(np.count_nonzero(scores > least))
