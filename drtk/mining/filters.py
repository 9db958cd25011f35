"""Filters of candidates: rank, score, answers, text, vectors, cross-encoder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol
from zlib import crc32

import numpy as np

from drtk.data.checks import PASSAGES, TEXTLESS
from drtk.data.corpus_store import CorpusStore
from drtk.data.embeddings import KIND, Shard, check_finite, read_shards
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.indexing.vectors import unit_length
from drtk.mining.config import MineSettings
from drtk.mining.pool import Drop, Pool, Sighting
from drtk.records import Passage
from drtk.runtime.cache import hash_of
from drtk.runtime.manifest import read_manifest
from drtk.text.answers import MATCHES

Filter = Callable[[Sequence[Pool]], None]
UNRETRIEVED = "unretrieved"  # what --margin and --max-share drop where there is no positive to go by
PERCENT = 2.0  # a share above it is meant in per cent
PLACE_FILTERS = ("rank", "max-score", "min-score", "margin", "max-share", UNRETRIEVED)


def place_filters(settings: MineSettings, sources: Sequence[str] | None) -> list[Filter]:
    """The filters by rank and score that `settings` ask for, in the order in which they are applied.

    sources: names that limits may use, none of them where there are examples alone; None: anything may be one
    Raises UsageError for a limit that cannot be read. The filter by rank raises it for lists that are in no order, where no
    source has ranks.
    """
    found: list[Filter] = []
    if settings.from_rank > 1:
        found.append(_ranks(settings.from_rank, examples_alone=sources is not None and not sources))
    if settings.max_score:
        found.append(_scores("max-score", limits_of(settings.max_score, "--max-score", sources)))
    if settings.min_score:
        found.append(_scores("min-score", limits_of(settings.min_score, "--min-score", sources)))
    for name, given in (("margin", settings.margin), ("max-share", settings.max_share)):
        if given:
            wanted = limits_of(given, f"--{name}", sources)
            if name == "max-share" and min(wanted.values()) < 0:
                raise UsageError("--max-share: must be at least 0")
            if name == "max-share" and max(wanted.values()) > PERCENT:
                raise UsageError(f"--max-share {max(wanted.values()):g}: a share of 1 is all of it; 95% is 0.95")
            found.append(_beside_the_positive(name, wanted, keep=settings.unretrieved == "keep"))
    return found


def place_flags(settings: MineSettings) -> list[str]:
    """The flags of those filters, as they were given."""
    given = {
        "--from-rank": settings.from_rank > 1,
        "--max-score": settings.max_score,
        "--min-score": settings.min_score,
        "--margin": settings.margin,
        "--max-share": settings.max_share,
    }
    return [flag for flag, is_given in given.items() if is_given]


def limits_of(given: Sequence[str], flag: str, sources: Sequence[str] | None) -> dict[str, float]:
    """Limits by source from `X` (for all, under "") and `NAME=X`."""
    limits: dict[str, float] = {}
    for text in given:
        name, _, number = text.rpartition("=")
        try:
            limits[name] = float(number)
        except ValueError:
            raise UsageError(f"{flag}: '{text}' is neither a number nor NAME=NUMBER") from None
        if limits[name] != limits[name]:
            raise UsageError(f"{flag}: is not a number")
        if name and sources is not None and name not in sources:
            raise UsageError(f"{flag}: there is no source '{name}' among {', '.join(sources)}")
    return limits


def margin_limit(reference: float, margin: float) -> float:
    """The highest score of a negative: the positive's less the margin."""
    return reference - margin


def share_limit(reference: float, share: float) -> float:
    """The highest score of a negative: a share of the positive's, below it by as much where that is negative."""
    return reference - (1 - share) * abs(reference)


def _ranks(first: int, *, examples_alone: bool) -> Filter:
    def drop(pools: Sequence[Pool]) -> None:
        for pool in pools:
            if examples_alone and not all(map(pool.has_rank, _all(pool))):
                raise UsageError(
                    f"--from-rank goes by ranks, which examples lack: the negatives of query '{pool.query_id}' are in no "
                    "order; name the run they were drawn from"
                )
            early = (one for one in _all(pool) if one.rank < first and pool.has_rank(one))
            pool.drop(_first_of(Drop(one, "rank", one.rank, first) for one in early))

    return drop


