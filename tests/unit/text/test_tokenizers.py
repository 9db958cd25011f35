"""Loading tokenizers, and positions at which a text may be split."""

import pytest

from drtk.errors import DrtkError, MismatchError
from drtk.text.tokenizers import TextUnits, WordCounter, WordPieceCounter, load_tokenizer, serialize_tokenizer
from tests.unit.text.small_tokenizers import byte_pieces, sentence_pieces, word_pieces


@pytest.mark.parametrize("make", [word_pieces, byte_pieces, sentence_pieces])
def test_word_pieces_are_counted_and_may_be_cut_only_between_words(make, tmp_path):
    folder = make(tmp_path)
    counter = WordPieceCounter(serialize_tokenizer(load_tokenizer(folder), folder))
    texts = ["the cat sat", "", "unbelievable!", "naïve 10,000 €"]
    assert counter.count_units(texts) == [len(counter.split_units(text).begins) for text in texts]
    assert counter.count_units([""]) == [0]
    units = counter.split_units("the unbelievable cat")
    assert len(units.begins) > 3  # a word has several pieces
    allowed = {begin for begin, may_cut in zip(units.begins, units.may_cut, strict=True) if may_cut}
    assert allowed <= {0, 3, 4, 16, 17}  # a piece may begin with the space before its word
    assert allowed & {3, 4}
    assert allowed & {16, 17}


def test_a_boundary_is_between_words_if_possible(tmp_path):
    folder = word_pieces(tmp_path)
    units = WordPieceCounter(serialize_tokenizer(load_tokenizer(folder), folder)).split_units("word wording word")
    assert units == TextUnits([0, 5, 9, 13], [True, True, False, True])  # word | word ##ing | word
    assert units.find_boundary(0, 2) == 1  # not between "word" and "##ing"
    assert units.find_boundary(1, 2) == 2  # a single word is cut
    units = TextUnits([0, 0, 0, 1, 1, 1], [True, *[False] * 5])  # two letters of three bytes, one word
    assert units.find_boundary(0, 5) == 3
    assert units.find_boundary(0, 2) == 3  # not within the first letter
    assert units.find_boundary(3, 4) == 6
    assert WordCounter().count_units(["a  b\tc", "", " x "]) == [3, 0, 1]
    assert WordCounter().split_units("a  bc d") == TextUnits([0, 3, 6], [True, True, True])


def test_load_tokenizer_rejects_folders_without_one(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, problem in (("none", "no such folder"), ("empty", "has no tokenizer files"), ("file", "is a file")):
        with pytest.raises(DrtkError, match=problem):
            load_tokenizer(str(tmp_path / name))
    with pytest.raises(MismatchError, match="has no fast tokenizer"):
        serialize_tokenizer(object(), "old")
    word_pieces(tmp_path / "passage")  # of a model with two encoders
    assert load_tokenizer(str(tmp_path)).tokenize("word") == ["word"]
