"""What BM25 is asked with."""

from __future__ import annotations

import pytest

from drtk.text.expanded_text import expanded_query, plain_query


@pytest.mark.parametrize(
    "question", ["who wrote hamlet", "who wrote hamlet?", " who wrote hamlet ? ", "who wrote hamlet\n"]
)
def test_a_plain_query_ends_with_one_question_mark_set_apart(question: str) -> None:
    assert plain_query(question) == "who wrote hamlet ?"


def test_only_one_question_mark_is_dropped_as_the_released_code_does() -> None:
    assert plain_query("really??") == "really? ?"


def test_an_expansion_follows_the_question_mark() -> None:
    assert expanded_query("Who wrote Hamlet?", " William\nShakespeare ") == "Who wrote Hamlet ? William Shakespeare"


def test_expansions_are_joined_in_their_order_and_empty_ones_add_nothing() -> None:
    assert expanded_query("q?", "b", " ", "a b") == "q ? b a b"
    assert expanded_query("q?", "") == plain_query("q?")
