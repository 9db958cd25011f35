"""Words, stems, stop words, and queries with expansions."""

from __future__ import annotations

import pytest

from drtk.errors import DrtkError, UsageError
from drtk.text.expanded_text import expanded_query, plain_query
from drtk.text.words import (
    LUCENE_STOPWORDS,
    basic_words,
    content_words,
    function_words,
    make_stemmer,
    question_words,
    read_stopwords,
    split_words,
    stop_words,
    words,
)


def test_words():
    assert words("Don’t stop_me: Émile's 2nd x²!") == ["don't", "stop", "me", "émile's", "2nd", "x²"]
    assert split_words("Don't: Émile 2nd") == ["don", "t", "mile", "2nd"]
    assert split_words("Émile 2nd", latin=False) == ["émile", "2nd"]
    text = "The café-naïve, 3.5% of 東京!"
    assert [(word.text, text[word.begin : word.end]) for word in basic_words(text)] == [
        ("the", "The"),
        ("cafe", "café"),
        ("naive", "naïve"),
        ("3", "3"),
        ("5", "5"),
        ("of", "of"),
        ("東", "東"),
        ("京", "京"),
    ]
    assert basic_words("") == basic_words(" \n\t") == basic_words("… ?!") == []


def test_stop_words(tmp_path):
    assert {"the", "of", "don't", "which"} <= stop_words()
    assert all(word == word.lower() and not word.startswith("#") for word in stop_words())
    assert len(LUCENE_STOPWORDS) == 33
    assert LUCENE_STOPWORDS - {"will"} <= stop_words() | {"such"}
    assert content_words("What is the best way to sort a list?") == ["best", "way", "sort", "list"]
    assert question_words("What's the WING of a wing, and doesn't it bend?") == ["wing", "doesn", "bend"]
    assert question_words("the wing the", stopped=frozenset()) == ["the", "wing"]
    assert {"the", "s", "t", "re"} <= function_words()
    (tmp_path / "stop.txt").write_text("\ufeffThe\n\n# a comment\n of \nthe\n", encoding="utf-8")
    assert read_stopwords(str(tmp_path / "stop.txt")) == ["of", "the"]
    with pytest.raises(DrtkError, match="No such file"):
        read_stopwords(str(tmp_path / "none.txt"))
    (tmp_path / "latin1.txt").write_bytes(b"\xe9t\xe9\n")
    with pytest.raises(DrtkError, match="not UTF-8"):
        read_stopwords(str(tmp_path / "latin1.txt"))


def test_stemmers():
    assert [make_stemmer("porter")(word) for word in ("running", "relational", "ponies")] == ["run", "relat", "poni"]
    assert make_stemmer("snowball", language="de")("aufeinanderfolgenden") == "aufeinanderfolg"
    assert make_stemmer("none")("running") == "running"
    for name, language in (("porter", "de"), ("snowball", "xx"), ("krovetz", "en")):
        with pytest.raises(UsageError, match="`stemmer`"):
            make_stemmer(name, language=language)


def test_expanded_queries():
    for question in ("who wrote hamlet", "who wrote hamlet?", " who wrote hamlet ? ", "who wrote hamlet\n"):
        assert plain_query(question) == "who wrote hamlet ?"
    assert plain_query("really??") == "really? ?"  # only one mark is removed, as in the released code
    assert expanded_query("Who wrote Hamlet?", " William\nShakespeare ") == "Who wrote Hamlet ? William Shakespeare"
    assert expanded_query("q?", "b", " ", "a b") == "q ? b a b"
    assert expanded_query("q?", "") == plain_query("q?")
