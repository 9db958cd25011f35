"""Filters that measure passages: answers, shared words, vectors, a cross-encoder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np

from drtk.data.checks import PASSAGES, TEXTLESS
from drtk.data.corpus_store import CorpusStore
from drtk.data.embeddings import KIND, Shard, check_finite, read_shards
from drtk.errors import DrtkError, MismatchError
from drtk.indexing.vectors import unit_length
from drtk.mining.candidates import CE, Pool
from drtk.mining.filters import LOOKED_UP, ContentFilter
from drtk.records import Passage
from drtk.runtime.integrity import hash_id
from drtk.runtime.manifest import read_manifest
from drtk.text.answers import MATCHERS


class PassageTexts:
    """Passages by id; those of one window of queries stay in memory. Raises MismatchError for an unknown id."""

    def __init__(self, corpus: str) -> None:
        self._store = CorpusStore.open(corpus)
        self._loaded: dict[str, Passage] = {}

    def __getitem__(self, id: str) -> Passage:
        return self._loaded[id]

    def load(self, ids: Iterable[str]) -> None:
        """Read these passages."""
        new = [id for id in dict.fromkeys(ids) if id not in self._loaded]
        self._loaded |= zip(new, self._store.get_many(new), strict=True)

    def clear(self) -> None:
        """Forget the passages of this window."""
        self._loaded.clear()


class AnswerFilter(ContentFilter):
    """1 if a passage contains an answer of the query (docs/methods/evaluation.md), else 0; nothing for queries without answers.

    counts: receives the number of passages, and of those without text.
    """

    name = "answer"

    def __init__(self, texts: PassageTexts, match: str, *, title: bool, counts: dict[str, Any]) -> None:
        super().__init__(1.0)
        self._texts, self._match, self._title, self._counts = texts, MATCHERS[match], title, counts

    def measure(self, pools: Sequence[Pool], ids: Sequence[Sequence[str]]) -> None:
        self._texts.load(id for some in ids for id in some)
        counts = self._counts.setdefault(LOOKED_UP, {PASSAGES: 0, TEXTLESS: 0})
        for pool, some in zip(pools, ids, strict=True):
            query = pool.query.query
            contains_answer = self._match((query.answers if query else None) or ())
            if contains_answer:
                for id in some:
                    passage = self._texts[id]
                    text = f"{passage.title} {passage.text}" if self._title and passage.title else passage.text
                    pool.set_value(id, self.name, float(contains_answer(text)))
                    counts[TEXTLESS] += not text.strip()
                counts[PASSAGES] += len(some)


SHINGLE = 3  # words
_WORD = re.compile(r"\w+")


def shingles(text: str) -> frozenset[int]:
    """Return the hashes of all sequences of three words, lowercase, without punctuation; a shorter text is one sequence."""
    words = _WORD.findall(text.lower())
    if not words:
        return frozenset()
    sequences = (words[at : at + SHINGLE] for at in range(max(1, len(words) - SHINGLE + 1)))
    return frozenset(crc32(" ".join(sequence).encode()) for sequence in sequences)


def compute_overlap(one: frozenset[int], other: frozenset[int]) -> float:
    """Return Broder's resemblance: shared shingles / all shingles, 0 to 1; 1 for two texts without words."""
    union = len(one | other)
    return len(one & other) / union if union else 1.0


class OverlapFilter(ContentFilter):
    """The largest overlap of a passage's text with a positive, in shingles of three words."""

    name = "overlap"

    def __init__(self, texts: PassageTexts, max_value: float | None = None) -> None:
        super().__init__(max_value)
        self._texts = texts
        self._shingles = lru_cache(maxsize=20_000)(lambda passage: shingles(texts[passage].text))

    def measure(self, pools: Sequence[Pool], ids: Sequence[Sequence[str]]) -> None:
        self._texts.load(id for pool, some in zip(pools, ids, strict=True) for id in (*pool.positives, *some))
        for pool, some in zip(pools, ids, strict=True):
            positives = [self._shingles(id) for id in pool.positives]
            for id in some:
                mine = self._shingles(id)
                pool.set_value(id, self.name, max((compute_overlap(mine, one) for one in positives), default=0.0))


