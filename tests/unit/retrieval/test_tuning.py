"""The grid of k1 and b."""

from __future__ import annotations

from pathlib import Path

import pytest

from drtk.errors import MismatchError, UsageError
from drtk.indexing.bm25s import Bm25sIndex
from drtk.indexing.config import BM25IndexSettings, BM25SearchSettings
from drtk.records import Query
from drtk.retrieval.tuning import GRID, Tuned, parse_grid, tune
from tests.bm25 import passages

# `far` has the word twice among ten, `near` once alone: with b = 0 length does not count and 2 > 1 occurrence wins; with
# b = 1 and avgdl 5.5 near wins at k1 .9: 1/(1 + .9/5.5) = .859 against 2/(2 + .9 * 10/5.5) = .550
TEXTS = {"near": "word", "far": "word word a b c d e f g h"}


def reciprocal_rank(qrels: dict, rankings: dict) -> float:
    values = []
    for query_id, grades in qrels.items():
        ids = [id for id, _ in rankings.get(query_id, [])]
        values.append(next((1 / rank for rank, id in enumerate(ids, 1) if grades.get(id, 0) > 0), 0.0))
    return sum(values) / len(values)


def tuned(tmp_path: Path, qrels: dict, **keywords: object) -> list[Tuned]:
    Bm25sIndex.build(passages(TEXTS), tmp_path, BM25IndexSettings())
    queries = [Query(id="q1", text="word"), Query(id="unjudged", text="word")]
    return tune(
        lambda k1, b: Bm25sIndex.open(tmp_path, BM25SearchSettings(k1=k1, b=b)),
        queries,
        qrels,
        grid=parse_grid("k1=0.9,1.2 b=0,1"),
        measure=reciprocal_rank,
        **keywords,
    )


def test_the_best_point_comes_first_and_every_point_is_there(tmp_path: Path) -> None:
    assert tuned(tmp_path, {"q1": {"near": 1}}) == [
        Tuned(0.9, 1.0, 1.0),
        Tuned(1.2, 1.0, 1.0),
        Tuned(0.9, 0.0, 0.5),
        Tuned(1.2, 0.0, 0.5),
    ]


def test_another_judgement_turns_the_table(tmp_path: Path) -> None:
    assert tuned(tmp_path, {"q1": {"far": 1}})[0] == Tuned(0.9, 0.0, 1.0)


def test_depth_cuts_what_the_measure_sees(tmp_path: Path) -> None:
    assert tuned(tmp_path, {"q1": {"near": 1}}, depth=1)[-1].value == 0.0


def test_judgements_of_other_queries_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="judgement"):
        tuned(tmp_path, {"q2": {"near": 1}})


def test_a_grid_is_every_pair() -> None:
    assert parse_grid("b=0.4 k1=0.9,1.2") == [(0.9, 0.4), (1.2, 0.4)]
    assert len(parse_grid(GRID)) == 30
    assert {(0.9, 0.4), (0.82, 0.68), (1.2, 0.75)} <= set(parse_grid(GRID))


@pytest.mark.parametrize(
    "text", ["", "k1=0.9", "k1=0.9 b=", "k1=a b=0.4", "k1=1 k1=2 b=0", "k1=1 b=2", "k1=-1 b=0", "k1=nan b=0"]
)
def test_a_grid_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_grid(text)
