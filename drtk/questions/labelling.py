"""The rank at which an expanded question finds an answer: what EAR learns to predict (methods, section 7.4)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from drtk.io.candidates import Asked
from drtk.io.filtering import Done
from drtk.io.jsonl import dump
from drtk.io.progress import warn
from drtk.io.textless import PASSAGES, TEXTLESS
from drtk.records import Expansion, Passage, Query
from drtk.retrieval.base import Ranking
from drtk.retrieval.found_texts import FoundTexts
from drtk.settings.query_reranking import LabelSettings
from drtk.text.answers import MATCHES
from drtk.text.expanded_query import expanded_query


class AnswerCheck:
    """What is wrong with a candidate's question for labelling: nothing, or no answer that could be found in a passage.

    A pattern that is no regular expression is told once, with a warning; it matches nothing.
    """

    def __init__(self, match: str) -> None:
        self._match = match
        self._known: dict[str, str | None] = {}

    def __call__(self, _: Expansion, query: Query) -> str | None:
        if query.id not in self._known:
            self._known[query.id] = self._problem(query)
        return self._known[query.id]

    def _problem(self, query: Query) -> str | None:
        if not query.answers:
            return f"question '{query.id}' has no answers, so that nothing can be labelled"
        matching = MATCHES[self._match](query.answers)
        for pattern in getattr(matching, "invalid", ()):
            warn(f"question '{query.id}': '{pattern}' is no regular expression and matches nothing")
        return None if matching else f"none of the answers of '{query.id}' can be looked for"


class Labelling:
    """Windows of candidates to windows of labelled ones; the answers of one are looked for while the next is searched.

    searched: different queries; seconds: since the first search
    """

    def __init__(self, texts: FoundTexts, settings: LabelSettings) -> None:
        self._texts, self._settings = texts, settings
        self._question: _Question | None = None
        self._looked_into: Counter[str] = Counter()
        self._began = 0.0
        self.searched = 0

    @property
    def seconds(self) -> float:
        """Since the first search began."""
        return time.monotonic() - self._began if self._began else 0.0

    def pump(self, windows: Iterator[list[Asked]]) -> Generator[Done, None, None]:
        """What each window becomes, in order."""
        waiting: Future[Done] | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="drtk-label") as pool:
            for window in windows:
                self._began = self._began or time.monotonic()
                rankings, searched = self._search(window)
                if waiting is not None:
                    yield waiting.result()
                waiting = pool.submit(self._labelled, window, rankings, searched)
            if waiting is not None:
                yield waiting.result()

    def _search(self, window: Sequence[Asked]) -> tuple[list[Ranking], int]:
        texts = [expanded_query(each.query.text, each.expansion.text) for each in window]
        searched = len(set(texts))
        self.searched += searched
        return self._texts.search(texts, self._settings.depth), searched

    def _labelled(self, window: Sequence[Asked], rankings: Sequence[Ranking], searched: int) -> Done:
        lines, found = [], 0
        self._question = None  # begins anew, so that the counts of a window are its own, wherever a run began
        self._looked_into = Counter()
        for each, ranking in zip(window, rankings, strict=True):
            rank = self._rank(each.query, ranking)
            found += rank is not None
            top1 = self._first(ranking) if self._settings.top1 else None
            rank = rank or self._settings.max_rank
            lines.append(dump(replace(each.expansion, rank=rank, depth=self._settings.depth, top1=top1)))
        counts = {"searched": searched, "find an answer": found}
        return Done(lines, counts | dict(self._looked_into))

    def _rank(self, query: Query, ranking: Ranking) -> int | None:
        """The rank, from 1, of the first passage with an answer."""
        if self._question is None or self._question.query != query:
            self._question = _Question(query, self._texts, self._settings, self._looked_into)
        question = self._question
        return next((rank for rank, (id, _) in enumerate(ranking, start=1) if question.answered_by(id)), None)

    def _first(self, ranking: Ranking) -> dict[str, str]:
        """Title and text of the first passage; empty where nothing was found."""
        assert self._question is not None
        first = self._question.passage(ranking[0][0]) if ranking else Passage("", "")
        return {"title": first.title, "text": first.text}


class _Question:
    """A question whose candidates find many passages in common: each is read and looked through once."""

    def __init__(self, query: Query, texts: FoundTexts, settings: LabelSettings, looked_into: Counter[str]) -> None:
        self.query = query
        self._texts, self._title = texts, settings.match_title
        self._contains: Any = MATCHES[settings.match](query.answers or ())
        self._passages: dict[str, Passage] = {}
        self._answered: dict[str, bool] = {}
        self._looked_into = looked_into

    def passage(self, id: str) -> Passage:
        if id not in self._passages:
            self._passages[id] = self._texts.passage(id)
        return self._passages[id]

    def answered_by(self, id: str) -> bool:
        """Whether a passage contains an answer: in its text, or with --match-title in title and text together."""
        if id not in self._answered:
            passage = self.passage(id)
            text = f"{passage.title} {passage.text}" if self._title and passage.title else passage.text
            self._answered[id] = bool(self._contains(text))
            self._looked_into[PASSAGES] += 1
            if not text.strip():
                self._looked_into[TEXTLESS] += 1
        return self._answered[id]
