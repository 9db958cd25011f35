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
        ("q1 q3", "abcde", 0, r"ex\.jsonl:2: the queries have no 'q2'"),
        ("q1 q2 q3", "abce", 0, r"ex\.jsonl:2: the corpus has no 'd'"),
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