def _scores(name: str, limits: Mapping[str, float]) -> Filter:
    """Above a limit in one source is out for all; below a limit is out only where no source has better to say."""
    low = name == "min-score"

    def drop(pools: Sequence[Pool]) -> None:
        for pool in pools:
            beyond = []
            for one in _all(pool):
                limit = limits.get(one.source, limits.get(""))
                if limit is not None and one.score is not None and (one.score < limit if low else one.score > limit):
                    beyond.append(Drop(one, name, one.score, limit))
            if low:
                places = {(drop.sighting.id, drop.sighting.source) for drop in beyond}
                for source, found in pool.candidates.items():
                    pool.candidates[source] = [one for one in found if (one.id, source) not in places]
                left = {one.id for one in _all(pool)}
                beyond = [drop for drop in beyond if drop.sighting.id not in left]
            pool.drop(_first_of(beyond))

    return drop


def _beside_the_positive(name: str, wanted: Mapping[str, float], *, keep: bool) -> Filter:
    limit_of = margin_limit if name == "margin" else share_limit

    def drop(pools: Sequence[Pool]) -> None:
        for pool in pools:
            drops: list[Drop] = []
            for source, found in pool.candidates.items():
                asked = wanted.get(source, wanted.get(""))
                if asked is None:
                    continue
                reference = pool.reference_score(source)
                if reference is not None:
                    limit = limit_of(reference, asked)
                    drops += [
                        Drop(one, name, one.score, limit)
                        for one in found
                        if one.score is not None and one.score > limit
                    ]
                elif not keep:
                    # The positive is below all that was retrieved, so all that was retrieved is above the limit.
                    drops += [Drop(one, UNRETRIEVED, one.score, None) for one in found if one.score is not None]
            pool.drop(_first_of(drops))

    return drop


def _all(pool: Pool) -> Iterable[Sighting]:
    return (one for found in pool.candidates.values() for one in found)


def _first_of(drops: Iterable[Drop]) -> dict[str, Drop]:
    found: dict[str, Drop] = {}
    for drop in drops:
        found.setdefault(drop.sighting.id, drop)
    return found


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


class VectorsById:
    """The vectors of an embeddings folder of passages, by id; vectors stay on disk, 16 bytes an id in memory.

    Ids are told apart by 64 bits of hash. Raises MismatchError for a folder of queries.
    """

    def __init__(self, folder: str) -> None:
        if read_manifest(folder, kind=KIND).get("role", "passage") != "passage":
            raise MismatchError(f"{folder}: holds vectors of queries; those of passages are compared")
        self.folder = folder
        self._shards = [shard for shard in read_shards(folder) if shard.rows]
        self._starts = np.cumsum([0, *(shard.rows for shard in self._shards)])
        keys = np.empty(int(self._starts[-1]), dtype=np.uint64)
        for start, shard in zip(self._starts.tolist(), self._shards, strict=False):
            once = Shard(shard.folder, shard.number, shard.rows, shard.dimension)  # its list of ids goes again
            keys[start : start + shard.rows] = np.fromiter(map(hash_of, once.ids), dtype=np.uint64, count=shard.rows)
        self._rows: np.ndarray = np.argsort(keys, kind="stable")  # (passages,)
        self._keys: np.ndarray = keys[self._rows]  # (passages,), ascending

    def take(self, ids: Sequence[str]) -> np.ndarray:
        """(ids, dimension) float32, each of length 1. Raises MismatchError for ids without a vector."""
        wanted = np.fromiter(map(hash_of, ids), dtype=np.uint64, count=len(ids))
        places = np.minimum(self._keys.searchsorted(wanted), max(len(self._keys) - 1, 0))
        known = self._keys[places] == wanted if len(self._keys) else np.zeros(len(ids), dtype=bool)
        if not known.all():
            lacking = [id for id, is_known in zip(ids, known.tolist(), strict=True) if not is_known]
            more = f" and {len(lacking) - 1:,} more" if len(lacking) > 1 else ""
            raise MismatchError(f"{self.folder}: has no vector of '{lacking[0]}'{more}")
        rows = self._rows[places]
        found = np.empty((len(ids), self._shards[0].dimension if self._shards else 0), dtype=np.float32)
        for number in np.unique(np.searchsorted(self._starts, rows, side="right") - 1).tolist():
            mine = np.flatnonzero((rows >= self._starts[number]) & (rows < self._starts[number + 1]))
            mine = mine[np.argsort(rows[mine], kind="stable")]  # in the order in which they lie on disk
            shard, rows_in = self._shards[number], rows[mine] - self._starts[number]
            found[mine] = shard.vectors[rows_in]
            check_finite(shard, found[mine], rows_in)
        return unit_length(found)


