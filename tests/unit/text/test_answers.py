"""DPR's answer matching and SQuAD's exact match: the tables of the method page, and the quick way against the plain one."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drtk.text.answers import PatternMatch, TokenMatch, answer_tokens, exact_match, normalize_answer, token_f1

BEYONCE = "Beyonc\u00e9"
DPR_TABLE = [
    ("18", "Released in 2018.", False),
    ("May 18, 2018", "It was shown in the United States on May 18, 2018, having opened abroad", True),
    ("U.S.", "moved to the U.S. in 1990", True),
    ("US", "moved to the U.S. in 1990", False),
    ("Beyonce", f"{BEYONCE} Knowles", False),
    (unicodedata.normalize("NFD", BEYONCE), f"{BEYONCE} Knowles", True),
    ("the Beatles", "The BEATLES split", True),
    ("rock-n-roll", "rock n roll", False),
    ("O'Brien", "Conan O\u2019Brien", False),
    ("1000", "over 1,000 people", False),
]


@pytest.mark.parametrize(("answer", "text", "contained"), DPR_TABLE)
def test_answers_are_found_as_dpr_finds_them(answer: str, text: str, contained: bool) -> None:
    assert TokenMatch([answer])(text) is contained


def test_an_empty_answer_is_dropped_where_dprs_code_would_let_it_match_everything() -> None:
    assert not TokenMatch(["", " \u200b"])
    assert not TokenMatch([""])("anything")
    assert TokenMatch(["", "thing"])("any thing")


def test_any_of_several_answers_counts() -> None:
    assert TokenMatch(["nowhere", "Paris"])("It is paris.")


def plainly_contains(answer: str, text: str) -> bool:
    wanted, tokens = answer_tokens(answer), answer_tokens(text)
    return bool(wanted) and any(tokens[at : at + len(wanted)] == wanted for at in range(len(tokens)))


WORDS = st.lists(
    st.sampled_from(
        ["a", "A", "ab", "Σ", "ΟΔΟΣ", "ς", "σ", "İ", "ß", "ẞ", "é", "e\u0301", "1", ",", "'", "\u200b", "ﬁ"]
    )
)
GLUE = st.sampled_from(["", " ", "\u00a0", "'", "-"])


@given(WORDS, GLUE, WORDS, GLUE)
def test_the_quick_search_finds_what_the_plain_definition_finds(
    answer: list[str], between: str, text: list[str], glue: str
) -> None:
    asked, given_text = between.join(answer), glue.join(text)
    assert TokenMatch([asked])(given_text) is plainly_contains(asked, given_text)


@given(st.text(max_size=5), st.text(max_size=40))
def test_the_quick_search_is_right_on_any_text(answer: str, text: str) -> None:
    assert TokenMatch([answer])(text) is plainly_contains(answer, text)


@given(st.text(min_size=1, max_size=40), st.integers(0, 40), st.integers(1, 8))
def test_a_run_of_a_texts_own_tokens_is_contained(text: str, begin: int, size: int) -> None:
    own = answer_tokens(text)[begin : begin + size]
    if own:
        assert TokenMatch([" ".join(own)])(" ".join(answer_tokens(text)))


def test_patterns_are_searched_in_any_case_and_at_line_ends() -> None:
    assert PatternMatch([r"19\d\d"])("in 1984, and")
    assert PatternMatch(["PARIS|rome"])("to Rome")
    assert PatternMatch(["^two$"])("one\ntwo\nthree")
    assert not PatternMatch(["^two$"])("one two three")
    assert PatternMatch([BEYONCE])(unicodedata.normalize("NFD", BEYONCE))
    assert not PatternMatch(["(unclosed"])("(unclosed")
    assert PatternMatch(["(unclosed", "fine"]).invalid == ["(unclosed"]


@pytest.mark.parametrize(
    ("prediction", "answer", "equal"),
    [
        ("U.S.", "US", True),
        ("1,000", "1000", True),
        ("rock-n-roll", "rocknroll", True),
        ("rock n roll", "rock-n-roll", False),
        (BEYONCE, "Beyonce", False),
        ("the", "a", True),  # both are nothing without their article
        ("The  Eiffel Tower!", "eiffel tower", True),
    ],
)
def test_exact_match_normalises_both_sides(prediction: str, answer: str, equal: bool) -> None:
    assert exact_match(prediction, ["something else", answer]) is equal


def test_the_order_is_lower_case_punctuation_articles_spaces() -> None:
    # punctuation first: "A.N." becomes "an", which is an article; the other order would leave "an"
    assert normalize_answer("A.N. answer") == "answer"
    assert normalize_answer("the-the") == "thethe"


def test_f1_is_the_harmonic_mean_of_shared_words() -> None:
    # "tower paris" and "eiffel tower in paris": 2 shared, precision 2/2, recall 2/4: F1 = 2*2/(2+4)
    assert token_f1("the tower, Paris", ["Eiffel Tower in Paris"]) == pytest.approx(2 / 3)
    assert token_f1("x", ["y", "x y"]) == pytest.approx(2 / 3)
    assert token_f1("the", ["a"]) == 1.0
    assert token_f1("the", ["b"]) == 0.0


@pytest.mark.filterwarnings("error")
def test_a_pattern_that_python_may_read_otherwise_one_day_says_nothing() -> None:
    assert PatternMatch(["[[]x"])("a [x")