class VectorsById:
    """The vectors of an embeddings folder of passages, by id. They stay on disk; memory is 16 bytes an id.

    Ids are looked up by 64-bit hash. Raises MismatchError for a folder of queries.
    """

    def __init__(self, folder: str) -> None:
        if read_manifest(folder, kind=KIND).get("role", "passage") != "passage":
            raise MismatchError(f"{folder}: has vectors of queries; expected those of passages")
        self.folder = folder
        self._shards = [shard for shard in read_shards(folder) if shard.rows]
        self._starts = np.cumsum([0, *(shard.rows for shard in self._shards)])
        keys = np.empty(int(self._starts[-1]), dtype=np.uint64)
        for start, shard in zip(self._starts.tolist(), self._shards, strict=False):
            ids = Shard(
                shard.folder, shard.number, shard.rows, shard.dimension
            ).ids  # a copy: `shard` would keep its ids
            keys[start : start + shard.rows] = np.fromiter(map(hash_id, ids), dtype=np.uint64, count=shard.rows)
        self._rows: np.ndarray = np.argsort(keys, kind="stable")  # (passages,)
        self._keys: np.ndarray = keys[self._rows]  # (passages,), ascending

    def take(self, ids: Sequence[str]) -> np.ndarray:
        """Return unit vectors (ids, dimension), float32. Raises MismatchError for ids without a vector."""
        wanted = np.fromiter(map(hash_id, ids), dtype=np.uint64, count=len(ids))
        places = np.minimum(self._keys.searchsorted(wanted), max(len(self._keys) - 1, 0))
        known = self._keys[places] == wanted if len(self._keys) else np.zeros(len(ids), dtype=bool)
        if not known.all():
            missing = [id for id, is_known in zip(ids, known.tolist(), strict=True) if not is_known]
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise MismatchError(f"{self.folder}: has no vector of '{missing[0]}'{more}")
        rows = self._rows[places]
        vectors = np.empty((len(ids), self._shards[0].dimension if self._shards else 0), dtype=np.float32)
        for number in np.unique(np.searchsorted(self._starts, rows, side="right") - 1).tolist():
            mine = np.flatnonzero((rows >= self._starts[number]) & (rows < self._starts[number + 1]))
            mine = mine[np.argsort(rows[mine], kind="stable")]  # in the order on disk
            shard, rows_in = self._shards[number], rows[mine] - self._starts[number]
            vectors[mine] = shard.vectors[rows_in]
            check_finite(shard, vectors[mine], rows_in)
        return unit_length(vectors)


class CosineFilter(ContentFilter):
    """The largest cosine of a passage's vector with that of a positive."""

    name = "cosine"

    def __init__(self, vectors: VectorsById, max_value: float | None = None) -> None:
        super().__init__(max_value)
        self._vectors = vectors

    def measure(self, pools: Sequence[Pool], ids: Sequence[Sequence[str]]) -> None:
        pairs = list(zip(pools, ids, strict=True))
        row = {
            id: at for at, id in enumerate(dict.fromkeys(id for pool, some in pairs for id in (*some, *pool.positives)))
        }
        vectors = self._vectors.take(list(row))
        for pool, some in pairs:
            if some and pool.positives:
                mine = vectors[[row[id] for id in some]]  # (passages, dimension)
                positives = vectors[[row[id] for id in pool.positives]]  # (positives, dimension)
                for id, value in zip(some, (mine @ positives.T).max(axis=1).tolist(), strict=True):
                    pool.set_value(id, self.name, value)


class CrossEncoderFilter(ContentFilter):
    """How well a passage answers its query, as a cross-encoder scores it.

    scorer: a `models.cross_encoder.Scorer`; None: the scores that examples bring along. margin: negatives score at least
    this much below the lowest reference. max_value: no negative scores more. title: as `models.generator_input.text_of`.
    Raises MismatchError for a margin that no two scores of the scorer can have, DrtkError for a missing score.
    """

    name = CE

    def __init__(
        self,
        scorer: Any,
        texts: PassageTexts | None,
        *,
        margin: float | None = None,
        max_value: float | None = None,
        title: str = "join",
    ) -> None:
        super().__init__(max_value)
        self._scorer, self._texts, self._margin, self._title = scorer, texts, margin, title
        if scorer is not None and margin is not None:
            low, high = scorer.bounds
            if margin >= high - low:
                raise MismatchError(
                    f"{scorer.model}: its scores are between {low:g} and {high:g}, so no negative is {margin:g} below a "
                    "positive; lower `ce_margin`, or compare logits: `scorer_logits`"
                )

    def measure(self, pools: Sequence[Pool], ids: Sequence[Sequence[str]]) -> None:
        missing = [
            (pool, id)
            for pool, some in zip(pools, ids, strict=True)
            for id in dict.fromkeys((*pool.positives, *some))
            if self.name not in pool.values.get(id, {})
        ]
        if self._scorer is None or self._texts is None:
            for pool, id in missing:
                raise DrtkError(
                    f"query '{pool.query_id}': passage '{id}' has no cross-encoder score; `scorer` MODEL computes it"
                )
            return
        from drtk.models.generator_input import format_passage  # with torch, which mining without a model does not load

        self._texts.load(id for _, id in missing)
        pairs = [
            (pool.query.query.text if pool.query.query else "", format_passage(self._texts[id], self._title))
            for pool, id in missing
        ]
        scores = self._scorer(pairs) if pairs else np.empty(0, dtype=np.float32)
        for (pool, id), score in zip(missing, scores, strict=True):
            pool.set_value(id, self.name, float(str(score)))  # the shortest digits that identify a float32

    def limit(self, pool: Pool) -> float | None:
        limits = [] if self.max_value is None else [self.max_value]
        if self._margin is not None:
            limits.append(min(pool.values[id][self.name] for id in pool.references) - self._margin)
        return min(limits, default=None)

    def is_beyond(self, value: float, limit: float) -> bool:
        """Return whether the value is above the limit: a score at the limit stays, as in BEIR's example."""
        return value > limit
