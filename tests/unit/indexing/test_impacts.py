"""Impacts of words, read and searched in Lucene. One JVM serves all tests of a process."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.indexing.config import BM25IndexSettings, BM25SearchSettings
from drtk.indexing.indexed_text import impacts_of
from drtk.indexing.lucene.index import ImpactIndex
from drtk.records import Passage
from tests.bm25 import need_lucene


def passage(id: str, impacts: object) -> Passage:
    return Passage(id, "a text that nobody reads", extra={"impacts": impacts})


def opened(folder: Path, impacts: dict[str, dict[str, int]], **settings: object) -> ImpactIndex:
    folder.mkdir(exist_ok=True)
    given = [passage(id, found) for id, found in impacts.items()]
    ImpactIndex.build(given, folder, BM25IndexSettings(threads=2, **settings))
    return ImpactIndex.open(folder, BM25SearchSettings())


def test_impacts_of_nothing_and_less_are_left_out() -> None:
    assert impacts_of(passage("p", {"a": 3, "b": 0, "c": -2, "x" * 256: 9, "y" * 255: 1})) == {"a": 3, "y" * 255: 1}


@pytest.mark.parametrize(
    ("impacts", "complaint"),
    [
        ({"wing": 1.5}, "the impact of 'wing' must be a whole number, found 1.5"),
        ({"wing": True}, "must be a whole number, found bool"),
        ({"wing": "3"}, "must be a whole number, found str"),
        ({"wing": 65_536}, "is 65,536; 65,535 is the largest"),
        ({"two words": 1}, "'two words' of its 'impacts' is empty or contains white space"),
        ({"": 1}, "is empty or contains"),
        ([1], "must be an object"),
    ],
)
def test_what_is_no_impact_is_named(impacts: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        impacts_of(passage("p", impacts))


def test_a_score_is_the_sum_of_the_impacts_of_the_questions_words(tmp_path: Path) -> None:
    need_lucene()
    index = opened(
        tmp_path,
        {
            "d1": {"wing": 255, "bird": 3},
            "d2": {"wing": 40, "craft": 200, "the": 90},
            "d3": {"bird": 120, "cafe": 1, "東": 7},
            "d4": {"sea": 5000},
        },
    )
    found = index.search(["Wing of the BIRD", "wing wing crafts", "café 東京", "sea!", "the", "", "\ud800"], 10)
    assert found == [
        [("d1", 258.0), ("d3", 120.0), ("d2", 40.0)],  # 255 + 3; `the` of d2 is asked by nobody
        [("d1", 255.0), ("d2", 40.0)],  # twice counts once; `crafts` is another word than `craft`
        [("d3", 8.0)],  # 1 + 7
        [("d4", 5000.0)],
        [],
        [],
        [],
    ]


def test_many_random_sums_are_those_added_by_hand(tmp_path: Path) -> None:
    need_lucene()
    draw = random.Random(3)
    words = [f"w{number}" for number in range(40)]
    impacts = {f"p{n:03}": {word: draw.randint(1, 255) for word in draw.sample(words, 12)} for n in range(300)}
    index = opened(tmp_path, impacts)
    for _ in range(20):
        asked = draw.sample(words, 5)
        sums = {id: float(sum(found.get(word, 0) for word in asked)) for id, found in impacts.items()}
        wanted = sorted(((id, score) for id, score in sums.items() if score), key=lambda hit: hit[::-1], reverse=True)
        assert index.search([" ".join(asked)], 25) == [wanted[:25]]


def test_equal_sums_come_by_descending_id_also_at_the_cut(tmp_path: Path) -> None:
    need_lucene()
    numbers = list(range(300))
    random.Random(3).shuffle(numbers)
    index = opened(tmp_path, {f"p{number:03}": {"wing": 9} for number in numbers})
    assert index.search(["wing"], 3) == [[("p299", 9.0), ("p298", 9.0), ("p297", 9.0)]]


def test_stop_words_are_a_choice_and_kept_with_the_index(tmp_path: Path) -> None:
    need_lucene()
    own = tmp_path / "stop.txt"
    own.write_text("Wing\n")
    impacts = {"d": {"wing": 1, "the": 2, "would": 4}}
    for name, stopwords, score in (
        ("default", "default", 1.0),  # the and would are function words
        ("lucene", "lucene", 5.0),  # the alone is among Lucene's
        ("none", "none", 7.0),
        ("own", str(own), 6.0),
    ):
        index = opened(tmp_path / name, impacts, stopwords=stopwords)
        assert index.search(["the wing would"], 5) == [[("d", score)]]


def test_passages_without_a_word_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    need_lucene()
    with caplog.at_level("WARNING", logger="drtk"):
        assert len(opened(tmp_path, {"a": {"word": 1}, "b": {}, "c": {"word": 0}})) == 1
    assert "2 empty passages" in caplog.text


def test_a_passage_without_impacts_is_named(tmp_path: Path) -> None:
    need_lucene()
    with pytest.raises(RecordError, match="passage 'p': has no 'impacts'"):
        ImpactIndex.build([Passage("p", "text")], tmp_path, BM25IndexSettings())


@pytest.mark.parametrize(
    ("settings", "named"), [({"stemmer": "porter"}, "--stemmer"), ({"term_vectors": True}, "--term-")]
)
def test_settings_of_texts_are_refused(tmp_path: Path, settings: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        ImpactIndex.build([passage("p", {"a": 1})], tmp_path, BM25IndexSettings(**settings))


@pytest.mark.parametrize("settings", [{"k1": 0.9}, {"b": 0.4}, {"rm3": True}])
def test_parameters_of_bm25_are_refused(tmp_path: Path, settings: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="plain sums"):
        ImpactIndex.open(tmp_path, BM25SearchSettings(**settings))


@pytest.mark.parametrize("lost", ["words.json", "ids.txt"])
def test_an_index_with_a_part_missing_is_refused(tmp_path: Path, lost: str) -> None:
    need_lucene()
    opened(tmp_path, {"d": {"word": 1}})
    (tmp_path / lost).unlink()
    with pytest.raises((MismatchError, DrtkError), match=str(tmp_path)):
        ImpactIndex.open(tmp_path, BM25SearchSettings())
