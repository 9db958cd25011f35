"""Packed examples are restored unchanged; unknown ids are reported."""

from collections.abc import Iterable

import pytest

from drtk.errors import DrtkError, MismatchError
from drtk.records import Example
from drtk.training.examples import PackedExamples

EXAMPLES = [Example("q1", ("a", "b"), ("c",)), Example("q2", ("c",), ("a", "d", "b")), Example("q3", ("e",), ())]


class Corpus:
    def __init__(self, ids: str) -> None:
        self._ids = set(ids)

    def find_missing(self, ids: Iterable[str]) -> list[str]:
        return [id for id in ids if id not in self._ids]


def read_ids(packed: PackedExamples, numbers: Iterable[int]) -> str:
    return "".join(packed.passage_ids[number] for number in numbers)


def test_packed_examples_are_restored_unchanged():
    packed = PackedExamples(EXAMPLES)
    assert len(packed) == 3
    assert packed.query_ids == ["q1", "q2", "q3"]
    assert packed.passage_ids == list("abcde")
    assert [read_ids(packed, packed.get_positives(number)) for number in range(3)] == ["ab", "c", "e"]
    assert [read_ids(packed, packed.get_negatives(number)) for number in range(3)] == ["c", "adb", ""]


@pytest.mark.parametrize(
    ("queries", "ids", "negatives", "told"),
    [
        ("q1 q3", "abcde", 0, "2: the queries have no 'q2'; use the file"),
        ("q1 q2 q3", "abce", 0, "2: the corpus has no 'd'; use the file"),
        ("q1", "abcde", 0, "2: the queries have no 'q2'; 2 of the 3 ids in the examples are missing; use the file"),
        ("q1 q2 q3", "abc", 0, "2: the corpus has no 'd'; 2 of the 5 ids in the examples are missing; use the file"),
        ("q1 q2 q3", "abcde", 1, "3: query 'q3' has no negatives; mine them with `drtk mine-negatives`, or train a retriever with `negatives` 0$"),
    ],
)  # fmt: skip
def test_missing_texts_and_negatives_are_reported(queries: str, ids: str, negatives: int, told: str):
    texts = dict.fromkeys(queries.split(), "text")
    with pytest.raises(DrtkError, match=rf"ex\.jsonl:{told}") as fault:
        PackedExamples(EXAMPLES).check_examples("ex.jsonl", queries=texts, corpus=Corpus(ids), negatives=negatives)
    assert isinstance(fault.value, MismatchError) == (negatives == 0)


SCORED = [
    Example("q1", ("a", "b"), ("c",), {"positives": [1.5, 2.5], "negatives": [-3.5]}),
    Example("q2", ("c",), ("a", "d"), {"positives": [4.0], "negatives": [0.25, 0.5]}),
]


@pytest.mark.parametrize(
    ("scores", "told"),
    [
        (None, r"ex\.jsonl:3: query 'q3' has no score for 'e'; add teacher scores"),
        ({"positives": [1.0]}, r"ex\.jsonl:3: query 'q3' has no score for 'a'; add teacher scores"),
        ({"positives": [1.0], "negatives": [1e300]}, r"ex\.jsonl:3: query 'q3' has the score inf for 'a'"),
    ],
)
def test_missing_teacher_scores_are_reported(scores: dict | None, told: str):
    packed = PackedExamples([*SCORED, Example("q3", ("e",), ("a",), scores)], scored=True)
    texts = dict.fromkeys(("q1", "q2", "q3"), "text")
    with pytest.raises(DrtkError, match=told):
        packed.check_examples("ex.jsonl", queries=texts, corpus=Corpus("abcde"), negatives=1)


