"""Label expansions with the rank at which they find an answer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from drtk.data.checks import PASSAGES, TEXTLESS
from drtk.data.jsonl import dump
from drtk.errors import UsageError
from drtk.indexing.base import Ranking
from drtk.query_expansion.candidates import Asked
from drtk.query_expansion.config import LabelSettings
from drtk.records import Expansion, Passage, Query
from drtk.retrieval.search import PassageSearcher
from drtk.runtime.filter_job import Done
from drtk.runtime.integrity import read_json
from drtk.runtime.manifest import is_manifest, manifest_path
from drtk.runtime.progress import warn
from drtk.runtime.streams import is_stream, name_of
from drtk.text.answers import MATCHES
from drtk.text.expanded_text import expanded_query

MAKER = "rerank-queries label"  # "program" of its manifests


class LabelDepths:
    """The rank beyond which no answer was looked for, of the candidates of one file; a check for `read_candidates`.

    usual: of candidates that do not say it themselves: what the manifest beside `source` says, or else `given`, or `otherwise`
    given: what --depth says; check: told each depth when it is first seen
    told: sources of which it was said that their depth is assumed; one file may be read several times
    Raises UsageError where --depth and the labels both say something, and not the same; what `check` raises.
    """

    def __init__(
        self, source: str, *, given: int | None, otherwise: int, check: Callable[[int], None], told: set[str]
    ) -> None:
        self._source, self._given, self._check, self._told = source, given, check, told
        noted = None if is_stream(source) else _noted(source)
        self._guessed = noted is None and given is None
        self._seen: set[int] = set()
        self._question = ""
        self._of_kind: dict[str, int] = {}
        if noted is not None:
            self._see(noted)
        self.usual = next(depth for depth in (noted, given, otherwise) if depth is not None)

    def __call__(self, expansion: Expansion, query: Query) -> str | None:
        """What is wrong with a candidate's depth: nothing, or that it is not that of the others in its list.

        Lists may differ among each other, as pairs are made within one alone. Within one, a candidate that finds nothing
        among 10 passages cannot be told from one that finds something at rank 50.
        """
        depth = expansion.depth or self.usual
        if expansion.depth is not None:
            self._see(depth)
        elif self._guessed:
            self._see(depth)
            self._tell(expansion)
        if query.id != self._question:
            self._question, self._of_kind = query.id, {}
        first = self._of_kind.setdefault(expansion.kind, depth)
        if depth == first:
            return None
        return (
            f"'{expansion.id}' was looked at to depth {depth}, those before it of '{query.id}' for '{expansion.kind}' "
            f"to depth {first}: their ranks cannot be compared; label them alike"
        )

    def _tell(self, expansion: Expansion) -> None:
        if self._source in self._told:
            return
        self._told.add(self._source)
        warn(
            f"{name_of(self._source)}: nothing says how deep was looked for answers ('{expansion.id}' has no 'depth'); "
            f"{self.usual} is assumed, so that greater ranks mean none found (--depth says otherwise)"
        )

    def _see(self, depth: int) -> None:
        if depth in self._seen:
            return
        self._seen.add(depth)
        if self._given not in (None, depth):
            raise UsageError(f"--depth {self._given}: {name_of(self._source)} was labelled with --depth {depth}")
        self._check(depth)


def _noted(source: str) -> int | None:
    path = manifest_path(source)
    if not path.is_file():
        return None
    content: Any = read_json(path)
    if not is_manifest(content) or content.get("program") != MAKER:
        return None
    depth = content["settings"].get("depth")
    return depth if isinstance(depth, int) else None


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

    def __init__(self, texts: PassageSearcher, settings: LabelSettings) -> None:
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

    def __init__(
        self, query: Query, texts: PassageSearcher, settings: LabelSettings, looked_into: Counter[str]
    ) -> None:
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
