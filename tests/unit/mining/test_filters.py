"""Mining filters: rejected candidates, limits, and effects of a rejection on other sources."""

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.mining.candidates import CandidatePool, Hits, MiningQuery
from drtk.mining.config import MineSettings
from drtk.mining.content_filters import (
    CosineFilter,
    CrossEncoderFilter,
    PassageCache,
    VectorsById,
    compute_overlap,
    make_shingles,
)
from drtk.mining.filters import (
    UNRETRIEVED,
    build_score_filters,
    compute_margin_limit,
    compute_share_limit,
    parse_limits,
)
from drtk.mining.mine import Miner
from drtk.mining.policies import Policy
from drtk.mining.sources import MiningSources, QueryStream
from drtk.records import Query
from drtk.runtime.inputs import InputTracker
from tests.embedding_folders import write_embeddings
from tests.expansion_collection import write_rows


def build_pool(hits: Mapping[str, Hits], *positives: str) -> CandidatePool:
    queries = QueryStream(MiningSources([]), InputTracker(), judgments={"q": dict.fromkeys(positives, 1)})
    return Miner(queries, Policy(negatives=None), 1).build_pool(MiningQuery("q", dict(hits), Query("q", "what")))


def apply_filters(rankings: Mapping[str, Any], *positives: str, **options: Any) -> tuple[dict[str, Any], CandidatePool]:
    """Apply the score filters; return the remaining candidates of each source, and the pool."""
    hits = {name: Hits([id for id, _ in found], [score for _, score in found]) for name, found in rankings.items()}
    pool = build_pool(hits, *positives)
    for reject in build_score_filters(MineSettings(**options), list(rankings)):
        reject(pool)
    return {source: [one.id for one in left] for source, left in pool.candidates.items()}, pool


RUN = {"bm25": [("a", 9.0), ("p", 8.0), ("b", 7.5), ("c", 6.0), ("d", 1.0)]}
BOTH = {"bm25": [("a", 9.0), ("b", 7.0), ("p", 6.0)], "dense": [("p", 0.9), ("b", 0.8), ("a", 0.2), ("c", 0.1)]}
ALL = ["a", "p", "b", "c", "d"]


@pytest.mark.parametrize(
    ("rankings", "positives", "options", "left"),
    [
        # A score at the limit is kept.
        (RUN, "p", {"margin": ("0.5",)}, {"bm25": ["b", "c", "d"]}),  # 8 - .5 = 7.5, the score of b
        (RUN, "p", {"max_score": ("7.5",)}, {"bm25": ["b", "c", "d"]}),
        (RUN, "p", {"min_score": ("6",)}, {"bm25": ["a", "b", "c"]}),
        (RUN, "pc", {"margin": ("0.5",)}, {"bm25": ["d"]}),  # the lowest positive counts: 6 - .5 = 5.5
        (RUN, "p", {"max_share": ("0.95",)}, {"bm25": ["b", "c", "d"]}),  # .95 of 8 is 7.6
        (RUN, ["elsewhere"], {"margin": ("1",), "unretrieved": "keep"}, {"bm25": ALL}),
        # dense: .9 - .05 = .85 drops nothing; bm25: 6 - .05 = 5.95 drops a and b, which dense would keep
        (BOTH, "p", {"margin": ("0.05",)}, {"bm25": [], "dense": ["c"]}),
        (BOTH, "p", {"margin": ("dense=0.05",)}, {"bm25": ["a", "b"], "dense": ["b", "a", "c"]}),
        (BOTH, "p", {"margin": ("bm25=-2", "dense=0.2")}, {"bm25": [], "dense": ["c"]}),  # 6 + 2 < 9; .7 < .8
    ],
)
def test_score_limits(rankings, positives, options, left):
    assert apply_filters(rankings, *positives, **options)[0] == left


@pytest.mark.parametrize(
    ("rankings", "options", "left", "rejected"),
    [
        # The positive counts as a rank.
        (RUN, {"from_rank": 4}, {"bm25": ["c", "d"]}, {"a": ("rank", 1, 4), "b": ("rank", 3, 4)}),
        # A passage below the limit of one source is kept by the other; c is in dense alone.
        (BOTH, {"min_score": ("dense=0.5",)}, {"bm25": ["a", "b"], "dense": ["b"]}, {"c": ("min-score", 0.1, 0.5)}),
    ],
)
def test_rejections_record_value_and_limit(rankings, options, left, rejected):
    candidates, pool = apply_filters(rankings, "p", **options)
    assert candidates == left
    assert {id: rejection[1:] for id, rejection in pool.rejected.items()} == rejected


def test_a_margin_is_taken_from_the_positives_score():
    # 8 - 1 = 7: a (9) and b (7.5) are nearer than 1 below the positive, c (6) is not
    left, pool = apply_filters(RUN, "p", margin=("1",))
    assert left == {"bm25": ["c", "d"]}
    rejected = {"a": ("margin", 9.0, 7.0), "b": ("margin", 7.5, 7.0)}
    assert {id: rejection[1:] for id, rejection in pool.rejected.items()} == rejected
    pool.promote(["d"])  # contains an answer, but only judged positives set the limit
    assert pool.find_reference_score("bm25") == 8.0
    left, pool = apply_filters(RUN, "elsewhere", margin=("1",))
    assert left == {"bm25": []}
    assert {rejection.filter for rejection in pool.rejected.values()} == {UNRETRIEVED}


def test_shares_of_negative_scores_are_below_them():
    assert compute_share_limit(8.0, 0.95) == pytest.approx(7.6)
    assert compute_share_limit(-2.0, 0.95) == pytest.approx(-2.1)  # -2 - .05 * 2, where .95 * -2 = -1.9 would lie above
    assert compute_margin_limit(-2.0, 0.5) == -2.5


