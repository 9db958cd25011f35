"""Alignment of words and word pieces."""

from itertools import pairwise

import pytest
from transformers import AutoTokenizer

from drtk.errors import DrtkError, MismatchError, RecordError
from drtk.records import Passage
from drtk.text.word_pieces import (
    WordPieces,
    WordPieceTokenizer,
    WordPositions,
    align_words,
    get_splitter,
    locate_passage_words,
    locate_words,
    split_by_pieces,
    split_plain,
    split_treebank,
)
from tests.tiny_models import find_minilm, save_tiny_encoder

NONE = WordPieces([], [], [])


def cut(text: str, spans: list[tuple[int, int]]) -> list[str]:
    return [text[begin:end] for begin, end in spans]


@pytest.fixture(scope="module")
def tokenizer() -> WordPieceTokenizer:
    return WordPieceTokenizer(find_minilm())


def test_words_of_pieces() -> None:
    # "ab c-d": pieces ab, c, -, d; words "ab", "c-d".
    pieces = WordPieces([1, 2, 3, 4], [(0, 2), (3, 4), (4, 5), (5, 6)], [0, 1, 2, 3])
    assert align_words(pieces, [(0, 2), (3, 6)]) == [0, 1, 1, 1]
    assert align_words(pieces, [(3, 6)]) == [-1, 0, 0, 0]
    assert align_words(pieces, []) == [-1, -1, -1, -1]
    # A byte-level piece may begin with the space before its word.
    assert align_words(WordPieces([1, 2], [(0, 2), (2, 5)], [0, 1]), [(0, 2), (3, 5)]) == [0, 1]
    assert split_by_pieces("the cat-s", WordPieces([1, 2, 3], [(0, 3), (3, 7), (7, 9)], [0, 1, 1])) == [(0, 3), (4, 9)]


def test_splits_of_words(tokenizer) -> None:
    text = "Dr. Smith's cats don't sit (really). They end."
    expected = ["Dr", ".", "Smith", "'s", "cats", "do", "n't", "sit", "(", "really", ")", ".", "They", "end", "."]
    assert cut(text, split_treebank(text, NONE)) == expected
    for text in ("", " ", '"', "`` ''\" ''", "''''\"`` a \"b'' ``", "a\n\nb"):  # odd quotation marks and white space
        spans = split_treebank(text, NONE)
        assert all(begin < end and text[begin:end].strip() == text[begin:end] for begin, end in spans)
        assert all(one[1] <= two[0] for one, two in pairwise(spans))
    text = "Don’t stop_now — 3.14!"
    assert cut(text, split_plain(text, NONE)) == ["Don’t", "stop", "_", "now", "—", "3", ".", "14", "!"]
    text = "Perveance, naïve beams."
    assert cut(text, split_by_pieces(text, tokenizer([text])[0])) == ["Perveance", ",", "naïve", "beams", "."]
    text = "Café's “perveance” isn't U.S. §3.2 日本語."
    for name in ("treebank", "pieces", "plain", "basic"):
        spans = get_splitter(name)(text, tokenizer([text])[0])  # type: ignore[arg-type]
        assert all(one[1] <= two[0] for one, two in pairwise(spans))
        assert "perveance" in cut(text, spans)


def test_tokenizers_are_compared_by_their_pieces(tmp_path) -> None:
    one = WordPieceTokenizer(str(save_tiny_encoder(tmp_path / "a")))
    one.check_same_pieces(WordPieceTokenizer(str(save_tiny_encoder(tmp_path / "b"))))
    with pytest.raises(MismatchError, match=r"word pieces of .*c, which differ from those of .*a"):
        one.check_same_pieces(WordPieceTokenizer(str(save_tiny_encoder(tmp_path / "c", vocab_size=120))))
    with pytest.raises(DrtkError, match="no such folder"):
        WordPieceTokenizer("./nothing/here")


def test_max_id_includes_added_tokens(tmp_path) -> None:
    name = str(save_tiny_encoder(tmp_path / "m"))
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokenizer.add_tokens(["perveance"])
    tokenizer.save_pretrained(name)
    assert WordPieceTokenizer(name).max_id == tokenizer.convert_tokens_to_ids("perveance") == len(tokenizer) - 1


def test_places_of_words(tmp_path) -> None:
    tokenizer = WordPieceTokenizer(str(save_tiny_encoder(tmp_path / "m")))
    text = "Rivers, riverengines rivers"
    (pieces,) = tokenizer([text])
    (places,) = locate_words([text], tokenizer, "basic")
    assert places.words == ["rivers", "riverengines", "rivers"]  # basic forms, without the comma
    assert [pieces.offsets[head][0] for head in places.heads] == [0, 8, 21]
    assert len(pieces.ids) > 4  # riverengines has several pieces
    assert list(places.find_first_heads().items()) == [("rivers", 0), ("riverengines", places.heads[1])]
    one, other = WordPositions([5, 6], ["a", "b"], [0, 1]), WordPositions([7, 8, 9], ["c"], [2])
    assert one.append(other) == WordPositions([5, 6, 7, 8, 9], ["a", "b", "c"], [0, 1, 4])

    passage = Passage("p", "rivers", "engines", extra={"queries": ["violins", "planets"], "more": "gardens"})
    (places,) = locate_passage_words([passage], tokenizer, "basic", expand=("queries", "more"))
    assert places.words == ["engines", "rivers", "violins", "planets", "gardens"]
    assert locate_passage_words([passage], tokenizer, "basic", title="none")[0].words == ["rivers"]
    with pytest.raises(RecordError, match="passage 'p': 'queries' must be a string or a list of strings"):
        locate_passage_words([Passage("p", "x", extra={"queries": [1]})], tokenizer, "basic", expand=("queries",))
