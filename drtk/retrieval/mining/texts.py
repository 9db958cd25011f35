"""Checks that read passages: does one hold an answer, does one say what a positive says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any
from zlib import crc32

from drtk.io.store import CorpusStore
from drtk.io.textless import PASSAGES, TEXTLESS
from drtk.records import Passage
from drtk.retrieval.mining.pool import Pool
from drtk.text.answers import MATCHES

_WORD = re.compile(r"\w+")
RUN = 3  # words of a shingle
LOOKED_INTO = "looked into for answers"  # counts: passages, and those without a text


class Texts:
    """Passages by id, those of one window of queries kept. Raises MismatchError for an id the corpus lacks."""

    def __init__(self, corpus: str) -> None:
        self._store = CorpusStore.open(corpus)
        self._held: dict[str, Passage] = {}

    def __getitem__(self, id: str) -> Passage:
        return self._held[id]

    def hold(self, ids: Iterable[str]) -> None:
        """Have these passages at hand."""
        wanted = [id for id in dict.fromkeys(ids) if id not in self._held]
        self._held |= zip(wanted, self._store.many(wanted), strict=True)

    def forget(self) -> None:
        """Let the window's passages go."""
        self._held.clear()


def shingles(text: str) -> frozenset[int]:
    """Hashes of the runs of three words of a text, lower case, without what is no word; of a shorter text one run."""
    words = _WORD.findall(text.lower())
    if not words:
        return frozenset()
    runs = (words[at : at + RUN] for at in range(max(1, len(words) - RUN + 1)))
    return frozenset(crc32(" ".join(run).encode()) for run in runs)


def overlap(one: frozenset[int], other: frozenset[int]) -> float:
    """Shared runs of all runs of two texts (Broder's resemblance), 0 to 1; two texts without a word are the same."""
    together = len(one | other)
    return len(one & other) / together if together else 1.0


class AnswerCheck:
    """1 where a passage contains an answer of the query (methods: section 8.5), else 0.

    Queries without answers are passed over. counts: told how many passages were looked into, and how many had no text
    """

    name = "answer"

    def __init__(self, texts: Texts, match: str, *, title: bool, counts: dict[str, Any]) -> None:
        self._texts, self._match, self._title = texts, MATCHES[match], title
        self._counts = counts

    def measure(self, pools: Sequence[Pool], wanted: Sequence[Sequence[str]]) -> None:
        """Mark the wanted passages of each query."""
        self._texts.hold(id for ids in wanted for id in ids)
        counts = self._counts.setdefault(LOOKED_INTO, {PASSAGES: 0, TEXTLESS: 0})
        for pool, ids in zip(pools, wanted, strict=True):
            query = pool.asked.query
            contains = self._match((query.answers if query else None) or ())
            if contains:
                for id in ids:
                    body = self._body(id)
                    pool.mark(id, self.name, float(contains(body)))
                    counts[TEXTLESS] += not body.strip()
                counts[PASSAGES] += len(ids)

    def _body(self, id: str) -> str:
        passage = self._texts[id]
        return f"{passage.title} {passage.text}" if self._title and passage.title else passage.text

    def limit(self, _: Pool) -> float:
        """What holds an answer is no negative."""
        return 1.0

    def is_beyond(self, value: float, limit: float) -> bool:
        """Whether a passage is to go."""
        return value >= limit


class OverlapCheck:
    """The largest overlap of a passage with a positive of its query, in runs of three words of the text."""

    name = "overlap"

    def __init__(self, texts: Texts, limit: float | None = None) -> None:
        self._texts, self._limit = texts, limit
        self._shingles = lru_cache(maxsize=20_000)(lambda passage_id: shingles(texts[passage_id].text))

    def measure(self, pools: Sequence[Pool], wanted: Sequence[Sequence[str]]) -> None:
        """Mark the wanted passages of each query."""
        self._texts.hold(id for pool, ids in zip(pools, wanted, strict=True) for id in (*pool.positives, *ids))
        for pool, ids in zip(pools, wanted, strict=True):
            of_positives = [self._shingles(id) for id in pool.positives]
            for id in ids:
                mine = self._shingles(id)
                pool.mark(id, self.name, max((overlap(mine, theirs) for theirs in of_positives), default=0.0))

    def limit(self, _: Pool) -> float | None:
        """What shares this much goes."""
        return self._limit

    def is_beyond(self, value: float, limit: float) -> bool:
        """Whether a passage is to go."""
        return value >= limit