def test_limits_by_source_and_rejected_limits():
    assert parse_limits(("3", "bm25=2"), "margin", ["bm25"]) == {"": 3.0, "bm25": 2.0}
    faults: list[tuple[dict[str, Any], str]] = [
        ({"margin": ("x",)}, "`margin`: expected a number or NAME=NUMBER, got 'x'"),
        ({"min_score": ("x=1",)}, "`min_score`: unknown source 'x'; choose from bm25"),
        ({"max_score": ("nan",)}, "`max_score`: expected a number, got NaN"),
        ({"max_share": ("95",)}, "`max_share` must be between"),
        ({"max_share": ("-0.1",)}, "`max_share` must be between"),
    ]
    for options, problem in faults:
        with pytest.raises(UsageError, match=problem):
            build_score_filters(MineSettings(**options), ["bm25"])


def test_overlap_counts_shared_runs_of_three_words():
    # "a b c d" has abc and bcd, "b c d e" has bcd and cde: one of three
    assert compute_overlap(make_shingles("a b c d"), make_shingles("B, c. D e!")) == pytest.approx(1 / 3)
    assert compute_overlap(make_shingles("The same  words"), make_shingles("the SAME words.")) == 1.0
    assert compute_overlap(make_shingles("short"), make_shingles("short")) == 1.0
    assert compute_overlap(make_shingles("one two"), make_shingles("one three")) == 0.0
    assert compute_overlap(make_shingles(""), make_shingles("!")) == 1.0


def test_the_nearest_positive_counts_and_vectors_need_not_be_of_length_one(tmp_path):
    # cosines of a: 4/5 with p (the same as (.8, .6)), 0 with r (0, -.5)...: (4, 3) . (0, -1) / 5 = -.6
    vectors = [[2, 0], [0, -0.5], [4, 3], [0, -7]]
    folder = write_embeddings(tmp_path / "v", vectors, ["p", "r", "a", "b"], shard_size=3)
    check = CosineFilter(VectorsById(folder), 0.9)
    pool = build_pool({"run": Hits(["a", "b"])}, "p", "r")
    check.measure_passages([pool], [["a", "b"]])
    assert pool.values == {"a": {"cosine": pytest.approx(0.8)}, "b": {"cosine": pytest.approx(1.0)}}
    assert [check.is_rejected(pool.values[id]["cosine"], 0.9) for id in "ab"] == [False, True]


def test_missing_and_non_finite_vectors_are_reported(tmp_path):
    actual = VectorsById(write_embeddings(tmp_path / "v", [[1, 0], [0, 1], [1, 1]], ["a", "b", "c"], shard_size=2))
    assert actual.get_vectors(["b", "a", "b"]).tolist() == [[0, 1], [1, 0], [0, 1]]
    with pytest.raises(MismatchError, match="v: has no vector for passage 'x' and 1 more"):
        actual.get_vectors(["a", "x", "y"])
    with pytest.raises(MismatchError, match="contains query embeddings"):
        VectorsById(write_embeddings(tmp_path / "q", [[1, 0]], ["a"], role="query"))
    actual = VectorsById(str(tmp_path / "v"))
    np.save(tmp_path / "v" / "00000.npy", np.float32([[1, 0], [np.nan, 1]]))
    assert actual.get_vectors(["c"]).shape == (1, 2)
    with pytest.raises(DrtkError, match=r"v/00000\.npy: row 1: the vector of 'b' contains NaN or infinity"):
        actual.get_vectors(["c", "b", "a"])


class Judge:
    """Cross-encoder that looks up scores in a table, and records the scored pairs."""

    model = "judge"

    def __init__(self, scores: dict[str, float], *, low: float = -inf, high: float = inf) -> None:
        self.scores, self.asked = scores, list[tuple[str, str]]()
        self.score_bounds = low, high

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        self.asked += pairs
        return np.array([self.scores[text] for _, text in pairs], dtype=np.float32)


def texts_of(tmp_path: Path, **texts: str) -> PassageCache:
    rows = [{"_id": id, "title": "T" if id == "a" else "", "text": text} for id, text in texts.items()]
    return PassageCache(str(write_rows(tmp_path / "corpus.jsonl", rows)))


def test_a_cross_encoder_reads_title_and_text_and_the_lowest_positive_sets_the_limit(tmp_path):
    judge = Judge({"T ta": 4.5, "tb": 4.25, "tp": 8.0, "tr": 7.5})
    check = CrossEncoderFilter(judge, texts_of(tmp_path, a="ta", b="tb", p="tp", r="tr"), margin=3.25)
    pool = build_pool({"run": Hits(["a", "b"])}, "p", "r")
    check.measure_passages([pool], [["a", "b"]])
    assert check.get_limit(pool) == 4.25  # 7.5 - 3.25
    assert [check.is_rejected(pool.values[id]["ce"], 4.25) for id in "ab"] == [True, False]
    check.measure_passages([pool], [["a", "b"]])
    assert len(judge.asked) == 4  # what was scored once is not scored again


def test_a_margin_above_the_range_of_scores_is_rejected():
    for low, high, margin in ((0, 1, 3), (-1, 1, 2)):
        problem = f"judge: scores are between {low} and {high}, so no negative can score"
        with pytest.raises(MismatchError, match=problem):
            CrossEncoderFilter(Judge({}, low=low, high=high), None, margin=margin)
    assert CrossEncoderFilter(Judge({}, low=-1, high=1), None, margin=1.5)
    assert CrossEncoderFilter(Judge({}), None, margin=3)
