"""Words, stems, stop words, and queries with expansions."""

import pytest

from drtk.errors import DrtkError, UsageError
from drtk.text.expanded_text import expand_query, normalize_question_mark
from drtk.text.words import (
    LUCENE_STOPWORDS,
    extract_content_words,
    extract_question_words,
    extract_words,
    load_stop_words,
    load_stop_words_with_parts,
    make_stemmer,
    read_stopwords,
    split_basic_words,
    split_words,
)


def test_each_splitter_finds_its_words():
    assert extract_words("Don’t stop_me: Émile's 2nd x²!") == ["don't", "stop", "me", "émile's", "2nd", "x²"]
    assert split_words("Don't: Émile 2nd") == ["don", "t", "mile", "2nd"]
    assert split_words("Émile 2nd", latin=False) == ["émile", "2nd"]
    text = "The café-naïve, 3.5% of 東京!"
    words = split_basic_words(text)
    assert [word.text for word in words] == ["the", "cafe", "naive", "3", "5", "of", "東", "京"]
    assert [text[word.begin : word.end] for word in words] == ["The", "café", "naïve", "3", "5", "of", "東", "京"]
    assert split_basic_words("") == split_basic_words(" \n\t") == split_basic_words("… ?!") == []


def test_stop_words(tmp_path):
    assert {"the", "of", "don't", "which"} <= load_stop_words()
    assert all(word == word.lower() and not word.startswith("#") for word in load_stop_words())
    assert len(LUCENE_STOPWORDS) == 33
    assert LUCENE_STOPWORDS - {"will"} <= load_stop_words() | {"such"}
    assert extract_content_words("What is the best way to sort a list?") == ["best", "way", "sort", "list"]
    assert extract_question_words("What's the WING of a wing, and doesn't it bend?") == ["wing", "doesn", "bend"]
    assert extract_question_words("the wing the", stop_words=frozenset()) == ["the", "wing"]
    assert {"the", "s", "t", "re"} <= load_stop_words_with_parts()
    (tmp_path / "stop.txt").write_text("\ufeffThe\n\n# a comment\n of \nthe\n", encoding="utf-8")
    assert read_stopwords(str(tmp_path / "stop.txt")) == ["of", "the"]
    (tmp_path / "latin1.txt").write_bytes(b"\xe9t\xe9\n")
    for name, problem in (("none", "No such file"), ("latin1", "not UTF-8")):
        with pytest.raises(DrtkError, match=problem):
            read_stopwords(str(tmp_path / f"{name}.txt"))


def test_stemmers():
    assert [make_stemmer("porter")(word) for word in ("running", "relational", "ponies")] == ["run", "relat", "poni"]
    assert make_stemmer("snowball", language="de")("aufeinanderfolgenden") == "aufeinanderfolg"
    assert make_stemmer("none")("running") == "running"
    for name, language in (("porter", "de"), ("snowball", "xx"), ("krovetz", "en")):
        with pytest.raises(UsageError, match="`stemmer`"):
            make_stemmer(name, language=language)


def test_expanded_queries():
    assert normalize_question_mark("really??") == "really? ?"  # only one mark is removed, as in the released code
    assert expand_query("Who wrote Hamlet?", " William\nShakespeare ") == "Who wrote Hamlet ? William Shakespeare"
    assert expand_query("q?", "b", " ", "a b") == "q ? b a b"
    assert expand_query("q?", "") == normalize_question_mark("q?")
