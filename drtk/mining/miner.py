"""The mining loop: per window of queries, collect candidates, reject those that may be positives, sample, build examples.

Start reading at `Miner.mine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from random import Random
from typing import TYPE_CHECKING, Any

from drtk.data.checks import JudgedHits
from drtk.data.ids import parse_document_id
from drtk.mining.candidates import CE, Candidate, Hits, MiningQuery, Pool, Rejection
from drtk.mining.filters import ContentFilter, ScoreFilter
from drtk.mining.policies import Policy, sample_random_ids
from drtk.mining.sources import QueryStream
from drtk.records import Example

if TYPE_CHECKING:
    from drtk.mining.content_filters import PassageTexts

RANDOM = "random"  # the source of negatives that no source retrieved
WITHOUT_ANSWERS, WITHOUT_POSITIVES, WITHOUT_NEGATIVES = "without_answers", "without_positives", "without_negatives"
ROUNDS = 10  # of sampling random passages, if filters reject some


@dataclass
class Miner:
    """Turn queries with their hits into training examples. Sampling depends only on the seed and the query id.

    rel: lowest grade of a positive. use_example_scores: take the cross-encoder scores that examples bring along.
    answers: turns candidates that contain an answer into positives. measures: content filters without a limit.
    counts: receives what was skipped, rejected and kept.
    """

    queries: QueryStream
    policy: Policy
    seed: int
    rel: int = 1
    counts: dict[str, Any] = field(default_factory=dict)
    use_example_scores: bool = True
    score_filters: Sequence[ScoreFilter] = ()
    answers: ContentFilter | None = None
    content_filters: list[ContentFilter] = field(default_factory=list)
    measures: list[ContentFilter] = field(default_factory=list)
    texts: PassageTexts | None = None
    _judged: dict[str, JudgedHits] = field(default_factory=dict, init=False)

    @property
    def document_of(self) -> Callable[[str], str] | None:
        """What maps a passage to the document that judgements name; None if they name passages."""
        return (self.queries.corpus or parse_document_id) if self.queries.by_source else None

    def mine(self, window: Sequence[MiningQuery]) -> list[Pool]:
        """Mine a window of queries; return a pool for each, with its `example` unless it is `skipped`."""
        if self.queries.indexes is not None:
            window = self.queries.indexes.search(window, self.queries.sources.names)
        pools = [self.build_pool(query) for query in window]
        if self.answers is not None:
            self.promote_answers(pools, self.answers)
        for pool in pools:
            if not pool.skipped and not pool.positives:
                pool.skipped = WITHOUT_POSITIVES
        active = [pool for pool in pools if not pool.skipped]
        self.reject_candidates(active)
        for pool in active:
            rng = Random(f"{self.seed}\0{pool.query_id}")
            pool.negatives = self.policy.sample(pool.candidates, self.policy.keep, rng)
        self.add_random_passages(active)
        for measure in self.measures:
            measure.measure(active, [[one.id for one in pool.negatives] for pool in active])
        if self.texts is not None:
            self.texts.clear()
        for pool in pools:
            pool.example = self.build_example(pool)
            self._count_judged(pool)
            self._count(pool)
        return pools

    def build_pool(self, query: MiningQuery) -> Pool:
        """Return a query's positives, and as candidates all other hits within the policy's depth."""
        relevant = self.find_relevant(query.query_id)
        judged = relevant
        if self.document_of is not None:
            judged = self._find_passages(relevant, query.hits.values(), self.document_of)
        positives = list(dict.fromkeys((*judged, *query.positives)))
        excluded = {*relevant, *positives}
        depth, document_of = self.policy.depth, self.document_of
        candidates = {}
        for source, hits in query.hits.items():
            ids, scores = hits.ids[:depth], hits.scores[:depth]
            candidates[source] = [
                Candidate(id, source, rank, score)
                for rank, (id, score) in enumerate(zip_longest(ids, scores), start=1)
                if id not in excluded and (document_of is None or document_of(id) not in excluded)
            ]
        pool = Pool(query, positives, len(positives), candidates)
        if self.use_example_scores:
            for id, ce in query.ce_scores.items():
                pool.set_value(id, CE, ce)
        pool.num_candidates = len({one.id for one in pool.all_candidates()})
        return pool

    def find_relevant(self, query_id: str) -> list[str]:
        """Return the passages, or documents, judged relevant, the highest grade first."""
        grades = (self.queries.judgements or {}).get(query_id, {})
        return sorted((id for id in grades if grades[id] >= self.rel), key=grades.__getitem__, reverse=True)

    def _find_passages(
        self, documents: Sequence[str], hits: Iterable[Hits], document_of: Callable[[str], str]
    ) -> list[str]:
        """Return the best-ranked passage of each document in the first source that has one; else its only passage."""
        best: dict[str, str] = {}
        wanted = set(documents)
        for id in (id for found in hits for id in found.ids):
            if (document := document_of(id)) in wanted:
                best.setdefault(document, id)
        positives = []
        for document in documents:
            corpus = self.queries.corpus
            passage = best.get(document) or (None if corpus is None else corpus.only_passage(document))
            if passage is None:
                self._add_count("positives_not_found")
            else:
                positives.append(passage)
        return positives

    def promote_answers(self, pools: Sequence[Pool], answers: ContentFilter) -> None:
        """Turn candidates with an answer into positives; skip queries without answers."""
        for pool in pools:
            if not (pool.query.query and any(pool.query.query.answers or ())):
                pool.skipped = WITHOUT_ANSWERS
        active = [pool for pool in pools if not pool.skipped]
        candidates = [pool.unique_candidates() for pool in active]
        answers.measure(active, [[one.id for one in some] for some in candidates])
        for pool, some in zip(active, candidates, strict=True):
            pool.promote([rejection.candidate.id for rejection in answers.find_beyond_limit(pool, some)])

    def reject_candidates(self, pools: Sequence[Pool]) -> None:
        """Apply the filters in order; what one source makes suspicious is rejected from all of them."""
        for reject in self.score_filters:
            for pool in pools:
                reject(pool)
        for content_filter in self.content_filters:
            candidates = [pool.unique_candidates() for pool in pools]
            content_filter.measure(pools, [[one.id for one in some] for some in candidates])
            for pool, some in zip(pools, candidates, strict=True):
                pool.reject(content_filter.find_beyond_limit(pool, some))

    def add_random_passages(self, pools: Sequence[Pool]) -> None:
        """Fill up to the policy's floor with random passages; those that a content filter rejects are sampled again."""
        filters = [*([self.answers] if self.answers else []), *self.content_filters]
        for number in range(ROUNDS if filters else 1):
            sampled = [(pool, new) for pool in pools if (new := self.sample_random(pool, number))]
            for content_filter in filters:
                content_filter.measure([pool for pool, _ in sampled], [[one.id for one in new] for _, new in sampled])
            pools = []
            for pool, new in sampled:
                rejected: dict[str, Rejection] = {}
                for content_filter in filters:
                    for rejection in content_filter.find_beyond_limit(pool, new):
                        rejected.setdefault(rejection.candidate.id, rejection)
                pool.negatives = [*pool.negatives, *(one for one in new if one.id not in rejected)]
                if rejected:
                    pool.rejected_random |= rejected
                    pools.append(pool)
            if not pools:
                break

    def sample_random(self, pool: Pool, number: int = 0) -> list[Candidate]:
        """Sample the random passages that a query lacks; fewer if the corpus has no more. number: of the round.

        No passage is positive, rejected, or a candidate: a candidate that was not sampled would lose the rank and the score
        that tell how suspicious it is.
        """
        corpus, missing = self.queries.corpus, self.policy.floor - len(pool.negatives)
        if missing <= 0 or corpus is None:
            return []
        positives = {*self.find_relevant(pool.query_id), *pool.positives}
        excluded = {one.id for one in pool.negatives} | {one.id for one in pool.all_candidates()}
        excluded |= positives | pool.rejected.keys() | pool.rejected_random.keys()
        rng = Random(f"{self.seed}\0{pool.query_id}\0fill" + (f"\0{number}" if number else ""))
        document_of = self.document_of
        is_allowed = None if document_of is None else lambda passage: document_of(passage) not in positives
        ids = sample_random_ids(corpus.ids, missing, rng, excluded=excluded, is_allowed=is_allowed)
        return [Candidate(id, RANDOM, 0, None) for id in ids]

    def build_example(self, pool: Pool) -> Example | None:
        """Return the training example of a pool; None if it is skipped or has no negatives."""
        if not pool.skipped and not pool.negatives:
            pool.skipped = WITHOUT_NEGATIVES
        if pool.skipped:
            self._add_count(pool.skipped)
            return None
        ids = tuple(one.id for one in pool.negatives)
        scores = None
        if all(CE in pool.values.get(id, {}) for id in (*pool.positives, *ids)):
            sides = {"positives": pool.positives, "negatives": ids}
            scores = {side: [pool.values[id][CE] for id in some] for side, some in sides.items()}
        sources = {"negatives": [one.source for one in pool.negatives]}
        return Example(pool.query_id, tuple(pool.positives), ids, scores, sources, dict(pool.query.extra))

    def _add_count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def _count(self, pool: Pool) -> None:
        """Add what became of the candidates to `counts`; queries that came to no filter are left out."""
        if pool.skipped not in ("", WITHOUT_NEGATIVES):
            return
        if self.queries.corpus is not None and not pool.skipped and len(pool.negatives) < self.policy.floor:
            self._add_count("below_floor")
        dropped = self.counts.setdefault("dropped", {})
        for rejection in pool.rejected.values():
            dropped[rejection.filter] = dropped.get(rejection.filter, 0) + 1
        passages = self.counts.setdefault("passages", {})
        for name, number in (
            ("candidates", pool.num_candidates),
            ("kept", len(pool.negatives) - pool.num_random),
            ("dropped", len(pool.rejected)),
            ("not_drawn", pool.num_not_sampled),
            ("became_positives", len(pool.promoted)),
            ("random", pool.num_random),
        ):
            passages[name] = passages.get(name, 0) + number
        if pool.rejected_random:
            passages["random_refused"] = passages.get("random_refused", 0) + len(pool.rejected_random)

    def _count_judged(self, pool: Pool) -> None:
        """Record for each source whether it retrieved a judged document (1) or not yet (0).

        The result is in `counts`, because a resumed run does not see the earlier windows again.
        """
        if self.queries.judgements is None:
            return
        judged = self.counts.setdefault("judged_found", {})
        for name, hits in pool.query.hits.items():
            if not judged.get(name):
                check = self._judged_hits(name)
                check.add(pool.query_id, [*hits.ids, *pool.query.positives])
                if check.found or check.describe_problem():
                    judged[name] = check.found

    def _judged_hits(self, name: str) -> JudgedHits:
        if name not in self._judged:
            judgements = self.queries.judgements or {}
            self._judged[name] = JudgedHits(name, judgements, of=self.document_of, by_source="`positives` source")
        return self._judged[name]

    def find_unjudged_sources(self) -> list[str]:
        """Return a message for each source that retrieved none of the judged documents."""
        missing = [name for name, found in self.counts.get("judged_found", {}).items() if not found]
        return [
            self._judged_hits(name).describe_problem() or f"{name}: no judged document was retrieved"
            for name in missing
        ]

    def find_id_mismatch(self) -> str | None:
        """Return a message if no source retrieved a judged document, and no corpus says that the ids exist."""
        problems = self.find_unjudged_sources()
        if self.queries.corpus is not None or not problems or any(self.counts["judged_found"].values()):
            return None
        return f"{problems[0]}. Judged documents would become negatives; `corpus` checks all ids"
