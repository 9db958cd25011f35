"""Words, stems, stop words."""

from __future__ import annotations

import pytest

from drtk.errors import DrtkError, UsageError
from drtk.text.words import LUCENE_STOPWORDS, content_words, read_stopwords, split_words, stem_with, stop_words, words


def test_words_are_lower_case_runs_of_letters_and_digits():
    assert words("Don’t stop_me: Émile's 2nd x²!") == ["don't", "stop", "me", "émile's", "2nd", "x²"]
    assert split_words("Don't: Émile 2nd") == ["don", "t", "mile", "2nd"]
    assert split_words("Émile 2nd", latin=False) == ["émile", "2nd"]


def test_stop_words_are_shipped_and_lower_case():
    assert {"the", "of", "don't", "which"} <= stop_words()
    assert all(word == word.lower() and not word.startswith("#") for word in stop_words())
    assert len(LUCENE_STOPWORDS) == 33
    assert LUCENE_STOPWORDS - {"will"} <= stop_words() | {"such"}
    assert content_words("What is the best way to sort a list?") == ["best", "way", "sort", "list"]


def test_a_file_of_stop_words_is_read_without_blanks_comments_and_repetitions(tmp_path):
    (tmp_path / "stop.txt").write_text("\ufeffThe\n\n# a comment\n of \nthe\n", encoding="utf-8")
    assert read_stopwords(str(tmp_path / "stop.txt")) == ["of", "the"]
    with pytest.raises(DrtkError, match="No such file"):
        read_stopwords(str(tmp_path / "none.txt"))
    (tmp_path / "latin1.txt").write_bytes(b"\xe9t\xe9\n")
    with pytest.raises(DrtkError, match="not UTF-8"):
        read_stopwords(str(tmp_path / "latin1.txt"))


def test_stemmers_are_chosen_by_name():
    assert [stem_with("porter")(word) for word in ("running", "relational", "ponies")] == ["run", "relat", "poni"]
    assert stem_with("snowball", language="de")("aufeinanderfolgenden") == "aufeinanderfolg"
    assert stem_with("none")("running") == "running"
    for name, language in (("porter", "de"), ("snowball", "xx"), ("krovetz", "en")):
        with pytest.raises(UsageError, match="--stemmer"):
            stem_with(name, language=language)
