"""Filters by the content of passages: answers, word overlap, cosine similarity, and cross-encoder score."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np

from drtk.data.arrays import scale_to_unit_length
from drtk.data.checks import PASSAGES, WITHOUT_TEXT
from drtk.data.corpus_store import CorpusStore
from drtk.data.embeddings import KIND, gather_vectors, read_shards
from drtk.errors import DrtkError, MismatchError
from drtk.mining.candidates import CE, CandidatePool
from drtk.mining.filters import ANSWER_CHECKS, ContentFilter
from drtk.models.generator_input import format_passage
from drtk.records import Passage
from drtk.runtime.integrity import hash_id
from drtk.runtime.manifest import read_manifest
from drtk.text.answers import MATCHERS


class PassageCache:
    """Passages of a corpus file by id. Only passages whose ids were passed to `load` are available, until `clear`."""

    def __init__(self, corpus: str) -> None:
        self._store = CorpusStore.open(corpus)
        self._loaded: dict[str, Passage] = {}

    def __getitem__(self, id: str) -> Passage:
        return self._loaded[id]

    def load(self, ids: Iterable[str]) -> None:
        """Read passages into memory. Raises MismatchError for an unknown id."""
        new = [id for id in dict.fromkeys(ids) if id not in self._loaded]
        self._loaded |= zip(new, self._store.get_many(new), strict=True)

    def clear(self) -> None:
        """Remove all passages from memory."""
        self._loaded.clear()


class AnswerFilter(ContentFilter):
    """Filter that finds passages with an answer to the query: value 1 with an answer, else 0 (docs/methods/evaluation.md).

    Queries without answers are skipped.
    match: "tokens" or "regex"    title: also search the passage title
    counts: dictionary that is updated with the numbers of searched passages and of passages without text
    """

    name = "answer"

    def __init__(self, passages: PassageCache, match: str, *, title: bool, counts: dict[str, Any]) -> None:
        super().__init__(1.0)
        self._passages, self._match, self._counts = passages, MATCHERS[match], counts
        self._title = "join" if title else "none"

    def measure_passages(self, pools: Sequence[CandidatePool], ids: Sequence[Sequence[str]]) -> None:
        self._passages.load(id for pool_ids in ids for id in pool_ids)
        counts = self._counts.setdefault(ANSWER_CHECKS, {PASSAGES: 0, WITHOUT_TEXT: 0})
        for pool, pool_ids in zip(pools, ids, strict=True):
            query = pool.query.query
            contains_answer = self._match((query.answers if query else None) or ())
            if contains_answer:
                for id in pool_ids:
                    text = format_passage(self._passages[id], self._title)
                    pool.set_value(id, self.name, float(contains_answer(text)))
                    counts[WITHOUT_TEXT] += not text.strip()
                counts[PASSAGES] += len(pool_ids)


SHINGLE = 3  # words
_WORD = re.compile(r"\w+")


def make_shingles(text: str) -> frozenset[int]:
    """Return the hashes of all word trigrams of the lowercased text; a text of one or two words is a single shingle."""
    words = _WORD.findall(text.lower())
    if not words:
        return frozenset()
    sequences = (words[start : start + SHINGLE] for start in range(max(1, len(words) - SHINGLE + 1)))
    return frozenset(crc32(" ".join(sequence).encode()) for sequence in sequences)


def compute_overlap(first: frozenset[int], second: frozenset[int]) -> float:
    """Return the Jaccard similarity of two sets of shingles (Broder's resemblance), 0 to 1; 1 if both are empty."""
    union = len(first | second)
    return len(first & second) / union if union else 1.0


class OverlapFilter(ContentFilter):
    """Filter by the Jaccard similarity of word trigrams; the value is the largest similarity to a positive, 0 to 1."""

    name = "overlap"

    def __init__(self, passages: PassageCache, limit: float | None = None) -> None:
        super().__init__(limit)
        self._passages = passages
        self._shingles = lru_cache(maxsize=20_000)(lambda passage_id: make_shingles(passages[passage_id].text))

    def measure_passages(self, pools: Sequence[CandidatePool], ids: Sequence[Sequence[str]]) -> None:
        self._passages.load(
            id for pool, pool_ids in zip(pools, ids, strict=True) for id in (*pool.positives, *pool_ids)
        )
        for pool, pool_ids in zip(pools, ids, strict=True):
            positives = [self._shingles(id) for id in pool.positives]
            for id in pool_ids:
                shingles = self._shingles(id)
                overlap = max((compute_overlap(shingles, positive) for positive in positives), default=0.0)
                pool.set_value(id, self.name, overlap)


class VectorsById:
    """Vectors of an embeddings folder by passage id. Vectors stay on disk; memory: 16 bytes per passage.

    Ids are looked up by 64-bit hash. Raises MismatchError for query embeddings.
    """

    def __init__(self, folder: str) -> None:
        if read_manifest(folder, kind=KIND).get("role", "passage") != "passage":
            raise MismatchError(f"{folder}: contains query embeddings; give passage embeddings")
        self.folder = folder
        self._shards = read_shards(folder)
        self._starts = np.cumsum([0, *(shard.num_rows for shard in self._shards)])
        hashes = (hash_id(id) for shard in self._shards for id in shard.ids)
        keys = np.fromiter(hashes, dtype=np.uint64, count=int(self._starts[-1]))
        self._rows: np.ndarray = np.argsort(keys, kind="stable")  # (passages,)
        self._keys: np.ndarray = keys[self._rows]  # (passages,), ascending

    def get_vectors(self, ids: Sequence[str]) -> np.ndarray:
        """Return the L2-normalized vectors of passages, (len(ids), dimension) float32.

        Raises MismatchError for an id without a vector, DrtkError for NaN or infinity.
        """
        keys = np.fromiter(map(hash_id, ids), dtype=np.uint64, count=len(ids))
        places = np.minimum(self._keys.searchsorted(keys), max(len(self._keys) - 1, 0))
        known = self._keys[places] == keys if len(self._keys) else np.zeros(len(ids), dtype=bool)
        if not known.all():
            missing = [id for id, is_known in zip(ids, known.tolist(), strict=True) if not is_known]
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise MismatchError(
                f"{self.folder}: has no vector for passage '{missing[0]}'{more}; encode the corpus again"
            )
        return scale_to_unit_length(gather_vectors(self._shards, self._starts, self._rows[places]))


class CosineFilter(ContentFilter):
    """Filter by cosine similarity; the value is the largest similarity of the passage to a positive."""

    name = "cosine"

    def __init__(self, vectors: VectorsById, limit: float | None = None) -> None:
        super().__init__(limit)
        self._vectors = vectors

    def measure_passages(self, pools: Sequence[CandidatePool], ids: Sequence[Sequence[str]]) -> None:
        pairs = list(zip(pools, ids, strict=True))
        unique = dict.fromkeys(id for pool, pool_ids in pairs for id in (*pool_ids, *pool.positives))
        rows = {id: row for row, id in enumerate(unique)}
        vectors = self._vectors.get_vectors(list(rows))
        for pool, pool_ids in pairs:
            if pool_ids and pool.positives:
                passages = vectors[[rows[id] for id in pool_ids]]  # (passages, dimension)
                positives = vectors[[rows[id] for id in pool.positives]]  # (positives, dimension)
                for id, cosine in zip(pool_ids, (passages @ positives.T).max(axis=1).tolist(), strict=True):
                    pool.set_value(id, self.name, cosine)


class CrossEncoderFilter(ContentFilter):
    """Filter by the cross-encoder score of query and passage.

    scorer: a CrossEncoderScorer of drtk.models.cross_encoder; None: use the scores in the training examples
    margin: a negative must score at least this much below the lowest-scoring positive; None: no such limit
    limit: maximum score of a negative; None: no such limit
    title: title format, as in `models.generator_input.format_passage`
    Raises MismatchError for a margin of at least the scorer's range, DrtkError for a missing score.
    """

    name = CE

    def __init__(
        self,
        scorer: Any,
        passages: PassageCache | None,
        *,
        margin: float | None = None,
        limit: float | None = None,
        title: str = "join",
    ) -> None:
        super().__init__(limit)
        self._scorer, self._passages, self._margin, self._title = scorer, passages, margin, title
        if scorer is not None and margin is not None:
            low, high = scorer.score_bounds
            if margin >= high - low:
                raise MismatchError(
                    f"{scorer.model}: scores are between {low:g} and {high:g}, so no negative can score {margin:g} below a "
                    "positive; lower `ce_margin`, or use logits (`scorer_logits`)"
                )

    def measure_passages(self, pools: Sequence[CandidatePool], ids: Sequence[Sequence[str]]) -> None:
        missing = [
            (pool, id)
            for pool, pool_ids in zip(pools, ids, strict=True)
            for id in dict.fromkeys((*pool.positives, *pool_ids))
            if self.name not in pool.values.get(id, {})
        ]
        if self._scorer is None or self._passages is None:
            for pool, id in missing:
                raise DrtkError(
                    f"query '{pool.query_id}': passage '{id}' has no cross-encoder score; give `scorer` to compute it"
                )
            return
        self._passages.load(id for _, id in missing)
        pairs = [
            (pool.query.query.text if pool.query.query else "", format_passage(self._passages[id], self._title))
            for pool, id in missing
        ]
        scores = self._scorer(pairs) if pairs else np.empty(0, dtype=np.float32)
        for (pool, id), score in zip(missing, scores, strict=True):
            pool.set_value(id, self.name, float(str(score)))  # the shortest decimal that identifies a float32

    def get_limit(self, pool: CandidatePool) -> float | None:
        limits = [] if self.limit is None else [self.limit]
        if self._margin is not None:
            limits.append(min(pool.values[id][self.name] for id in pool.reference_positives) - self._margin)
        return min(limits, default=None)

    def is_rejected(self, value: float, limit: float) -> bool:
        """Return whether a score is above the limit; a score equal to the limit is accepted, as in BEIR's example."""
        return value > limit
