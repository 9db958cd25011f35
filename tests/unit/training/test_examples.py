"""Packed examples give back what went in, and ids that lead nowhere are named."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from drtk.errors import DrtkError, MismatchError
from drtk.records import Example
from drtk.training.examples import PackedExamples

EXAMPLES = [Example("q1", ("a", "b"), ("c",)), Example("q2", ("c",), ("a", "d", "b")), Example("q3", ("e",), ())]


class Corpus:
    def __init__(self, ids: str) -> None:
        self._ids = set(ids)

    def missing(self, ids: Iterable[str]) -> list[str]:
        return [id for id in ids if id not in self._ids]


def names(packed: PackedExamples, numbers: Iterable[int]) -> str:
    return "".join(packed.passage_ids[number] for number in numbers)


def test_packing_loses_nothing():
    packed = PackedExamples(EXAMPLES)
    assert len(packed) == 3
    assert packed.query_ids == ["q1", "q2", "q3"]
    assert packed.passage_ids == list("abcde")
    assert [names(packed, packed.positives(number)) for number in range(3)] == ["ab", "c", "e"]
    assert [names(packed, packed.negatives(number)) for number in range(3)] == ["c", "adb", ""]


@pytest.mark.parametrize(
    ("queries", "ids", "negatives", "told"),
    [
        ("q1 q3", "abcde", 0, r"ex\.jsonl:2: the queries have no 'q2'$"),
        ("q1 q2 q3", "abce", 0, r"ex\.jsonl:2: the corpus has no 'd'$"),
        ("q1", "abcde", 0, r"ex\.jsonl:2: the queries have no 'q2'; 2 of the 3 that the examples name are not there$"),
        ("q1 q2 q3", "abc", 0, r"ex\.jsonl:2: the corpus has no 'd'; 2 of the 5 that the examples name are not there$"),
        ("q1 q2 q3", "abcde", 1, r"ex\.jsonl:3: 'q3' has no negatives; --negatives 0"),
    ],
)
def test_what_is_absent_is_named(queries: str, ids: str, negatives: int, told: str):
    texts = dict.fromkeys(queries.split(), "text")
    with pytest.raises(DrtkError, match=told) as fault:
        PackedExamples(EXAMPLES).check("ex.jsonl", queries=texts, corpus=Corpus(ids), negatives=negatives)
    assert isinstance(fault.value, MismatchError) == (negatives == 0)


def test_what_is_there_passes():
    texts = dict.fromkeys(("q1", "q2", "q3"), "text")
    PackedExamples(EXAMPLES).check("ex.jsonl", queries=texts, corpus=Corpus("abcde"), negatives=0)


SCORED = [
    Example("q1", ("a", "b"), ("c",), {"positives": [1.5, 2.5], "negatives": [-3.5]}),
    Example("q2", ("c",), ("a", "d"), {"positives": [4.0], "negatives": [0.25, 0.5]}),
]


def test_scores_are_kept_beside_their_passages():
    packed = PackedExamples(SCORED, scored=True)
    assert [list(packed.positive_scores(number)) for number in range(2)] == [[1.5, 2.5], [4.0]]
    assert [list(packed.negative_scores(number)) for number in range(2)] == [[-3.5], [0.25, 0.5]]
    with pytest.raises(ValueError, match="no scores were kept"):
        PackedExamples(SCORED).positive_scores(0)


@pytest.mark.parametrize(
    ("scores", "told"),
    [
        (None, r"ex\.jsonl:3: 'q3' has no score for 'e'; drtk score EXAMPLES adds"),
        ({"positives": [1.0]}, r"ex\.jsonl:3: 'q3' has no score for 'a'; drtk score"),
        ({"positives": [1.0], "negatives": [1e300]}, r"ex\.jsonl:3: 'q3': the score of 'a' is inf"),
    ],
)
def test_missing_scores_are_named_where_a_teacher_is_wanted(scores: dict | None, told: str):
    packed = PackedExamples([*SCORED, Example("q3", ("e",), ("a",), scores)], scored=True)
    texts = dict.fromkeys(("q1", "q2", "q3"), "text")
    with pytest.raises(DrtkError, match=told):
        packed.check("ex.jsonl", queries=texts, corpus=Corpus("abcde"), negatives=1)


def test_a_share_of_the_queries_is_part_of_a_larger_share():
    lines = [
        Example(f"q{n // 2}", (f"p{n}", "shared"), (f"n{n}",), {"positives": [n, 1], "negatives": [-n]})
        for n in range(40)
    ]
    kept = []
    for share in (0.05, 0.2, 0.5, 1.0):
        packed = PackedExamples(lines, scored=True)
        packed.thinned(share, seed=3)
        kept.append(set(packed.query_ids))
        assert len(packed) == 2 * round(share * 20)  # two lines a query
        for number in range(len(packed)):
            first, shared = packed.positives(number)
            own = packed.passage_ids[first]
            assert packed.passage_ids[shared] == "shared"
            assert names(packed, packed.negatives(number)) == "n" + own[1:]
            assert list(packed.positive_scores(number)) == [float(own[1:]), 1.0]
            assert list(packed.negative_scores(number)) == [-float(own[1:])]
        assert len(packed.passage_ids) == 2 * len(packed) + 1  # nothing is looked up for those left out
    assert kept[0] < kept[1] < kept[2] < kept[3]
    other = PackedExamples(lines)
    other.thinned(0.2, seed=4)
    assert set(other.query_ids) != kept[1]
    tiny = PackedExamples(lines)
    tiny.thinned(0.001, seed=4)
    assert len(set(tiny.query_ids)) == 1


def test_lists_that_are_too_short_are_counted():
    packed = PackedExamples(EXAMPLES)
    assert [packed.short_of(count) for count in (0, 1, 2, 4)] == [0, 0, 1, 2]  # lists of 1, 3 and none
