"""Words as BERT's basic tokenizer parts them."""

from __future__ import annotations

from drtk.text.words import basic_words, function_words, question_words


def test_words_are_parted_at_punctuation_and_say_where_they_lie() -> None:
    text = "The café-naïve, 3.5% of 東京!"
    assert [word.text for word in basic_words(text)] == ["the", "cafe", "naive", "3", "5", "of", "東", "京"]
    assert [text[word.begin : word.end] for word in basic_words(text)] == [
        "The",
        "café",
        "naïve",
        "3",
        "5",
        "of",
        "東",
        "京",
    ]


def test_a_text_without_words_has_none() -> None:
    assert basic_words("") == basic_words(" \n\t") == basic_words("… ?!") == []


def test_a_question_keeps_each_word_once_and_no_function_words() -> None:
    assert question_words("What's the WING of a wing, and doesn't it bend?") == ["wing", "doesn", "bend"]
    assert question_words("the wing the", stopped=frozenset()) == ["the", "wing"]
    assert {"the", "s", "t", "re"} <= function_words()
