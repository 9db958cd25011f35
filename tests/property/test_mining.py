"""Whatever was retrieved and judged: no positive is a negative, every candidate is accounted for, and batches change nothing."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from drtk.data.ids import CorpusIds, parse_document_id
from drtk.mining.audit import build_audit_row
from drtk.mining.candidates import CandidatePool, Hits, MiningQuery
from drtk.mining.config import MineSettings
from drtk.mining.filters import ContentFilter, build_score_filters
from drtk.mining.miner import RANDOM, Miner
from drtk.mining.policies import MSMARCO, SBERT, TEVATRON
from drtk.mining.report import summarize
from drtk.mining.sources import QueryStream, Sources
from drtk.records import Passage, Query
from drtk.runtime.inputs import InputTracker

IDS = [f"d{document}#{chunk}" for document in range(10) for chunk in range(3)]
CORPUS = CorpusIds(Passage(id, "") for id in IDS)


class Parity(ContentFilter):
    """Measure the number of a chunk, and reject those beyond a limit."""

    name = "parity"

    def measure(self, pools, ids):
        for pool, some in zip(pools, ids, strict=True):
            for id in some:
                pool.set_value(id, self.name, float(id[-1]))

    def is_beyond(self, value, limit):
        return value > limit


@st.composite
def rankings(draw):
    """Up to three sources with up to thirty passages each, and scores that fall."""
    found = {}
    for name in draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)):
        ids = draw(st.lists(st.sampled_from(IDS), max_size=30, unique=True))
        scores = sorted(draw(st.lists(st.integers(0, 9), min_size=len(ids), max_size=len(ids))), reverse=True)
        found[name] = Hits(ids, [float(score) for score in scores])
    return found


QUERIES = st.lists(
    st.tuples(rankings(), st.dictionaries(st.sampled_from(IDS), st.integers(0, 2), max_size=6)), min_size=1, max_size=6
)
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


def mined(queries, policy, options, most, by_source, promote, *, window: int) -> list[CandidatePool]:
    """The pools of the queries, `window` of them at a time."""
    grades = {f"q{at}": judged for at, (_, judged) in enumerate(queries)}
    if by_source:
        grades = {
            id: {
                parse_document_id(one): max(
                    grade for two, grade in some.items() if parse_document_id(two) == parse_document_id(one)
                )
                for one in some
            }
            for id, some in grades.items()
        }
    stream = QueryStream(Sources([]), InputTracker(), {}, CORPUS, grades, by_source=by_source)
    miner = Miner(stream, policy, 7, score_filters=build_score_filters(MineSettings(**options), None))
    if promote:
        miner.answers = Parity(most)
    else:
        miner.content_filters = [Parity(most)]
    mining = [MiningQuery(f"q{at}", found, Query(f"q{at}", "", ["any"])) for at, (found, _) in enumerate(queries)]
    return [pool for start in range(0, len(mining), window) for pool in miner.mine(mining[start : start + window])]


@settings(max_examples=120, deadline=None)
@given(QUERIES, POLICIES, OPTIONS, st.integers(-1, 2), st.booleans(), st.booleans())
def test_no_positive_is_a_negative_and_every_candidate_is_accounted_for(
    queries, policy, options, most, by_source, promote
):
    pools = mined(queries, policy, options, most, by_source, promote, window=3)
    rows = []
    for pool, (_, judged) in zip(pools, queries, strict=True):
        rows.append(row := build_audit_row(pool))
        negatives = [one.id for one in pool.negatives]
        relevant = {id for id, grade in judged.items() if grade >= 1}
        assert not set(negatives) & set(pool.positives)
        assert not set(negatives) & relevant
        if by_source:
            assert not {parse_document_id(id) for id in negatives} & {parse_document_id(id) for id in relevant}
        assert len(set(negatives)) == len(negatives)
        assert not set(negatives) & (pool.rejected.keys() | set(pool.promoted))
        assert not set(pool.promoted) & pool.rejected.keys()
        assert all(int(id[-1]) <= most for id in negatives)  # the random ones too
        if not pool.skipped:
            mine = [one for one in pool.negatives if one.source != RANDOM]
            assert pool.num_candidates == len(mine) + len(pool.rejected) + len(pool.promoted) + row["not_drawn"]
            assert row["not_drawn"] >= 0
            assert len(pool.negatives) <= max(len(mine), policy.min_negatives)
            retrieved = {id for one in pool.query.hits.values() for id in one.ids[: policy.depth]}
            random = {one.id for one in pool.negatives if one.source == RANDOM}
            assert not random & retrieved
            assert all("rank" not in one and "gap" not in one for one in row["kept"] if one["id"] in random)
            # What a query may be filled with: what is neither retrieved nor positive, and what the check lets pass.
            free = {id for id in IDS if id not in retrieved | relevant | set(pool.positives) and int(id[-1]) <= most}
            if by_source:
                free = {id for id in free if parse_document_id(id) not in {parse_document_id(one) for one in relevant}}
            wanted = min(len(free), max(0, policy.min_negatives - len(mine)))
            assert random <= free
            assert len(random) <= wanted
            assert len(random) == wanted or most < 2  # where some are refused, the rounds may end before all were found
    summary = summarize(rows)
    assert summary.sources[RANDOM] == sum(one.rank == 0 for pool in pools if not pool.skipped for one in pool.negatives)
    assert summary.num_negatives == sum(len(pool.negatives) for pool in pools if not pool.skipped)
    assert sum(summary.dropped.values()) == sum(len(pool.rejected) for pool in pools)
    assert summary.queries == summary.negatives.count + sum(summary.skipped.values())


@settings(max_examples=60, deadline=None)
@given(QUERIES, POLICIES, OPTIONS, st.integers(0, 2), st.integers(1, 6))
def test_windows_change_nothing(queries, policy, options, most, window):
    parts = mined(queries, policy, options, most, False, False, window=window)
    whole = mined(queries, policy, options, most, False, False, window=len(queries))
    assert [build_audit_row(pool) for pool in parts] == [build_audit_row(pool) for pool in whole]
