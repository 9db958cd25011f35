"""Filter candidates, sample negatives, and build training examples, for a window (batch) of queries at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from random import Random
from typing import TYPE_CHECKING, Any

from drtk.data.checks import JudgedHits
from drtk.data.ids import parse_document_id
from drtk.mining.candidates import CE, Candidate, CandidatePool, Hits, MiningQuery, Rejection
from drtk.mining.filters import ContentFilter, ScoreFilter
from drtk.mining.policies import Policy, sample_random_ids
from drtk.mining.sources import QueryStream
from drtk.records import Example

if TYPE_CHECKING:
    from drtk.mining.content_filters import PassageTexts

RANDOM = "random"  # source name of random passages
WITHOUT_ANSWERS, WITHOUT_POSITIVES, WITHOUT_NEGATIVES = "without_answers", "without_positives", "without_negatives"
MAX_ATTEMPTS = 10  # of sampling random passages, if filters reject some


@dataclass
class Miner:
    """Miner of training examples from queries and their hits. Sampling depends only on the seed and the query id.

    rel: lowest relevance grade of a positive
    counts: counters, updated in place
    use_example_scores: use the cross-encoder scores of training examples that are a source
    answers: filter that detects passages with an answer, which become positives
    measures: content filters that reject nothing; their values are written to the examples and the audit
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
        """Function from passage id to document id if documents were judged; None if passages were judged."""
        return (self.queries.corpus or parse_document_id) if self.queries.by_source else None

    def mine(self, window: Sequence[MiningQuery]) -> list[CandidatePool]:
        """Mine a window of queries; return one pool per query, with an `example` unless the query was skipped."""
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
            pool.negatives = self.policy.sample(pool.candidates, self.policy.negatives, rng)
        self.add_random_passages(active)
        for measure in self.measures:
            measure.measure(active, [[negative.id for negative in pool.negatives] for pool in active])
        if self.texts is not None:
            self.texts.clear()
        for pool in pools:
            pool.example = self.build_example(pool)
            self._count_judged_hits(pool)
            self._count_outcomes(pool)
        return pools

    def build_pool(self, query: MiningQuery) -> CandidatePool:
        """Return the pool of a query: its positives, and as candidates all other hits within the policy's depth."""
        relevant = self.find_relevant(query.query_id)
        depth, document_of = self.policy.depth, self.document_of
        judged = relevant if document_of is None else self._find_passages(relevant, query.hits.values(), document_of)
        positives = list(dict.fromkeys((*judged, *query.positives)))
        excluded = {*relevant, *positives}
        candidates = {}
        for source, hits in query.hits.items():
            ids, scores = hits.ids[:depth], hits.scores[:depth]
            candidates[source] = [
                Candidate(id, source, rank, score)
                for rank, (id, score) in enumerate(zip_longest(ids, scores), start=1)
                if id not in excluded and (document_of is None or document_of(id) not in excluded)
            ]
        pool = CandidatePool(query, positives, len(positives), candidates)
        if self.use_example_scores:
            for id, ce in query.ce_scores.items():
                pool.set_value(id, CE, ce)
        pool.num_candidates = len({candidate.id for candidate in pool.all_candidates()})
        return pool

    def find_relevant(self, query_id: str) -> list[str]:
        """Return the ids of relevant passages, highest grade first; document ids if documents were judged."""
        grades = (self.queries.judgments or {}).get(query_id, {})
        return sorted((id for id in grades if grades[id] >= self.rel), key=grades.__getitem__, reverse=True)

    def _find_passages(
        self, documents: Sequence[str], hits: Iterable[Hits], document_of: Callable[[str], str]
    ) -> list[str]:
        """Return one passage per document: the top-ranked passage of the first source with a hit, else its only passage."""
        best: dict[str, str] = {}
        relevant = set(documents)
        for id in (id for source_hits in hits for id in source_hits.ids):
            if (document := document_of(id)) in relevant:
                best.setdefault(document, id)
        positives, corpus = [], self.queries.corpus
        for document in documents:
            passage = best.get(document) or (None if corpus is None else corpus.get_only_passage(document))
            if passage is None:
                self._add_count("positives_not_found")
            else:
                positives.append(passage)
        return positives

    def promote_answers(self, pools: Sequence[CandidatePool], answers: ContentFilter) -> None:
        """Make candidates that contain an answer positives; skip queries without answers."""
        for pool in pools:
            if not (pool.query.query and any(pool.query.query.answers or ())):
                pool.skipped = WITHOUT_ANSWERS
        active = [pool for pool in pools if not pool.skipped]
        candidates = [pool.unique_candidates() for pool in active]
        answers.measure(active, _ids_of(candidates))
        for pool, passages in zip(active, candidates, strict=True):
            pool.promote([rejection.candidate.id for rejection in answers.find_rejections(pool, passages)])

    def reject_candidates(self, pools: Sequence[CandidatePool]) -> None:
        """Apply score filters, then content filters. A rejected candidate is removed from all sources."""
        for reject in self.score_filters:
            for pool in pools:
                reject(pool)
        for content_filter in self.content_filters:
            candidates = [pool.unique_candidates() for pool in pools]
            content_filter.measure(pools, _ids_of(candidates))
            for pool, passages in zip(pools, candidates, strict=True):
                pool.reject(content_filter.find_rejections(pool, passages))

    def add_random_passages(self, pools: Sequence[CandidatePool]) -> None:
        """Add random passages up to the policy's `min_negatives`; replace passages that a content filter rejects."""
        filters = [*([self.answers] if self.answers else []), *self.content_filters]
        for attempt in range(MAX_ATTEMPTS if filters else 1):
            samples = [(pool, passages) for pool in pools if (passages := self.sample_random(pool, attempt))]
            for content_filter in filters:
                content_filter.measure([pool for pool, _ in samples], _ids_of([passages for _, passages in samples]))
            pools = []
            for pool, passages in samples:
                rejected: dict[str, Rejection] = {}
                for content_filter in filters:
                    for rejection in content_filter.find_rejections(pool, passages):
                        rejected.setdefault(rejection.candidate.id, rejection)
                pool.negatives = [*pool.negatives, *(passage for passage in passages if passage.id not in rejected)]
                if rejected:
                    pool.rejected_random |= rejected
                    pools.append(pool)
            if not pools:
                break

    def sample_random(self, pool: CandidatePool, attempt: int = 0) -> list[Candidate]:
        """Sample the random passages that the pool lacks to reach `min_negatives`; fewer if the corpus is too small.

        Positives, rejected passages and candidates are excluded. A candidate must keep its rank and score, because the
        audit uses them to detect false negatives.
        """
        corpus, missing = self.queries.corpus, self.policy.min_negatives - len(pool.negatives)
        if missing <= 0 or corpus is None:
            return []
        positives = {*self.find_relevant(pool.query_id), *pool.positives}
        excluded = {candidate.id for candidate in (*pool.negatives, *pool.all_candidates())}
        excluded |= positives | pool.rejected.keys() | pool.rejected_random.keys()
        rng = Random(f"{self.seed}\0{pool.query_id}\0fill" + (f"\0{attempt}" if attempt else ""))
        document_of = self.document_of
        is_allowed = None if document_of is None else lambda passage: document_of(passage) not in positives
        ids = sample_random_ids(corpus.ids, missing, rng, excluded=excluded, is_allowed=is_allowed)
        return [Candidate(id, RANDOM, 0, None) for id in ids]

    def build_example(self, pool: CandidatePool) -> Example | None:
        """Return the training example of a pool; None if the query is skipped or has no negatives."""
        if not pool.skipped and not pool.negatives:
            pool.skipped = WITHOUT_NEGATIVES
        if pool.skipped:
            self._add_count(pool.skipped)
            return None
        positives, negatives = tuple(pool.positives), tuple(negative.id for negative in pool.negatives)
        scores = None
        if all(CE in pool.values.get(id, {}) for id in (*positives, *negatives)):
            scores = {
                "positives": [pool.values[id][CE] for id in positives],
                "negatives": [pool.values[id][CE] for id in negatives],
            }
        sources = {"negatives": [negative.source for negative in pool.negatives]}
        return Example(pool.query_id, positives, negatives, scores, sources, dict(pool.query.extra))

    def _add_count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def _count_outcomes(self, pool: CandidatePool) -> None:
        """Count sampled, rejected and unused candidates of queries that were not skipped before filtering."""
        if pool.skipped not in ("", WITHOUT_NEGATIVES):
            return
        if self.queries.corpus is not None and not pool.skipped and len(pool.negatives) < self.policy.min_negatives:
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

    def _count_judged_hits(self, pool: CandidatePool) -> None:
        """Record in `counts`, for each source, whether it has retrieved a judged document.

        A resumed run restores `counts`, but does not read the earlier windows again.
        """
        if self.queries.judgments is None:
            return
        judged = self.counts.setdefault("judged_found", {})
        for name, hits in pool.query.hits.items():
            if not judged.get(name):
                check = self._get_judged_hits(name)
                check.add(pool.query_id, [*hits.ids, *pool.query.positives])
                if check.found or check.describe_problem():
                    judged[name] = check.found

    def _get_judged_hits(self, name: str) -> JudgedHits:
        if name not in self._judged:
            judgments = self.queries.judgments or {}
            self._judged[name] = JudgedHits(name, judgments, to_document=self.document_of)
        return self._judged[name]

    def find_unjudged_sources(self) -> list[str]:
        """Return a warning for each source that retrieved none of the judged documents."""
        sources = [name for name, has_judged in self.counts.get("judged_found", {}).items() if not has_judged]
        return [
            self._get_judged_hits(name).describe_problem() or f"{name}: no judged document was retrieved"
            for name in sources
        ]

    def find_id_mismatch(self) -> str | None:
        """Return an error message if no source retrieved a judged document and there is no corpus to check ids; else None."""
        problems = self.find_unjudged_sources()
        if self.queries.corpus is not None or not problems or any(self.counts["judged_found"].values()):
            return None
        return f"{problems[0]}. Judged documents could become negatives; give `corpus` to check all ids"


def _ids_of(candidates: Iterable[Sequence[Candidate]]) -> list[list[str]]:
    return [[candidate.id for candidate in passages] for passages in candidates]
