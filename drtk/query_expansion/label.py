"""Label candidate expansions with the rank of the first passage that contains an answer (EAR)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

from drtk.data.checks import PASSAGES, WITHOUT_TEXT
from drtk.data.rows import dump
from drtk.indexing.base import Ranking
from drtk.models.generator_input import format_passage
from drtk.query_expansion.candidates import ExpansionLine
from drtk.query_expansion.config import LabelSettings
from drtk.records import Expansion, Passage, Query
from drtk.retrieval.search import PassageSearcher
from drtk.runtime.filter_job import BatchResult
from drtk.runtime.progress import warn
from drtk.text.answers import MATCHERS
from drtk.text.expanded_text import expand_query


class AnswerCheck:
    """Check for `iter_expansion_lines` that the query of a candidate has an answer that can be matched.

    Logs one warning for each answer that is not a valid regular expression.
    """

    def __init__(self, match: str) -> None:
        self._match = match
        self._problems: dict[str, str | None] = {}  # by query id

    def __call__(self, _: Expansion, query: Query) -> str | None:
        if query.id not in self._problems:
            self._problems[query.id] = self._find_problem(query)
        return self._problems[query.id]

    def _find_problem(self, query: Query) -> str | None:
        if not query.answers:
            return f"query '{query.id}' has no answers to label candidates with; add \"answers\": […] to its record"
        matcher = MATCHERS[self._match](query.answers)
        for pattern in getattr(matcher, "invalid", ()):
            warn(f"query '{query.id}': '{pattern}' is not a valid regular expression and matches nothing")
        return None if matcher else f"none of the answers of query '{query.id}' can be matched"


class Labeler:
    """Labeler of batches of candidates; matches the answers of a batch while it searches the next batch."""

    def __init__(self, searcher: PassageSearcher, settings: LabelSettings) -> None:
        self._searcher, self._settings = searcher, settings

    def label(self, batches: Iterator[list[ExpansionLine]]) -> Generator[BatchResult, None, None]:
        """Yield the result of each batch, in order."""
        pending: Future[BatchResult] | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="drtk-label") as pool:
            for batch in batches:
                queries = [expand_query(line.query.text, line.expansion.text) for line in batch]
                rankings = self._searcher.search(queries, self._settings.depth)
                if pending is not None:
                    yield pending.result()
                pending = pool.submit(self._label_batch, batch, rankings, len(set(queries)))
            if pending is not None:
                yield pending.result()

    def _label_batch(
        self, batch: Sequence[ExpansionLine], rankings: Sequence[Ranking], num_searched: int
    ) -> BatchResult:
        lines = []
        counts = Counter({"searched": num_searched, "find an answer": 0})
        matcher: _AnswerMatcher | None = None  # not shared by batches, so that a resumed run has the same counts
        for line, ranking in zip(batch, rankings, strict=True):
            if matcher is None or matcher.query != line.query:
                matcher = _AnswerMatcher(line.query, self._searcher, self._settings, counts)
            rank = next((rank for rank, (id, _) in enumerate(ranking, start=1) if matcher.contains_answer(id)), None)
            counts["find an answer"] += rank is not None
            top1 = None
            if self._settings.top1:
                passage = matcher.get_passage(ranking[0][0]) if ranking else Passage("", "")
                top1 = {"title": passage.title, "text": passage.text}
            rank = rank or self._settings.max_rank
            lines.append(dump(replace(line.expansion, rank=rank, depth=self._settings.depth, top1=top1)))
        return BatchResult(lines, dict(counts))


class _AnswerMatcher:
    """Matcher of passages with the answers of one query; reads and matches each passage once for all candidates."""

    def __init__(self, query: Query, searcher: PassageSearcher, settings: LabelSettings, counts: Counter[str]) -> None:
        self.query = query
        self._title, self._counts = "join" if settings.match_title else "none", counts
        self._contains: Any = MATCHERS[settings.match](query.answers or ())
        self.get_passage = cache(searcher.get_passage)
        self._has_answer: dict[str, bool] = {}  # by passage id

    def contains_answer(self, id: str) -> bool:
        """Return whether the text of a passage (with `match_title`: title and text) contains an answer."""
        if id not in self._has_answer:
            text = format_passage(self.get_passage(id), self._title)
            self._has_answer[id] = bool(self._contains(text))
            self._counts[PASSAGES] += 1
            if not text.strip():
                self._counts[WITHOUT_TEXT] += 1
        return self._has_answer[id]
