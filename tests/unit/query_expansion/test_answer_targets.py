"""Targets of GAR generators: hand-computed answers, sentences and titles."""

from drtk.query_expansion.train_generator import (
    build_title_target,
    capitalize_words,
    select_answer_target,
    select_sentence_target,
)
from drtk.records import Passage
from drtk.text.answers import PatternMatcher, TokenMatcher

NILE = Passage("p1", "The Nile flows north. Dr. Speke saw Lake Victoria in 1858. He wrote home.", "Nile")
LAKE = Passage("p2", "Lake Victoria is large.", "Lake Victoria")
TANGANYIKA = Passage("p3", "Lake Tanganyika is deep. It lies south.", "Lake Tanganyika")
SPEKE = Passage("p4", "He saw Lake Victoria first.", "John Hanning Speke")
AGAIN = Passage("p5", "Ships sail on Lake Victoria.", "Lake Victoria")


def test_an_answer_in_capitals_alone_gets_initial_capitals():
    answers = ("DAVID BECKHAM", "O'BRIEN", "HENRY VIII", "the BBC", "1984")
    assert [*map(capitalize_words, answers)] == ["David Beckham", "O'brien", "Henry Viii", "the BBC", "1984"]


def test_the_first_answer_that_is_not_blank_is_the_target():
    assert select_answer_target([" ", "LAKE  VICTORIA", "Victoria"], case="kept") == "LAKE VICTORIA"
    assert select_answer_target([" ", "LAKE  VICTORIA", "Victoria"], case="initial") == "Lake Victoria"
    assert select_answer_target(["", " "], case="kept") is None
    assert select_answer_target([], case="initial") is None


def test_the_sentence_with_the_answer_is_that_of_the_first_passage_that_has_one():
    # p3 has no answer; in p1 the second sentence has it, and "Dr." ends none
    actual = select_sentence_target([TANGANYIKA, NILE, LAKE], TokenMatcher(["lake victoria"]))
    assert actual == "Dr. Speke saw Lake Victoria in 1858."
    assert select_sentence_target([TANGANYIKA], TokenMatcher(["lake victoria"])) is None
    assert select_sentence_target([NILE], PatternMatcher([r"18\d\d"])) == "Dr. Speke saw Lake Victoria in 1858."


def test_an_answer_across_sentences_gives_the_shortest_sequence():
    text = "It began early. He said yes. No one heard. It ended."
    assert select_sentence_target([Passage("p", text)], TokenMatcher(["yes. No"])) == "He said yes. No one heard."
    whole = TokenMatcher(["early. He said yes. No one heard. It ended"])
    assert select_sentence_target([Passage("p", text)], whole) == text


def test_titles_are_those_of_all_answer_bearing_passages_each_once_in_rank_order():
    ranked = [TANGANYIKA, LAKE, NILE, AGAIN, SPEKE]  # p3 has no answer; p2 and p5 share their title
    contains = TokenMatcher(["Lake Victoria"])
    assert build_title_target(ranked, contains, mode="all", separator=", ") == "Lake Victoria, Nile, John Hanning Speke"
    assert build_title_target(ranked, contains, mode="first", separator=", ") == "Lake Victoria"
    assert build_title_target([TANGANYIKA], contains, mode="all", separator=", ") is None


def test_an_answer_in_a_title_counts_with_match_title():
    contains = TokenMatcher(["Tanganyika"])
    named = Passage("p6", "It is deep.", "Lake Tanganyika")
    assert build_title_target([named], contains, mode="first", separator=", ") is None
    assert build_title_target([named], contains, mode="first", separator=", ", match_title=True) == "Lake Tanganyika"
    assert build_title_target([Passage("p7", "Tanganyika")], contains, mode="first", separator=", ") is None  # no title
