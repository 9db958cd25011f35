"""Filters by rank and score: what they drop, by which limit, and what one source's doubt means for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from drtk.errors import UsageError
from drtk.mining.config import MineSettings
from drtk.mining.filters import UNRETRIEVED, limits_of, margin_limit, place_filters, share_limit
from drtk.mining.policies import Policy
from drtk.mining.pool import Asked, Pool, Ranked
from drtk.mining.sampler import Miner

Scored = Sequence[tuple[str, float]]


def pool_of(rankings: Mapping[str, Scored], *positives: str) -> Pool:
    found = {name: Ranked([id for id, _ in hits], [score for _, score in hits]) for name, hits in rankings.items()}
    return Miner(Policy(keep=None), 1).pool(Asked("q", found), dict.fromkeys(positives, 1))


def filtered(rankings: Mapping[str, Scored], *positives: str, **options: Any) -> tuple[dict[str, list[str]], Pool]:
    """What each source has left, and the pool."""
    pool = pool_of(rankings, *positives)
    for filter in place_filters(MineSettings(**options), list(rankings)):
        filter([pool])
    return {source: [one.id for one in left] for source, left in pool.candidates.items()}, pool


RUN = {"bm25": [("a", 9.0), ("p", 8.0), ("b", 7.5), ("c", 6.0), ("d", 1.0)]}


def test_nothing_is_dropped_unless_asked_for() -> None:
    left, pool = filtered(RUN, "p")
    assert left == {"bm25": ["a", "b", "c", "d"]}
    assert pool.dropped == {}
    assert pool.seen == 4


def test_the_first_ranks_can_be_left_out_and_positives_count_as_ranks() -> None:
    left, pool = filtered(RUN, "p", from_rank=4)  # ranks: a 1, p 2, b 3, c 4, d 5
    assert left == {"bm25": ["c", "d"]}
    assert [(drop.sighting.rank, drop.by, drop.limit) for drop in pool.dropped.values()] == [
        (1, "rank", 4),
        (3, "rank", 4),
    ]


def test_a_margin_is_taken_from_the_positives_score() -> None:
    # 8 - 1 = 7: a (9) and b (7.5) are nearer than 1 below the positive, c (6) is not
    left, pool = filtered(RUN, "p", margin=("1",))
    assert left == {"bm25": ["c", "d"]}
    assert {id: (drop.value, drop.limit) for id, drop in pool.dropped.items()} == {"a": (9.0, 7.0), "b": (7.5, 7.0)}


def test_what_lies_at_the_limit_stays() -> None:
    assert filtered(RUN, "p", margin=("0.5",))[0] == {"bm25": ["b", "c", "d"]}  # 8 - .5 = 7.5, the score of b
    assert filtered(RUN, "p", max_score=("7.5",))[0] == {"bm25": ["b", "c", "d"]}
    assert filtered(RUN, "p", min_score=("6",))[0] == {"bm25": ["a", "b", "c"]}


def test_of_several_positives_the_lowest_counts() -> None:
    # p 8 and c 6: 6 - 1 = 5
    assert filtered(RUN, "p", "c", margin=("1",))[0] == {"bm25": ["d"]}


def test_a_share_of_the_positives_score() -> None:
    # .95 of 8 is 7.6: a goes, b (7.5) stays
    assert filtered(RUN, "p", max_share=("0.95",))[0] == {"bm25": ["b", "c", "d"]}


def test_limits_of_scores_below_zero_lie_below_them() -> None:
    assert share_limit(8.0, 0.95) == pytest.approx(7.6)
    assert share_limit(-2.0, 0.95) == pytest.approx(-2.1)  # -2 - .05 * 2, where .95 * -2 = -1.9 would lie above
    assert margin_limit(-2.0, 0.5) == -2.5


def test_where_the_positive_was_not_found_everything_stands_above_it() -> None:
    left, pool = filtered(RUN, "elsewhere", margin=("1",))
    assert left == {"bm25": []}
    assert {drop.by for drop in pool.dropped.values()} == {UNRETRIEVED}
    assert filtered(RUN, "elsewhere", margin=("1",), unretrieved="keep")[0] == {"bm25": ["a", "p", "b", "c", "d"]}


BOTH = {"bm25": [("a", 9.0), ("b", 7.0), ("p", 6.0)], "dense": [("p", 0.9), ("b", 0.8), ("a", 0.2), ("c", 0.1)]}


def test_each_source_is_measured_on_its_own_scale_and_its_doubt_holds_for_all() -> None:
    # dense: .9 - .05 = .85 drops nothing; bm25: 6 - .05 = 5.95 drops a and b, which dense would keep
    assert filtered(BOTH, "p", margin=("0.05",))[0] == {"bm25": [], "dense": ["c"]}
    assert filtered(BOTH, "p", margin=("dense=0.05",))[0] == {"bm25": ["a", "b"], "dense": ["b", "a", "c"]}
    assert filtered(BOTH, "p", margin=("bm25=-2", "dense=0.2"))[0] == {"bm25": [], "dense": ["c"]}  # 6 + 2 < 9; .7 < .8


def test_a_low_score_drops_only_what_no_other_source_puts_higher() -> None:
    left, pool = filtered(BOTH, "p", min_score=("dense=0.5",))
    assert left == {"bm25": ["a", "b"], "dense": ["b"]}  # a stays by bm25; c has dense alone
    assert {id: drop.by for id, drop in pool.dropped.items()} == {"c": "min-score"}


def test_limits_that_cannot_be_read_are_refused() -> None:
    assert limits_of(("3", "bm25=2"), "--margin", ["bm25"]) == {"": 3.0, "bm25": 2.0}
    with pytest.raises(UsageError, match="--margin: 'x' is neither a number nor NAME=NUMBER"):
        limits_of(("x",), "--margin", None)
    with pytest.raises(UsageError, match="--margin: there is no source 'x' among bm25"):
        limits_of(("x=1",), "--margin", ["bm25"])
    with pytest.raises(UsageError, match="--margin: is not a number"):
        limits_of(("nan",), "--margin", None)


def test_a_share_meant_in_per_cent_is_told() -> None:
    with pytest.raises(UsageError, match=r"--max-share 95: a share of 1 is all of it; 95% is 0.95"):
        filtered(RUN, "p", max_share=("95",))