class CosineCheck:
    """The largest cosine of a passage's vector with that of a positive of its query."""

    name = "cosine"

    def __init__(self, vectors: VectorsById, limit: float | None = None) -> None:
        self._vectors, self._limit = vectors, limit

    def measure(self, pools: Sequence[Pool], wanted: Sequence[Sequence[str]]) -> None:
        """Mark the wanted passages of each query."""
        ids = list(
            dict.fromkeys(id for pool, some in zip(pools, wanted, strict=True) for id in (*some, *pool.positives))
        )
        vectors = self._vectors.take(ids)
        row = {id: at for at, id in enumerate(ids)}
        for pool, some in zip(pools, wanted, strict=True):
            if some and pool.positives:
                mine = vectors[[row[id] for id in some]]  # (wanted, dimension)
                theirs = vectors[[row[id] for id in pool.positives]]  # (positives, dimension)
                for id, value in zip(some, (mine @ theirs.T).max(axis=1).tolist(), strict=True):
                    pool.mark(id, self.name, value)

    def limit(self, _: Pool) -> float | None:
        """What is this near goes."""
        return self._limit

    def is_beyond(self, value: float, limit: float) -> bool:
        """Whether a passage is to go."""
        return value >= limit


Pair = tuple[str, str]


class Scores(Protocol):
    """What the check needs of a cross-encoder; models.crossencoder.Scorer is one. bounds: of all scores it can give."""

    model: str

    @property
    def bounds(self) -> tuple[float, float]: ...

    def __call__(self, pairs: Sequence[Pair]) -> np.ndarray: ...


class CrossEncoderCheck:
    """How well a passage answers its query, in a cross-encoder's scores.

    scorer: without one, the scores are those of the examples. margin: negatives lie this much below the lowest reference.
    most: no negative has more. title: how a passage's is put before its text, as models.reading.text_of knows it.
    Raises MismatchError for a margin that no two scores of the scorer can have, DrtkError where examples lack a score that
    is needed.
    """

    name = "ce"

    def __init__(
        self,
        scorer: Scores | None,
        texts: Texts | None,
        *,
        margin: float | None = None,
        most: float | None = None,
        title: str = "join",
    ) -> None:
        self._scorer, self._texts = scorer, texts
        self._margin, self._most, self._title = margin, most, title
        if scorer is not None and margin is not None:
            _check_margin(scorer, margin)

    def measure(self, pools: Sequence[Pool], wanted: Sequence[Sequence[str]]) -> None:
        """Mark the wanted passages and the positives of each query."""
        lacking = [
            (pool, id)
            for pool, ids in zip(pools, wanted, strict=True)
            for id in dict.fromkeys((*pool.positives, *ids))
            if self.name not in pool.marks.get(id, {})
        ]
        if self._scorer is None or self._texts is None:
            for pool, id in lacking:
                raise DrtkError(
                    f"query '{pool.query_id}': passage '{id}' has no score of a cross-encoder; --scorer MODEL makes them"
                )
            return
        from drtk.models.generator_input import text_of  # with torch, which mining without a model does not load

        self._texts.hold(id for _, id in lacking)
        pairs = [
            (pool.asked.query.text if pool.asked.query else "", text_of(self._texts[id], self._title))
            for pool, id in lacking
        ]
        scores = self._scorer(pairs) if pairs else np.empty(0, dtype=np.float32)
        for (pool, id), score in zip(lacking, scores, strict=True):
            pool.mark(id, self.name, float(str(score)))  # the digits that tell numbers of float32 apart

    def limit(self, pool: Pool) -> float | None:
        """The highest score of a negative of this query."""
        limits = [] if self._most is None else [self._most]
        if self._margin is not None:
            limits.append(min(pool.marks[id][self.name] for id in pool.references) - self._margin)
        return min(limits, default=None)

    def is_beyond(self, value: float, limit: float) -> bool:
        """Whether a passage is to go. One that lies at the limit stays, as in BEIR's example."""
        return value > limit


def _check_margin(scorer: Scores, margin: float) -> None:
    low, high = scorer.bounds
    if margin >= high - low:
        raise MismatchError(
            f"{scorer.model}: gives scores between {low:g} and {high:g}, so that nothing can lie {margin:g} below a "
            "positive; name a smaller --ce-margin, or have its logits compared: --scorer-logits"
        )
