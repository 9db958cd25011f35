"""Label expansions with the rank at which they retrieve an answer (EAR)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from drtk.data.checks import PASSAGES, WITHOUT_TEXT
from drtk.data.jsonl import dump
from drtk.indexing.base import Ranking
from drtk.query_expansion.candidates import ExpansionLine
from drtk.query_expansion.config import LabelSettings
from drtk.records import Expansion, Passage, Query
from drtk.retrieval.search import PassageSearcher
from drtk.runtime.filter_job import WindowResult
from drtk.runtime.progress import warn
from drtk.text.answers import MATCHERS
from drtk.text.expanded_text import expand_query

PROGRAM = "rerank-queries label"  # in its manifests


class AnswerCheck:
    """Check that the query of a candidate has an answer that could match; a check for `iter_candidates`.

    Warns once about each pattern that is no regular expression; it matches nothing.
    """

    def __init__(self, match: str) -> None:
        self._match = match
        self._known: dict[str, str | None] = {}

    def __call__(self, _: Expansion, query: Query) -> str | None:
        if query.id not in self._known:
            self._known[query.id] = self._find_problem(query)
        return self._known[query.id]

    def _find_problem(self, query: Query) -> str | None:
        if not query.answers:
            return f"question '{query.id}' has no answers, so that nothing can be labelled"
        matching = MATCHERS[self._match](query.answers)
        for pattern in getattr(matching, "invalid", ()):
            warn(f"question '{query.id}': '{pattern}' is no regular expression and matches nothing")
        return None if matching else f"none of the answers of '{query.id}' can be matched"


class Labeler:
    """Label windows of candidates. The answers of a window are matched while the next one is searched.

    searched: number of distinct queries
    """

    def __init__(self, texts: PassageSearcher, settings: LabelSettings) -> None:
        self._searcher, self._settings = texts, settings
        self._began = 0.0
        self.searched = 0

    @property
    def seconds(self) -> float:
        """Seconds since the first search began."""
        return time.monotonic() - self._began if self._began else 0.0

    def pump(self, windows: Iterator[list[ExpansionLine]]) -> Generator[WindowResult, None, None]:
        """Yield the result of each window, in order."""
        waiting: Future[WindowResult] | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="drtk-label") as pool:
            for window in windows:
                self._began = self._began or time.monotonic()
                texts = [expand_query(each.query.text, each.expansion.text) for each in window]
                searched = len(set(texts))
                self.searched += searched
                rankings = self._searcher.search(texts, self._settings.depth)
                if waiting is not None:
                    yield waiting.result()
                waiting = pool.submit(self._label, window, rankings, searched)
            if waiting is not None:
                yield waiting.result()

    def _label(self, window: Sequence[ExpansionLine], rankings: Sequence[Ranking], searched: int) -> WindowResult:
        lines = []
        counts = Counter({"searched": searched, "find an answer": 0})
        question: _AnswerMatcher | None = None  # of this window alone, so counts do not depend on where a run began
        for each, ranking in zip(window, rankings, strict=True):
            if question is None or question.query != each.query:
                question = _AnswerMatcher(each.query, self._searcher, self._settings, counts)
            rank = next((rank for rank, (id, _) in enumerate(ranking, start=1) if question.contains_answer(id)), None)
            counts["find an answer"] += rank is not None
            top1 = None
            if self._settings.top1:
                first = question.get_passage(ranking[0][0]) if ranking else Passage("", "")
                top1 = {"title": first.title, "text": first.text}
            rank = rank or self._settings.max_rank
            lines.append(dump(replace(each.expansion, rank=rank, depth=self._settings.depth, top1=top1)))
        return WindowResult(lines, dict(counts))


class _AnswerMatcher:
    """A question whose candidates retrieve many passages in common: each is read and matched once."""

    def __init__(self, query: Query, texts: PassageSearcher, settings: LabelSettings, counts: Counter[str]) -> None:
        self.query = query
        self._searcher, self._with_title, self._counts = texts, settings.match_title, counts
        self._contains: Any = MATCHERS[settings.match](query.answers or ())
        self._passages: dict[str, Passage] = {}
        self._answered: dict[str, bool] = {}

    def get_passage(self, id: str) -> Passage:
        if id not in self._passages:
            self._passages[id] = self._searcher.get_passage(id)
        return self._passages[id]

    def contains_answer(self, id: str) -> bool:
        """Return whether a passage contains an answer: in its text, or with `match_title` in title and text together."""
        if id not in self._answered:
            passage = self.get_passage(id)
            text = f"{passage.title} {passage.text}" if self._with_title and passage.title else passage.text
            self._answered[id] = bool(self._contains(text))
            self._counts[PASSAGES] += 1
            if not text.strip():
                self._counts[WITHOUT_TEXT] += 1
        return self._answered[id]
