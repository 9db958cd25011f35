"""Mining from random runs and judgments: no positive is a negative, every candidate is audited, and batches change nothing."""

from dataclasses import replace
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from drtk.mining.audit import build_audit_row
from drtk.mining.candidates import CandidatePool, Hits, MiningQuery
from drtk.mining.config import MineSettings
from drtk.mining.filters import ContentFilter, build_score_filters
from drtk.mining.mine import RANDOM, Miner
from drtk.mining.policies import MSMARCO, SBERT, TEVATRON
from drtk.mining.report import summarize_audit
from drtk.mining.sources import MiningSources, QueryStream
from drtk.records import Query, parse_document_id
from drtk.runtime.inputs import InputTracker
from tests.tiny_models import open_corpus

IDS = [f"d{document}#{chunk}" for document in range(10) for chunk in range(3)]
open_once = cache(open_corpus)


class ChunkNumberFilter(ContentFilter):
    """A filter that rejects chunks with a number above a limit."""

    name = "parity"

    def measure_passages(self, pools, ids):
        for pool, some in zip(pools, ids, strict=True):
            for id in some:
                pool.set_value(id, self.name, float(id[-1]))

    def is_rejected(self, value, limit):
        return value > limit


@st.composite
def rankings(draw):
    """Draw up to three sources with up to thirty passages each and decreasing scores."""
    hits = {}
    for name in draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)):
        ids = draw(st.lists(st.sampled_from(IDS), max_size=30, unique=True))
        scores = sorted(draw(st.lists(st.integers(0, 9), min_size=len(ids), max_size=len(ids))), reverse=True)
        hits[name] = Hits(ids, [float(score) for score in scores])
    return hits


GRADES = st.dictionaries(st.sampled_from(IDS), st.integers(0, 2), max_size=6)
QUERIES = st.lists(st.tuples(rankings(), GRADES), min_size=1, max_size=6)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "from_rank": st.integers(1, 5),
        "margin": st.sampled_from([("1",), ("a=2",), ("b=0", "c=3")]),
        "max_share": st.sampled_from([("0.9",), ("a=0.5",)]),
        "max_score": st.sampled_from([("6",), ("b=3",)]),
        "min_score": st.sampled_from([("2",), ("c=5",)]),
        "unretrieved": st.sampled_from(["drop", "keep"]),
    },
)
POLICIES = st.builds(
    lambda policy, keep, floor, depth: replace(policy, negatives=keep, min_negatives=floor, depth=depth),
    st.sampled_from([MSMARCO, TEVATRON, SBERT]),
    st.none() | st.integers(0, 12),
    st.integers(0, 40),
    st.none() | st.integers(1, 30),
)


def mine_pools(queries, policy, options, limit, by_source, promote, *, batch_size: int) -> list[CandidatePool]:
    """Mine the queries in batches, and return their candidate pools."""
    grades = {f"q{at}": judged for at, (_, judged) in enumerate(queries)}
    if by_source:  # the grade of a document is that of its best chunk
        order = {id: sorted(some.items(), key=lambda item: item[1]) for id, some in grades.items()}
        grades = {id: {parse_document_id(one): grade for one, grade in some} for id, some in order.items()}
    stream = QueryStream(MiningSources([]), InputTracker(), {}, open_once(*IDS), grades, by_source=by_source)
    miner = Miner(stream, policy, 7, score_filters=build_score_filters(MineSettings(**options), list("abc")))
    if promote:
        miner.answers = ChunkNumberFilter(limit)
    else:
        miner.content_filters = [ChunkNumberFilter(limit)]
    mining = [MiningQuery(f"q{at}", hits, Query(f"q{at}", "", ["any"])) for at, (hits, _) in enumerate(queries)]
    starts = range(0, len(mining), batch_size)
    return [pool for start in starts for pool in miner.mine(mining[start : start + batch_size])]


@settings(max_examples=120, deadline=None)
@given(QUERIES, POLICIES, OPTIONS, st.integers(-1, 2), st.booleans(), st.booleans())
def test_no_positive_is_a_negative_and_every_candidate_is_audited(queries, policy, options, limit, by_source, promote):
    pools = mine_pools(queries, policy, options, limit, by_source, promote, batch_size=3)
    rows = []
    for pool, (_, judged) in zip(pools, queries, strict=True):
        rows.append(row := build_audit_row(pool))
        negatives = [one.id for one in pool.negatives]
        relevant = {id for id, grade in judged.items() if grade >= 1}
        relevant_documents = {parse_document_id(id) for id in relevant} if by_source else set()
        assert not set(negatives) & (relevant | set(pool.positives))
        assert not {parse_document_id(id) for id in negatives} & relevant_documents
        assert len(set(negatives)) == len(negatives)
        assert not set(negatives) & (pool.rejected.keys() | set(pool.promoted))
        assert not set(pool.promoted) & pool.rejected.keys()
        assert all(int(id[-1]) <= limit for id in negatives)  # the random ones too
        if not pool.skipped:
            mined = [one for one in pool.negatives if one.source != RANDOM]
            assert pool.num_candidates == len(mined) + len(pool.rejected) + len(pool.promoted) + row["not_sampled"]
            assert row["not_sampled"] >= 0
            assert len(pool.negatives) <= max(len(mined), policy.min_negatives)
            retrieved = {id for one in pool.query.hits.values() for id in one.ids[: policy.depth]}
            random = {one.id for one in pool.negatives if one.source == RANDOM}
            assert not random & retrieved
            assert all("rank" not in one and "gap" not in one for one in row["kept"] if one["id"] in random)
            # Random passages are neither retrieved nor positive, and pass the filter.
            eligible = {id for id in IDS if parse_document_id(id) not in relevant_documents and int(id[-1]) <= limit}
            eligible -= retrieved | relevant | set(pool.positives)
            num_expected = min(len(eligible), max(0, policy.min_negatives - len(mined)))
            assert random <= eligible
            assert len(random) <= num_expected
            # If the filter rejects some, sampling may stop before all are found.
            assert len(random) == num_expected or limit < 2
    summary = summarize_audit(rows)
    assert summary.sources[RANDOM] == sum(one.rank == 0 for pool in pools if not pool.skipped for one in pool.negatives)
    assert summary.num_negatives == sum(len(pool.negatives) for pool in pools if not pool.skipped)
    assert sum(summary.dropped.values()) == sum(len(pool.rejected) for pool in pools)
    assert summary.queries == summary.negatives.count + sum(summary.skipped.values())


@settings(max_examples=60, deadline=None)
@given(QUERIES, POLICIES, OPTIONS, st.integers(0, 2), st.integers(1, 6))
def test_the_batch_size_does_not_change_results(queries, policy, options, limit, batch_size):
    parts = mine_pools(queries, policy, options, limit, False, False, batch_size=batch_size)
    whole = mine_pools(queries, policy, options, limit, False, False, batch_size=len(queries))
    assert [build_audit_row(pool) for pool in parts] == [build_audit_row(pool) for pool in whole]
