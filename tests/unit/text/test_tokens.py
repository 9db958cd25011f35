"""Tokenizers, and where they let a text be parted."""

from __future__ import annotations

import pytest

from drtk.errors import DrtkError, MismatchError
from drtk.text.tokenizers import Units, WordPieces, Words, load_tokenizer, portable
from tests.unit.text.tokenizers_made_here import byte_pieces, sentence_pieces, word_pieces

KINDS = {"word pieces": word_pieces, "bytes": byte_pieces, "sentence pieces": sentence_pieces}


@pytest.fixture(scope="module", params=KINDS)
def pieces(request, tmp_path_factory):
    folder = KINDS[request.param](tmp_path_factory.mktemp("tokenizer"))
    return WordPieces(portable(load_tokenizer(folder), folder))


def test_lengths_and_units_agree_and_special_tokens_are_apart(pieces):
    texts = ["the cat sat", "", "unbelievable!", "naïve 10,000 €"]
    assert pieces.lengths(texts) == [len(pieces.units(text).begins) for text in texts]
    assert pieces.lengths([""]) == [0]


def test_a_text_is_parted_only_where_a_word_begins(pieces):
    text = "the unbelievable cat"
    units = pieces.units(text)
    assert len(units.begins) > 3  # some word is more than one piece, or the test would show nothing
    allowed = {begin for begin, may in zip(units.begins, units.may_part, strict=True) if may}
    assert allowed <= {0, 3, 4, 16, 17}  # a piece may begin with the space before its word
    assert allowed & {3, 4}
    assert allowed & {16, 17}


def test_word_pieces_keep_a_word_and_its_continuations_together(tmp_path):
    folder = word_pieces(tmp_path)
    units = WordPieces(portable(load_tokenizer(folder), folder)).units("word wording word")
    assert units == Units([0, 5, 9, 13], [True, True, False, True])  # word | word ##ing | word
    assert units.boundary(0, 2) == 1  # not between "word" and "##ing"
    assert units.boundary(1, 2) == 2  # one word fills all there is: it is cut after all


def test_a_letter_of_several_pieces_is_never_cut():
    units = Units([0, 0, 0, 1, 1, 1], [True, False, False, False, False, False])  # two letters of three bytes, one word
    assert units.boundary(0, 5) == 3
    assert units.boundary(0, 2) == 3  # nothing before it will do, so the whole letter is taken
    assert units.boundary(3, 4) == 6


def test_words_are_counted_as_split_counts_them():
    assert Words().lengths(["a  b\tc", "", " x "]) == [3, 0, 1]
    assert Words().units("a  bc d") == Units([0, 3, 6], [True, True, True])


def test_a_tokenizer_that_is_not_there_is_a_plain_fault(tmp_path):
    with pytest.raises(DrtkError, match="no such folder"):
        load_tokenizer(str(tmp_path / "none"))
    with pytest.raises(DrtkError, match="has no tokenizer files"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(DrtkError, match="is a file"):
        load_tokenizer(str(tmp_path / "file"))
    with pytest.raises(MismatchError, match="without a fast version"):
        portable(object(), "old")


def test_of_two_encoders_the_one_for_passages_is_asked(tmp_path):
    word_pieces(tmp_path / "passage")
    assert load_tokenizer(str(tmp_path)).tokenize("word") == ["word"]
