"""Word pieces, words, and which piece belongs to which word."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from drtk.errors import DrtkError, MismatchError
from drtk.text.word_pieces import Pieces, WordPieceTokenizer, of_pieces, owners, plain, splitter, treebank
from tests.tiny import minilm, tiny_model

NONE = Pieces([], [], [])


def words(text: str, spans: list[tuple[int, int]]) -> list[str]:
    return [text[begin:end] for begin, end in spans]


def test_pieces_are_those_of_the_tokenizer_however_long_the_text() -> None:
    tokenizer = WordPieceTokenizer(minilm())
    text = "the perveance beam " * 400
    pieces = tokenizer([text])[0]
    assert len(pieces.ids) == len(pieces.offsets) == len(pieces.words) == 5 * 400
    assert pieces.ids == tokenizer.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    assert words(text, pieces.offsets[:5]) == ["the", "per", "ve", "ance", "beam"]
    assert pieces.words[:5] == [0, 1, 1, 1, 2]


def test_each_piece_belongs_to_the_word_it_begins_in() -> None:
    # "ab c-d": pieces ab, c, -, d; words "ab", "c-d"
    pieces = Pieces([1, 2, 3, 4], [(0, 2), (3, 4), (4, 5), (5, 6)], [0, 1, 2, 3])
    assert owners(pieces, [(0, 2), (3, 6)]) == [0, 1, 1, 1]
    assert owners(pieces, [(3, 6)]) == [-1, 0, 0, 0]
    assert owners(pieces, []) == [-1, -1, -1, -1]


def test_a_piece_that_begins_with_the_space_before_a_word_belongs_to_it() -> None:
    assert owners(Pieces([1, 2], [(0, 2), (2, 5)], [0, 1]), [(0, 2), (3, 5)]) == [0, 1]


def test_treebank_words_part_clitics_and_final_stops() -> None:
    text = "Dr. Smith's cats don't sit (really). They end."
    expected = ["Dr", ".", "Smith", "'s", "cats", "do", "n't", "sit", "(", "really", ")", ".", "They", "end", "."]
    assert words(text, treebank(text, NONE)) == expected


@pytest.mark.parametrize("text", ["", " ", '"', "`` ''\" ''", "''''\"`` a \"b'' ``", "a\n\nb"])
def test_odd_quotation_marks_and_white_space_are_no_fault(text: str) -> None:
    spans = treebank(text, NONE)
    assert all(begin < end and text[begin:end].strip() == text[begin:end] for begin, end in spans)
    assert all(one[1] <= two[0] for one, two in pairwise(spans))


def test_plain_words_keep_apostrophes_and_part_every_mark() -> None:
    text = "Don’t stop_now — 3.14!"
    assert words(text, plain(text, NONE)) == ["Don’t", "stop", "_", "now", "—", "3", ".", "14", "!"]


def test_words_of_pieces_are_what_the_tokenizer_merges(tmp_path: Path) -> None:
    text = "Perveance, naïve beams."
    tokenizer = WordPieceTokenizer(minilm())
    assert words(text, of_pieces(text, tokenizer([text])[0])) == ["Perveance", ",", "naïve", "beams", "."]


def test_words_of_byte_level_pieces_have_no_spaces() -> None:
    # as RoBERTa's tokenizer without trimmed offsets has it: the space belongs to the piece after it
    pieces = Pieces([1, 2, 3], [(0, 3), (3, 7), (7, 9)], [0, 1, 1])
    assert of_pieces("the cat-s", pieces) == [(0, 3), (4, 9)]


@pytest.mark.parametrize("name", ["treebank", "pieces", "plain"])
def test_every_split_gives_spans_in_order(name: str) -> None:
    text = "Café's “perveance” isn't U.S. §3.2 日本語."
    spans = splitter(name)(text, WordPieceTokenizer(minilm())([text])[0])  # type: ignore[arg-type]
    assert all(one[1] <= two[0] for one, two in pairwise(spans))
    assert "perveance" in words(text, spans)


def test_the_same_tokenizer_under_another_name_is_the_same(tmp_path: Path) -> None:
    one, copy, other = (
        tiny_model(tmp_path / "a"),
        tiny_model(tmp_path / "b"),
        tiny_model(tmp_path / "c", vocab_size=120),
    )
    WordPieceTokenizer(str(one)).check(str(copy))
    with pytest.raises(MismatchError, match=r"word pieces of .*c, not for those of .*a"):
        WordPieceTokenizer(str(one)).check(str(other))


def test_a_tokenizer_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(DrtkError, match="no such folder"):
        WordPieceTokenizer("./nothing/here")