def test_a_share_of_the_queries_is_part_of_a_larger_share():
    lines = [
        Example(f"q{n // 2}", (f"p{n}", "shared"), (f"n{n}",), {"positives": [n, 1], "negatives": [-n]})
        for n in range(40)
    ]
    kept = []
    for share in (0.05, 0.5, 1.0):
        packed = PackedExamples(lines, scored=True)
        packed.subsample(share, seed=3)
        kept.append(set(packed.query_ids))
        assert len(packed) == 2 * round(share * 20)  # two lines a query
        for number in range(len(packed)):
            first, shared = packed.get_positives(number)
            own = packed.passage_ids[first]
            assert packed.passage_ids[shared] == "shared"
            assert read_ids(packed, packed.get_negatives(number)) == "n" + own[1:]
            assert list(packed.get_scores(number)[0]) == [float(own[1:]), 1.0]
            assert list(packed.get_scores(number)[1]) == [-float(own[1:])]
        assert len(packed.passage_ids) == 2 * len(packed) + 1  # nothing is looked up for those left out
    assert kept[0] < kept[1] < kept[2]
    other, tiny = PackedExamples(lines), PackedExamples(lines)
    other.subsample(0.5, seed=4)
    assert set(other.query_ids) != kept[1]
    tiny.subsample(0.001, seed=4)
    assert len(set(tiny.query_ids)) == 1


def test_examples_with_few_negatives_are_counted(caplog: pytest.LogCaptureFixture):
    for count in (0, 1, 2, 4):
        PackedExamples(EXAMPLES).warn_of_few_negatives(count)
    assert [message.partition(";")[0] for message in caplog.messages] == [  # lists of 1, 3 and none
        "1 examples have fewer than 2 negatives",
        "2 examples have fewer than 4 negatives",
    ]


def test_a_positive_is_removed_from_the_negatives(caplog: pytest.LogCaptureFixture):
    # q1's negatives are b c a d, of which a and b are its positives; 1 and 3 are the scores of c and d
    scores = {"positives": [9.0, 8.0], "negatives": [0.0, 1.0, 2.0, 3.0]}
    other = {"positives": [4.0], "negatives": [0.25]}
    lines = [Example("q1", ("a", "b"), ("b", "c", "a", "d"), scores), Example("q2", ("c",), ("a",), other)]
    packed = PackedExamples(lines, scored=True)
    assert packed.contradictions == 2
    assert [read_ids(packed, packed.get_negatives(number)) for number in range(2)] == ["cd", "a"]
    assert [list(packed.get_scores(number)[1]) for number in range(2)] == [[1.0, 3.0], [0.25]]
    packed.check_examples("ex.jsonl", queries={"q1": "", "q2": ""}, corpus=Corpus("abcd"), negatives=1)
    assert "ex.jsonl: removed 2 negatives that are also positives of their example" in caplog.text
    first = PackedExamples(lines, scored=True, first_positive=True)  # b is right all the same
    assert (read_ids(first, first.get_positives(0)), read_ids(first, first.get_negatives(0))) == ("a", "cd")
    assert list(first.get_scores(0)[0]) == [9.0]
    alone = PackedExamples([Example("q1", ("a",), ("a",))])
    with pytest.raises(DrtkError, match=r"ex\.jsonl:1: query 'q1' has no negatives"):
        alone.check_examples("ex.jsonl", queries={"q1": ""}, corpus=Corpus("a"), negatives=1)


def test_skipped_errors_exclude_their_examples():
    # lines 2 (its passage d), 3 (no negatives) and 4 (its query) are of no use; line 5 is
    packed, faults = PackedExamples([*EXAMPLES, Example("q4", ("a",), ("b",)), Example("q1", ("b",), ("f",))]), []
    texts: dict[str, str] = dict.fromkeys(("q1", "q2", "q3"), "")
    packed.check_examples("ex.jsonl", queries=texts, corpus=Corpus("abcef"), negatives=1, on_error=faults.append)
    assert [str(fault).partition(";")[0] for fault in faults] == [
        "ex.jsonl:2: the corpus has no 'd'",
        "ex.jsonl:3: query 'q3' has no negatives",
        "ex.jsonl:4: the queries have no 'q4'",
    ]
    assert packed.query_ids == ["q1", "q1"]
    assert [read_ids(packed, packed.get_positives(number)) for number in range(2)] == ["ab", "b"]
    assert [read_ids(packed, packed.get_negatives(number)) for number in range(2)] == ["c", "f"]
    assert packed.passage_ids == list("abcf")  # nothing is looked up for those left out
