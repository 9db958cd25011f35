"""Where words begin among word pieces."""

from __future__ import annotations

import pytest

from drtk.errors import RecordError
from drtk.records import Passage
from drtk.text.word_pieces import WordPieceTokenizer, WordPlaces, passage_places, word_places
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> WordPieceTokenizer:
    return WordPieceTokenizer(str(tiny_model(tmp_path_factory.mktemp("model") / "m")))


def test_heads_are_the_first_pieces_of_words(tokenizer: WordPieceTokenizer) -> None:
    text = "Rivers, riverengines rivers"
    (pieces,) = tokenizer([text])
    (found,) = word_places([text], tokenizer, "basic")
    assert found.words == [
        "rivers",
        "riverengines",
        "rivers",
    ]  # the comma is no word, and lower case is part of the basic form
    assert [pieces.offsets[head][0] for head in found.heads] == [0, 8, 21]
    assert len(pieces.ids) > 4  # riverengines has several pieces
    assert found.first() == {"rivers": 0, "riverengines": found.heads[1]}


def test_places_of_two_texts_are_counted_on(tokenizer: WordPieceTokenizer) -> None:
    one, other = WordPlaces([5, 6], ["a", "b"], [0, 1]), WordPlaces([7, 8, 9], ["c"], [2])
    assert one.joined(other) == WordPlaces([5, 6, 7, 8, 9], ["a", "b", "c"], [0, 1, 4])


def test_title_text_and_added_texts_follow_each_other(tokenizer: WordPieceTokenizer) -> None:
    passage = Passage("p", "rivers", "engines", extra={"queries": ["violins", "planets"], "more": "gardens"})
    (found,) = passage_places([passage], tokenizer, "basic", expand=("queries", "more"))
    assert found.words == ["engines", "rivers", "violins", "planets", "gardens"]
    (found,) = passage_places([passage], tokenizer, "basic", title="none")
    assert found.words == ["rivers"]
    with pytest.raises(RecordError, match="passage 'p': 'queries' must be a string or a list of strings"):
        passage_places([Passage("p", "x", extra={"queries": [1]})], tokenizer, "basic", expand=("queries",))
